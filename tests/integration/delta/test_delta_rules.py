"""The rules of the Delta commit, each with the schedule that it prevents (RULES C2, C3, C4, C6, C7, C8)."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from penstock.environment import Environment, new_batch_id
from penstock.errors import TransientError, UserError
from penstock.flow.write.manifest import Counts
from penstock.lake.delta.files import StagedFileGoneError
from penstock.lake.delta.keys import position_key, state_of
from penstock.lake.delta.library import ConflictError, MissingTableError
from penstock.lake.delta.opening import open_table
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import COMMIT_ATTEMPTS_MAX, DeltaLog, SchemaMovedError
from penstock.lake.proposal import FencePart, Proposal, SlicePart, StartPart
from penstock.lake.state import Totals
from penstock.logs.log import Slice
from tests.support.lake import JOB, ONE, SCHEMA, ZERO, Lake, at_step, commit, offsets, with_token

DAY_SECONDS = 86_400


class Unlucky(DeltaLog):
    """A table whose next commit ends in an error, after it landed or before it was tried."""

    landed_first: bool | None = None

    def commit_actions(self, *args: object, **named: object) -> None:
        fails, self.landed_first = self.landed_first, None
        if fails is not False:
            super().commit_actions(*args, **named)  # type: ignore[arg-type]
        if fails is not None:
            raise TransientError("the connection broke")


def unlucky(lake: Lake, landed_first: bool) -> Unlucky:
    handle = DeltaTable(lake.path, storage_options=dict(lake.options))
    table = Unlucky(lake.spec, JOB, handle, Environment(sleep=lambda seconds: None))
    table.landed_first = landed_first
    return table


# C2: read back


@pytest.mark.parametrize("landed_first", [True, False])
def test_after_an_error_the_batch_is_there_once_whether_or_not_it_had_landed(lake: Lake, landed_first: bool) -> None:
    version = lake.start(ZERO).version
    outcome = commit(unlucky(lake, landed_first), lake.stage(ZERO, 0, 10))
    assert outcome.refused == ()
    assert outcome.version == version + 1
    assert lake.open().version == version + 1
    assert lake.rows() == offsets(ZERO, 0, 10)


def test_a_batch_that_landed_before_the_error_is_recognised_behind_the_commits_of_others(local: Lake) -> None:
    other = local.start(ZERO, ONE)

    class ErrorAfterOthers(Unlucky):
        def commit_actions(self, *args: object, **named: object) -> None:
            try:
                super().commit_actions(*args, **named)
            except TransientError:
                local.append(other, ONE, 0, 5)
                local.append(other, ONE, 5, 9)
                raise

    table = ErrorAfterOthers(local.spec, JOB, DeltaTable(local.path), Environment(sleep=lambda seconds: None))
    table.landed_first = True
    assert commit(table, local.stage(ZERO, 0, 10)).refused == ()
    assert local.rows() == offsets(ZERO, 0, 10) + offsets(ONE, 0, 9)
    state = table.state([ZERO, ONE])
    assert (state.of(ZERO).position, state.of(ONE).position) == (10, 9)


def test_a_failed_commit_deletes_nothing(local: Lake) -> None:
    table = local.start(ZERO)
    winner, loser = local.stage(ZERO, 0, 10), local.stage(ZERO, 0, 10)
    commit(table, winner)
    assert commit(local.open(), loser).accepted == ()
    storage = table.storage()
    assert all(storage.exists(file.path) for file in (*winner.files, *loser.files))


# C3: compare and swap


def test_a_stale_handle_reloads_and_both_batches_are_there_once(lake: Lake) -> None:
    first = lake.start(ZERO, ONE)
    stale = lake.open(at_step("checked", lambda: lake.append(first, ZERO, 0, 10)))
    assert lake.append(stale, ONE, 0, 10).refused == ()
    assert lake.rows() == offsets(ZERO, 0, 10) + offsets(ONE, 0, 10)


def test_an_attempt_on_a_version_that_moved_is_refused_by_the_library(lake: Lake) -> None:
    first = lake.start(ZERO, ONE)
    stale = lake.open()
    lake.append(first, ZERO, 0, 10)
    version = first.version
    staged = lake.stage(ONE, 0, 10)
    with pytest.raises(ConflictError):
        stale.commit_actions([stale.add_action(file) for file in staged.files], {}, {})
    assert lake.open().version == version
    assert lake.rows() == offsets(ZERO, 0, 10)


def test_of_two_commits_of_the_same_slice_one_is_refused(lake: Lake) -> None:
    first = lake.start(ZERO)
    ours, theirs = lake.stage(ZERO, 0, 10), lake.stage(ZERO, 0, 10)
    stale = lake.open(at_step("checked", lambda: commit(first, theirs)))
    outcome = commit(stale, ours)
    assert (outcome.version, outcome.accepted) == (None, ())
    assert [item.partition for item in outcome.refused] == [ZERO]
    assert lake.rows() == offsets(ZERO, 0, 10)


def test_a_commit_that_always_conflicts_gives_up_within_its_bound(local: Lake) -> None:
    other = local.start(ZERO, ONE)
    rounds: list[int] = []

    def outrun(step: str) -> None:
        if step == "checked":
            local.append(other, ONE, len(rounds), len(rounds) + 1)
            rounds.append(1)

    table = local.open(Environment(sleep=lambda seconds: None, at_step=outrun))
    with pytest.raises(TransientError):
        local.append(table, ZERO, 0, 10)
    assert len(rounds) == COMMIT_ATTEMPTS_MAX
    assert local.rows() == offsets(ONE, 0, COMMIT_ATTEMPTS_MAX)


def test_the_same_staged_files_land_after_a_column_was_added(lake: Lake) -> None:
    lake.start(ZERO)
    other = lake.open()
    stale = lake.open(at_step("checked", lambda: other.add_columns(pa.schema([("late", pa.int64())]))))
    staged = lake.stage(ZERO, 0, 10)
    assert commit(stale, staged).accepted == (staged,)
    assert lake.rows() == offsets(ZERO, 0, 10)
    assert "late" in lake.open().schema.names


def test_staged_files_that_no_longer_fit_the_columns_are_not_committed(local: Lake) -> None:
    local.start(ZERO)
    staged = local.stage(ZERO, 0, 10)

    def recreate_with_another_type() -> None:
        schema = pa.schema([field if field.name != "text" else pa.field("text", pa.int64()) for field in SCHEMA])
        write_deltalake(
            local.path,
            pa.Table.from_pylist([], schema),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["day"],
        )

    stale = local.open(at_step("checked", recreate_with_another_type))
    with pytest.raises(SchemaMovedError):
        commit(stale, staged)
    assert open_table(local.spec, JOB).state([ZERO]).of(ZERO).position == 0
    assert pl.read_delta(local.path).is_empty()


# C4: refusal is per partition


def test_a_stale_slice_is_refused_alone_and_its_files_are_not_visible(lake: Lake) -> None:
    first = lake.start(ZERO, ONE)
    lake.append(first, ZERO, 0, 10)
    fine, stale = lake.stage(ONE, 0, 7), lake.stage(ZERO, 0, 12)
    outcome = commit(lake.open(), fine, stale)
    assert outcome.accepted == (fine,)
    assert [item.partition for item in outcome.refused] == [ZERO]
    assert lake.rows() == offsets(ZERO, 0, 10) + offsets(ONE, 0, 7)
    state = lake.open().state([ZERO, ONE])
    assert (state.of(ZERO).position, state.of(ONE).position) == (10, 7)
    assert (state.of(ZERO).totals.written, state.of(ONE).totals.written) == (10, 7)


def test_a_slice_that_would_leave_a_hole_is_refused(local: Lake) -> None:
    table = local.start(ZERO)
    assert local.append(table, ZERO, 5, 10).accepted == ()
    assert table.state([ZERO]).of(ZERO).position == 0
    assert local.rows() == []


def test_an_older_token_is_refused_and_a_newer_one_fences(lake: Lake) -> None:
    table = lake.start(ZERO, ONE)
    zombie = lake.open()
    version = table.commit(Proposal(JOB, new_batch_id(), (FencePart(ZERO, 3),))).version
    outcome = commit(zombie, with_token(lake.stage(ZERO, 0, 10), 2), lake.stage(ONE, 0, 10))
    assert [item.partition for item in outcome.refused] == [ZERO]
    assert outcome.version is not None
    assert version is not None
    assert outcome.version == version + 1
    assert commit(table, with_token(lake.stage(ZERO, 0, 10), 3)).refused == ()
    assert lake.rows() == offsets(ZERO, 0, 10) + offsets(ONE, 0, 10)
    assert table.state([ZERO]).of(ZERO).token == 3


def test_an_older_token_is_refused_when_the_fence_comes_during_the_commit(lake: Lake) -> None:
    table = lake.start(ZERO)
    fence = Proposal(JOB, new_batch_id(), (FencePart(ZERO, 2),))
    zombie = lake.open(at_step("checked", lambda: table.commit(fence)))
    outcome = commit(zombie, with_token(lake.stage(ZERO, 0, 10), 1))
    assert outcome.accepted == ()
    assert lake.rows() == []


def test_a_partition_start_is_committed_once(lake: Lake) -> None:
    table = lake.start(ZERO, offset=100)
    rival = lake.open().commit(Proposal(JOB, new_batch_id(), (StartPart(ZERO, 200, 1), StartPart(ONE, 5, 1))))
    assert [item.partition for item in rival.refused] == [ZERO]
    state = table.state([ZERO, ONE])
    assert (state.of(ZERO).position, state.of(ZERO).origin, state.of(ONE).position) == (100, 100, 5)


# C6: counts last


def test_totals_survive_the_cleanup_of_old_log_entries(local: Lake) -> None:
    table = local.start(ZERO, ONE, offset=5)
    gap = SlicePart(Slice(ZERO, 5, 20, 12), 1, Counts(read=6, written=3, quarantined=1, filtered=1, skipped=1))
    commit(table, gap)
    local.append(table, ZERO, 20, 24)
    local.append(table, ONE, 5, 6)
    before = table.state([ZERO, ONE])
    # [5, 12) is a gap, [12, 20) holds 6 records and 2 holes; then 4 records more.
    assert before.of(ZERO).totals == Totals(read=10, written=7, quarantined=1, filtered=1, skipped=1, holes=2, gap=7)
    assert before.of(ZERO).totals.conserved
    assert before.of(ZERO).totals.offsets == 24 - 5

    table.handle.create_checkpoint()
    log = Path(local.path) / "_delta_log"
    long_ago = time.time() - 40 * DAY_SECONDS
    for entry in log.glob("*.json"):
        os.utime(entry, (long_ago, long_ago))
    DeltaTable(local.path).cleanup_metadata()
    assert len(list(log.glob("*.json"))) <= 1

    fresh = DeltaTable(local.path)
    assert state_of(fresh.version(), fresh.transaction_version, JOB, [ZERO, ONE]) == before
    after = local.open()
    local.append(after, ZERO, 24, 30)
    assert after.state([ZERO]).of(ZERO).totals.written == 13


# C7: no commit names a file that is not there


def test_a_batch_that_lost_a_file_is_not_committed(lake: Lake) -> None:
    table = lake.start(ZERO)
    staged = lake.stage(ZERO, 0, 10)
    table.storage().delete(staged.files[0].path)
    with pytest.raises(StagedFileGoneError) as raised:
        commit(table, staged)
    assert "it does not exist" in raised.value.detail
    assert "share" in raised.value.hint
    assert lake.open().state([ZERO]).of(ZERO).position == 0


def test_a_batch_with_a_file_that_is_cut_short_is_not_committed(lake: Lake) -> None:
    table = lake.start(ZERO)
    staged = lake.stage(ZERO, 0, 10)
    [file] = staged.files
    table.storage().put(file.path, table.storage().read(file.path)[:-1])
    with pytest.raises(StagedFileGoneError) as raised:
        commit(table, staged)
    assert f"{file.size_bytes - 1} of {file.size_bytes} bytes" in raised.value.detail
    assert lake.open().state([ZERO]).of(ZERO).position == 0


def test_a_batch_with_all_its_files_is_committed_whatever_their_folders_are_called(lake: Lake) -> None:
    table = lake.start(ZERO)
    staged = lake.stage(ZERO, 0, 10, ["a b", "100%", None])
    assert commit(table, staged).refused == ()
    assert sorted(offset for _, offset in lake.days()) == list(range(10))


# C8: other writers


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.logRetentionDuration": "interval 12 hours"},
        {"delta.logRetentionDuration": "whenever"},
        {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"},
        {"delta.checkpointPolicy": "v2"},
        {"delta.setTransactionRetentionDuration": "interval 7 days"},
    ],
)
def test_a_table_whose_properties_break_the_rules_is_refused(tmp_path: Path, properties: dict[str, str]) -> None:
    path = str(tmp_path / "foreign")
    create_foreign(path, properties)
    with pytest.raises(UserError):
        open_table(TablePlace(path=path), JOB)


def create_foreign(path: str, properties: dict[str, str]) -> None:
    """A table as another engine may leave it: the entry is written by hand, the library would check it."""
    DeltaTable.create(path, Schema.from_arrow(pa.schema([("a", pa.int64())])))
    entry = Path(path) / "_delta_log" / f"{0:020}.json"
    text = entry.read_text()
    assert '"configuration":{}' in text
    pairs = ",".join(f'"{name}":"{value}"' for name, value in properties.items())
    entry.write_text(text.replace('"configuration":{}', f'"configuration":{{{pairs}}}'))


def test_a_table_with_a_constraint_is_refused(local: Lake) -> None:
    local.start(ZERO)
    DeltaTable(local.path).alter.add_constraint({"positive": "offset >= 0"})
    with pytest.raises(UserError) as caught:
        open_table(local.spec, JOB)
    assert "positive" in caught.value.detail


def test_a_table_with_other_partition_columns_is_refused(local: Lake) -> None:
    local.start(ZERO)
    with pytest.raises(UserError):
        open_table(replace(local.spec, partition_by=()), JOB)


def test_a_column_that_refuses_null_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "strict")
    DeltaTable.create(path, Schema.from_arrow(pa.schema([pa.field("a", pa.int64(), nullable=False)])))
    with pytest.raises(UserError):
        open_table(TablePlace(path=path), JOB)


def test_a_day_of_log_retention_is_enough(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"), properties={"delta.logRetentionDuration": "interval 1 day"})
    lake.append(lake.start(ZERO), ZERO, 0, 3)
    assert lake.rows() == offsets(ZERO, 0, 3)


def test_rows_of_another_writer_are_kept(local: Lake) -> None:
    table = local.start(ZERO)
    foreign = pa.Table.from_pylist([{"day": "d1", "partition": 9, "offset": 1, "text": "theirs"}], SCHEMA)
    write_deltalake(local.path, foreign, mode="append")
    local.append(table, ZERO, 0, 2)
    write_deltalake(local.path, foreign, mode="append", commit_properties=CommitProperties({"by": "them"}))
    local.append(table, ZERO, 2, 4)
    assert local.rows() == [*offsets(ZERO, 0, 4), (9, 1), (9, 1)]
    assert table.transaction(position_key(JOB, ZERO)) == 4


# opening


def test_a_missing_table_is_distinguished_from_an_unreachable_store(tmp_path: Path) -> None:
    with pytest.raises(MissingTableError):
        open_table(TablePlace(path=str(tmp_path / "none")), JOB)
    # A path that contains the number of a status code is not taken for that status.
    away = {
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "max_retries": "0",
    }
    with pytest.raises(TransientError):
        open_table(TablePlace(path="s3://lake/t403", storage_options=away), JOB)


def test_processes_that_create_the_table_at_once_share_it(local: Lake) -> None:
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(lambda _: local.open(), range(8)))
    assert {table.handle.metadata().id for table in tables} == {DeltaTable(local.path).metadata().id}
    assert local.open().version == 0
