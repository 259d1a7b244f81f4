"""Vacuum: deletes what no commit names or can name, and nothing else (RULES C1, C7)."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from penstock.environment import Environment, new_batch_id
from penstock.errors import TransientError
from penstock.flow.write.names import compacted_name, parse_staged_name, replayed_name, staged_name
from penstock.lake.delta.compact import compact, group_files, merge_group
from penstock.lake.delta.files import active_files
from penstock.lake.delta.keys import replay_key
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vacuum import Dead, KeptReason
from penstock.lake.proposal import Proposal, SlicePart, StartPart
from penstock.logs.log import Partition
from penstock.quarantine.table import Quarantine
from penstock.storage import open_storage
from penstock.tables.single.table import vacuum
from tests.support.active_paths import active_paths
from tests.support.lake import JOB, ONE, TOPIC_ID, ZERO, Lake, at_step, commit, offsets

LARGE = 128 * 1024**2


def paths(part: SlicePart) -> set[str]:
    return {file.path for file in (*part.files, *part.quarantine_files)}


def on_disk(table: DeltaLog) -> set[str]:
    return {entry.path for entry in table.storage().list() if not entry.path.startswith("_delta_log/")}


def unique() -> str:
    return uuid.uuid4().hex


def test_the_attempts_of_one_slice_never_share_a_name_and_a_parquet_glob_sees_none(local: Lake) -> None:
    first, second = local.stage(ZERO, 0, 5), local.stage(ZERO, 0, 5)
    assert paths(first).isdisjoint(paths(second))
    for path in paths(first) | paths(second):
        name = parse_staged_name(path)
        assert name is not None
        assert (name.topic_id, name.partition, name.start, name.end) == (TOPIC_ID, 0, 0, 5)
    assert list(Path(local.path).rglob("*.parquet")) == []


def test_an_orphan_behind_the_position_is_deleted_and_every_committed_row_stays(lake: Lake) -> None:
    table = lake.start(ZERO)
    orphan = lake.stage(ZERO, 0, 10, ["d1", "a b:c%"])
    lake.append(table, ZERO, 0, 10)
    report = vacuum(lake.open())
    assert {item.path for item in report.deleted} == paths(orphan)
    assert {file.reason for file in report.deleted} == {Dead.PASSED}
    assert report.kept == {KeptReason.ACTIVE: 1}
    assert on_disk(table) == active_paths(table.handle)
    assert lake.rows() == offsets(ZERO, 0, 10)


def test_a_staged_file_at_the_position_stays_and_its_commit_succeeds(lake: Lake) -> None:
    table = lake.start(ZERO, ONE)
    lake.append(table, ZERO, 0, 10)
    at_position = lake.stage(ZERO, 10, 20)
    other_partition = lake.stage(ONE, 0, 5)
    ahead = lake.stage(ONE, 5, 9)
    report = vacuum(lake.open())
    assert report.deleted == ()
    assert report.kept == {KeptReason.ACTIVE: 1, KeptReason.COMMITTABLE: 3}
    assert commit(table, at_position, other_partition).refused == ()
    assert commit(table, ahead).refused == ()
    assert lake.rows() == offsets(ZERO, 0, 20) + offsets(ONE, 0, 9)


def test_a_dry_run_names_the_same_files_and_deletes_none(local: Lake) -> None:
    table = local.start(ZERO)
    orphan = local.stage(ZERO, 0, 10)
    local.append(table, ZERO, 0, 10)
    before, version = on_disk(table), table.version
    dry = vacuum(table, dry_run=True)
    assert dry.dry_run
    assert on_disk(table) == before
    assert {item.path for item in dry.deleted} == paths(orphan)
    assert sum(file.size_bytes for file in dry.deleted) == orphan.files[0].size_bytes
    wet = vacuum(table)
    assert wet.deleted == dry.deleted
    assert on_disk(table) == before - paths(orphan)
    assert local.open().version == version


def test_a_batch_that_is_committed_during_a_vacuum_keeps_its_files(lake: Lake) -> None:
    table = lake.start(ZERO)
    staged = lake.stage(ZERO, 0, 10)

    def commit_and_stage_more() -> None:
        commit(table, staged)
        lake.append(table, ZERO, 10, 20)

    report = vacuum(lake.open(at_step("vacuum_listed", commit_and_stage_more)))
    assert report.deleted == ()
    assert lake.rows() == offsets(ZERO, 0, 20)


def test_files_of_a_lost_race_are_deleted_although_the_winner_commits_during_the_vacuum(local: Lake) -> None:
    table = local.start(ZERO)
    loser, winner = local.stage(ZERO, 0, 10), local.stage(ZERO, 0, 10)
    report = vacuum(local.open(at_step("vacuum_listed", lambda: commit(table, winner))))
    assert {item.path for item in report.deleted} == paths(loser)
    assert commit(table, loser).accepted == ()
    assert local.rows() == offsets(ZERO, 0, 10)


def test_a_commit_between_two_deletes_finds_its_files(local: Lake) -> None:
    table = local.start(ZERO)
    orphan = local.stage(ZERO, 0, 10)
    local.append(table, ZERO, 0, 10)
    staged = local.stage(ZERO, 10, 20)
    report = vacuum(local.open(at_step("vacuum_deleting", lambda: commit(table, staged))))
    assert {item.path for item in report.deleted} == paths(orphan)
    assert local.rows() == offsets(ZERO, 0, 20)


def test_a_vacuum_that_dies_in_the_middle_is_finished_by_the_next(local: Lake) -> None:
    table = local.start(ZERO)
    orphans = [local.stage(ZERO, 0, 10) for _ in range(3)]
    local.append(table, ZERO, 0, 10)
    visits = []

    def at_step(step: str) -> None:
        visits.append(step)
        if visits.count("vacuum_deleting") == 2:
            raise TransientError("failpoint")

    with pytest.raises(TransientError):
        vacuum(local.open(Environment(at_step=at_step)))
    assert len(on_disk(table)) == 3
    assert len(vacuum(table).deleted) == len(orphans) - 1
    assert on_disk(table) == active_paths(table.handle)


def test_foreign_file_names_are_kept(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    storage = table.storage()
    strange = {
        "part-00000-67e72c78.snappy.parquet",
        "day=d1/notes.txt",
        "deletion_vector_1.bin",
        staged_name(TOPIC_ID, 0, 0, 10, unique()) + ".tmp",
        "day=d1/deeper/" + staged_name(TOPIC_ID, 0, 0, 10, unique()),
        "hour=1/" + compacted_name(0, unique()),
    }
    for path in strange:
        storage.put(path, b"x")
    report = vacuum(table)
    assert report.deleted == ()
    assert report.kept == {KeptReason.ACTIVE: 1, KeptReason.UNKNOWN: len(strange)}
    assert strange < on_disk(table)


def test_staged_files_of_a_topic_without_a_position_stay(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.stage(Partition("web", "another-id", 0), 0, 5)
    local.stage(Partition("web", TOPIC_ID, 7), 0, 5)
    assert vacuum(table).kept == {KeptReason.ACTIVE: 1, KeptReason.UNPLACED: 2}


def test_a_slice_that_another_job_of_the_table_may_still_commit_stays(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    other_job = DeltaLog(local.spec, "other-job", DeltaTable(local.path), Environment())
    other_job.commit(Proposal("other-job", new_batch_id(), (StartPart(ZERO, 0, 1),)))
    part = local.stage(ZERO, 0, 10)
    assert vacuum(table).kept == vacuum(other_job).kept == {KeptReason.ACTIVE: 1, KeptReason.COMMITTABLE: 1}
    assert other_job.commit(Proposal("other-job", new_batch_id(), (part,))).accepted


def test_compacted_files_stay_readable_within_retention_and_are_deleted_after_it(lake: Lake) -> None:
    table = lake.start(ZERO)
    lake.append(table, ZERO, 0, 10)
    lake.append(table, ZERO, 10, 20)
    old_version = table.version
    compact(table, LARGE)
    report = vacuum(table)
    assert report.deleted == ()
    assert report.kept == {KeptReason.ACTIVE: 1, KeptReason.RETAINED: 2}
    assert lake.rows(old_version) == offsets(ZERO, 0, 20)
    table.handle.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    later = vacuum(table)
    assert [item.reason for item in later.deleted] == [Dead.REMOVED, Dead.REMOVED]
    assert on_disk(table) == active_paths(table.handle)
    assert lake.rows() == offsets(ZERO, 0, 20)


def test_the_retention_property_of_the_table_decides(tmp_path: Path) -> None:
    short = Lake(str(tmp_path / "t"), properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    table = short.start(ZERO)
    short.append(table, ZERO, 0, 10)
    short.append(table, ZERO, 10, 20)
    compact(table, LARGE)
    assert len(vacuum(table).deleted) == 2
    assert short.rows() == offsets(ZERO, 0, 20)


def test_a_file_removed_by_a_writer_whose_clock_is_ahead_stays(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    old_version = table.version
    compact(local.open(Environment(now=lambda: time.time() + 600)), LARGE)
    report = vacuum(table)
    assert report.deleted == ()
    assert report.kept == {KeptReason.ACTIVE: 1, KeptReason.RETAINED: 2}
    assert local.rows(old_version) == offsets(ZERO, 0, 20)


def test_removed_files_are_known_from_a_checkpoint_too(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    compact(table, LARGE)
    table.handle.create_checkpoint()
    local.append(table, ZERO, 20, 30)
    for entry in sorted((Path(local.path) / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert vacuum(local.open()).kept == {KeptReason.ACTIVE: 2, KeptReason.RETAINED: 2}


def test_the_output_of_a_dead_compaction_is_deleted_once_its_version_bound_has_passed(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.append(table, ZERO, 10, 20)
    (group,) = group_files(active_files(table.handle), LARGE)
    merged = merge_group(table, group, table.schema, table.version + 2)
    assert vacuum(table).kept == {KeptReason.ACTIVE: 2, KeptReason.COMMITTABLE: 1}
    local.append(table, ZERO, 20, 30)
    assert vacuum(table).deleted == ()
    local.append(table, ZERO, 30, 40)
    (deleted,) = vacuum(table).deleted
    assert (deleted.path, deleted.reason) == (merged.outputs[0].path, Dead.EXPIRED)
    assert local.rows() == offsets(ZERO, 0, 40)


def test_the_files_of_a_dead_replay_are_deleted_once_a_run_of_its_number_is_committed(local: Lake) -> None:
    table = local.start(ZERO)
    storage = table.storage()
    first, second = replayed_name("1", unique()), "day=d1/" + replayed_name("2", unique())
    for path in (first, second):
        storage.put(path, b"x")
    assert vacuum(table).kept == {KeptReason.COMMITTABLE: 2}
    table.commit_actions([], {replay_key(JOB): 1}, {})
    report = vacuum(table)
    assert [(item.path, item.reason) for item in report.deleted] == [(first, Dead.REPLAYED)]
    assert on_disk(table) == {second}


def test_the_full_vacuum_of_delta_rs_would_delete_files_that_penstock_keeps(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    staged = local.stage(ZERO, 10, 20)
    full = DeltaTable(local.path).vacuum(0, dry_run=True, full=True, enforce_retention_duration=False)
    assert paths(staged) <= set(full)
    assert vacuum(table).deleted == ()


# quarantine


def quarantined(lake: Lake) -> list[int]:
    frame = pl.read_delta(lake.quarantine(), storage_options=dict(lake.options) or None)
    return sorted(frame["offset"].to_list())


def test_quarantine_files_that_a_commit_listed_stay_until_they_are_appended(lake: Lake) -> None:
    table = lake.start(ZERO)
    quarantine = Quarantine(lake.job, table, table.environment)
    first = lake.stage_bad(ZERO, 0, 5)
    commit(table, first)
    quarantine.append([first])
    pending, orphan = lake.stage_bad(ZERO, 5, 8), lake.stage_bad(ZERO, 5, 8)
    commit(table, pending)
    # The process died here: the data commit lists the files, the quarantine table lacks them.
    report = vacuum(lake.open())
    assert report.deleted == ()
    assert report.kept == {KeptReason.ACTIVE: 1, KeptReason.PENDING: 2}
    quarantine.append_missing(table, [ZERO])
    report = vacuum(lake.open())
    assert [(item.table, item.path) for item in report.deleted] == [
        (lake.quarantine(), orphan.quarantine_files[0].path)
    ]
    assert report.kept == {KeptReason.ACTIVE: 2}
    assert quarantined(lake) == list(range(8))


def test_quarantine_files_of_a_batch_that_may_still_be_committed_stay(local: Lake) -> None:
    table = local.start(ZERO)
    quarantine = Quarantine(local.job, table, table.environment)
    first = local.stage_bad(ZERO, 0, 5)
    commit(table, first)
    quarantine.append([first])
    staged = local.stage_bad(ZERO, 5, 8)
    assert vacuum(table).deleted == ()
    commit(table, staged)
    quarantine.append([staged])
    assert quarantined(local) == list(range(8))


def test_quarantine_files_listed_and_appended_during_a_vacuum_stay(local: Lake) -> None:
    table = local.start(ZERO)
    quarantine = Quarantine(local.job, table, table.environment)
    first, second = local.stage_bad(ZERO, 0, 5), local.stage_bad(ZERO, 5, 8)
    commit(table, first)
    quarantine.append([first])

    def commit_second() -> None:
        commit(table, second)
        quarantine.append([second])

    ours = local.open(at_step("vacuum_listed", commit_second))
    assert vacuum(ours).deleted == ()
    assert quarantined(local) == list(range(8))


def test_quarantines_inside_the_folder_of_the_table_are_left_alone(lake: Lake) -> None:
    table = lake.start(ZERO)
    lake.append(table, ZERO, 0, 10)
    other = lake.stage_bad(ZERO, 0, 5, "other-job").quarantine_files[0].path
    report = vacuum(table)
    assert (report.deleted, report.kept) == ((), {KeptReason.ACTIVE: 1})
    assert open_storage(lake.quarantine("other-job"), lake.options).exists(other)


def test_vacuum_writes_nothing_to_the_log(local: Lake) -> None:
    table = local.start(ZERO)
    local.append(table, ZERO, 0, 10)
    local.stage(ZERO, 0, 10)
    log = Path(local.path) / "_delta_log"
    before = {entry.name: entry.read_text() for entry in log.iterdir()}
    vacuum(table)
    assert {entry.name: entry.read_text() for entry in log.iterdir()} == before
    assert json.loads(before[f"{table.version:020}.json"].splitlines()[0])["commitInfo"]["operation"] == "WRITE"
