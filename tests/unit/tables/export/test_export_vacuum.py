"""Vacuum of exports deletes only what no ledger entry can name any more (RULES C7, L7)."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.maintenance import vacuum as vacuum_command
from penstock.environment import Environment, new_batch_id
from penstock.errors import TransientError
from penstock.failpoints import Failpoint
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.names import compacted_name, staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import UNROUTED, Share
from penstock.lake.delta.keys import position_key
from penstock.logs.log import Partition, Slice
from penstock.tables.export.compact import compact
from penstock.tables.export.export import LedgerQuarantine
from penstock.tables.export.ledger.proposal import RoutedPart
from penstock.tables.export.table import PROBE
from penstock.tables.export.vacuum import drop_lost_files, vacuum
from penstock.tables.quarantine.table import Listed
from tests.export_root import (
    MONDAY,
    TOKEN,
    WEDNESDAY,
    ZERO,
    CopyingStorage,
    ExportRoot,
    filled,
    job_file,
    rows_in,
    rows_stored,
)
from tests.quarantine_url import export_quarantine
from tests.unit.tables.export.proof.damaged import checked, failed

STAGE_AGE_SECONDS = 3600.0
LATER = Environment(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS, sleep=lambda _: None)
UNIQUE = "0" * 32


def started(folder: Path, export: str = "") -> ExportRoot:
    root = ExportRoot(job_file(folder, export=export))
    root.start(ZERO)
    return root


def leave(root: ExportRoot, name: str, kind: str = "order") -> str:
    """A file in the staged folder of a type."""
    path = f"{root.table.places.staged}/{kind}/{name}"
    root.table.storage.put(path, b"leftover")
    return path


def leave_slice(root: ExportRoot, start: int, end: int, kind: str = "order", topic_id: str = ZERO.topic_id) -> str:
    return leave(root, staged_name(topic_id, 0, start, end, uuid.uuid4().hex), kind)


def deleted(root: ExportRoot, environment: Environment | None = None) -> list[str]:
    return sorted(each.path for each in vacuum(root.open(environment)).deleted)


def test_what_a_crash_left_goes_once_the_position_is_beyond_its_start(tmp_path: Path) -> None:
    root = started(tmp_path)
    path = leave_slice(root, 0, 10)
    assert deleted(root) == []
    root.write(ZERO, 0, 7, {("order", MONDAY): range(7)})
    assert deleted(root) == [path]
    assert root.staged() == []
    assert rows_in(root.lake) == root.expected


def test_the_staged_file_of_a_type_that_is_behind_stays(tmp_path: Path) -> None:
    """The partition has passed it, the type itself has not: its catch-up may still be committed."""
    root = started(tmp_path)
    root.write(ZERO, 0, 10, {("click", MONDAY): range(5)}, left={"order": range(5, 10)})
    of_clicks, of_orders = leave_slice(root, 5, 10, "click"), leave_slice(root, 5, 10, "order")
    assert deleted(root) == [of_clicks]
    root.catch_up(ZERO, {"order": 5}, 10, {("order", MONDAY): range(5, 10)})
    assert deleted(root) == [of_orders]


def test_a_source_that_an_entry_orders_to_be_moved_stays(tmp_path: Path) -> None:
    root = started(tmp_path)
    root.environment.reach = Failpoint("entry_written", "error").reach
    with pytest.raises(TransientError):
        root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    report = vacuum(root.open(Environment()))
    assert report.deleted == ()
    assert report.kept == {"an entry orders it to be moved": 1}
    root.open(Environment()).complete()
    assert sum(rows_in(root.lake).values()) == 10


def test_files_of_a_topic_life_or_type_that_the_ledger_does_not_know_stay(tmp_path: Path) -> None:
    root = started(tmp_path)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    leave_slice(root, 0, 10, topic_id="anotherLife")
    leave_slice(root, 0, 10, "refund")
    leave(root, "notes.txt")
    report = vacuum(root.open())
    assert report.deleted == ()
    assert report.kept == {"of a partition or type that the ledger does not know": 2, "not a name of Penstock": 1}


def test_the_output_of_a_compaction_goes_when_its_last_possible_entry_has_passed(tmp_path: Path) -> None:
    root = started(tmp_path)
    now = root.state.number
    over, open_still = (leave(root, compacted_name(number, UNIQUE)) for number in (now, now + 1))
    assert deleted(root) == [over]
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    assert deleted(root) == [open_still]


def test_a_compaction_that_was_given_up_leaves_an_output_that_no_entry_takes_later(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with pytest.raises(TransientError):
        compact(root.open(Environment(reach=Failpoint("compact_staged", "error").reach)))
    assert len(root.staged()) == 1
    assert deleted(root) == []
    assert rows_in(root.lake) == root.expected


def test_the_output_of_a_killed_compaction_goes_once_it_is_old_however_few_entries_follow(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with pytest.raises(TransientError):
        compact(root.open(Environment(sleep=lambda _: None, reach=Failpoint("compact_staged", "error").reach)))
    [output] = root.staged()
    assert vacuum(root.open()).deleted == (), "it may be at work"
    assert [each.path for each in vacuum(root.open(LATER), dry_run=True).deleted] == [output]
    assert [each.path for each in vacuum(root.open(LATER)).deleted] == [output]
    assert root.staged() == []
    assert vacuum(root.open(LATER)).deleted == ()


def test_a_compaction_that_slept_while_its_output_was_retired_leaves_everything_as_it_is(tmp_path: Path) -> None:
    root = filled(tmp_path)
    waiting = [lambda: vacuum(root.open(LATER))]

    def reach(step: str) -> None:
        if step == "compact_staged" and waiting:
            waiting.pop()()

    report = compact(root.open(Environment(sleep=lambda _: None, reach=reach)))
    assert report.dropped == 1, "the other type is compacted afterwards"
    assert rows_in(root.lake) == root.expected


def stuck(folder: Path) -> ExportRoot:
    """A type with a pending rename whose staged file somebody has deleted."""
    root = started(folder)
    blocked = root.lake / "order"
    root.write(ZERO, 0, 5, {("click", MONDAY): range(5)})
    blocked.write_text("in the way")
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 8), ("click", MONDAY): [8, 9]})
    assert [each.rows for each in root.state.pending] == [3]
    for path in root.staged():
        (root.lake / path).unlink()
    blocked.unlink()
    return root


def test_a_pending_rename_whose_staged_file_is_gone_is_dropped_on_demand(tmp_path: Path) -> None:
    root = stuck(tmp_path)
    root.open().complete()
    assert root.open().state().pending_types() == {"order"}, "nobody gives up by himself"
    app = typer.Typer()
    app.command()(vacuum_command)
    dry = json.loads(CliRunner().invoke(app, [str(root.job_path), "--drop-lost", "--dry-run", "--json"]).stdout)
    told = json.loads(CliRunner().invoke(app, [str(root.job_path), "--drop-lost", "--json"]).stdout)
    lost = {"type": "order", "path": f"order/day={MONDAY}/shop.0.7.parquet", "rows": 3}
    assert told["dropped"] == dry["dropped"] == [lost]
    root.table = root.open()
    state = root.state
    assert state.pending == ()
    assert (state.types["order"].rows, state.types["order"].files) == (0, 0)
    totals = state.of(ZERO).totals
    assert (totals.written, totals.vanished, totals.conserved) == (7, 3, True)
    assert failed(checked(root.job)) == []
    root.write(ZERO, 10, 15, {("order", MONDAY): range(10, 15)})
    assert failed(checked(root.job)) == []


def test_a_file_that_is_only_out_of_place_is_not_dropped(tmp_path: Path) -> None:
    root = started(tmp_path)
    (root.lake / "order").write_text("in the way")
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    assert drop_lost_files(root.open()) == ()
    (root.lake / "order").unlink()
    root.open().complete()
    assert rows_in(root.lake) == root.expected


def test_old_probes_go_and_young_ones_stay(tmp_path: Path) -> None:
    root = started(tmp_path)
    probe = f"order/day={MONDAY}/_probe.{UNIQUE}"
    root.table.storage.put(probe, b"")
    assert deleted(root) == []
    assert deleted(root, LATER) == [probe]


def test_old_probes_in_the_log_of_a_types_table_go_and_young_ones_stay(tmp_path: Path) -> None:
    """A replay asks so whether the table will take its files; a process may die before it takes the probe away."""
    root = filled(tmp_path, export="format: delta")
    probe = f"order/_delta_log/{PROBE}{UNIQUE}"
    root.table.storage.put(probe, b"")
    assert vacuum(root.open()).kept["staged or probed a short while ago"] == 1
    assert deleted(root, LATER) == [probe]
    assert failed(checked(root.job)) == []


def test_a_dry_run_deletes_nothing_and_tells_the_same(tmp_path: Path) -> None:
    root = started(tmp_path)
    path = leave_slice(root, 0, 10)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    report = vacuum(root.open(), dry_run=True)
    assert ([each.path for each in report.deleted], report.dry_run) == ([path], True)
    assert root.staged() == [path]
    assert report.deleted[0].size_bytes == len(b"leftover")


def test_where_a_rename_is_a_copy_sources_are_kept_for_a_while(tmp_path: Path) -> None:
    storage = CopyingStorage()
    root = filled(tmp_path, storage)
    sources = sorted(each.path for each in storage.list(root.table.places.staged))
    assert len(sources) == 14
    assert deleted(root) == []
    # The last entry's source may still be copied by whoever finishes it.
    last = [each.source for each in root.state.unfinished.renames]
    assert deleted(root, LATER) == [each for each in sources if each not in last]
    assert rows_stored(storage) == root.expected


def test_vacuum_and_a_batch_in_flight_do_not_meet(tmp_path: Path) -> None:
    """What is listed before a commit and checked after it is checked by the state after it."""
    root = started(tmp_path)
    shares = root.stage(ZERO, (0, 10), {("order", MONDAY): range(10)}, pieces=(0,))
    part = RoutedPart(Slice(ZERO, 0, 10, 0), TOKEN, shares, {"order": 0, "click": 0})

    def commit(step: str) -> None:
        if step == "vacuum_listed":
            root.table.land(new_batch_id(), (part,))

    assert vacuum(root.open(Environment(reach=commit))).deleted == ()
    assert sum(rows_in(root.lake).values()) == 10


# the quarantine


def stage_bad(root: ExportRoot, partition: Partition, start: int, end: int) -> tuple[StagedFile, ...]:
    """Write quarantine files of a slice as a task does: staged in the folder of the quarantine table."""
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "job": root.job.name,
                "topic": partition.topic,
                "topic_id": partition.topic_id,
                "partition": partition.number,
                "offset": offset,
                "value": b"bad",
                "error": "not JSON",
                "quarantined_at": datetime.now(UTC),
            }
            for offset in range(start, end)
        ],
        schema=QUARANTINE_SCHEMA,
    )
    writer = StagedWriter(
        WriteOptions(export_quarantine(root.job), QUARANTINE_SCHEMA),
        lambda: staged_name(partition.topic_id, partition.number, start, end, uuid.uuid4().hex),
        partition.topic,
        partition.number,
    )
    writer.write(rows)
    return writer.finish()


def commit_bad(root: ExportRoot, start: int, end: int) -> None:
    """Commit a slice of bad records only."""
    share = Share(
        Counts(end - start, quarantined=end - start), start, quarantine_files=stage_bad(root, ZERO, start, end)
    )
    part = RoutedPart(Slice(ZERO, start, end, start), TOKEN, {UNROUTED: share}, {"order": start, "click": start})
    assert not root.table.land(new_batch_id(), (part,)).refused


def quarantine_of(root: ExportRoot) -> LedgerQuarantine:
    return LedgerQuarantine(root.job, Environment())


def append_listed(root: ExportRoot) -> None:
    listing = root.state.of(ZERO).listing
    assert listing is not None
    quarantine_of(root).append_listed([Listed(position_key(root.job.name, ZERO), listing.number, listing.files)])


@pytest.mark.parametrize("export", ["format: parquet", "format: delta"])
def test_listed_quarantine_files_stay_until_they_are_appended_and_others_go(tmp_path: Path, export: str) -> None:
    root = started(tmp_path, export)
    commit_bad(root, 0, 10)
    append_listed(root)
    (orphan,) = stage_bad(root, ZERO, 10, 20)
    commit_bad(root, 10, 20)
    assert deleted(root, LATER) == []
    append_listed(root)
    (ahead,) = stage_bad(root, ZERO, 20, 30)
    report = vacuum(root.open(LATER))
    assert [(each.table, each.path) for each in report.deleted] == [(export_quarantine(root.job), orphan.path)]
    assert report.kept == {"active": 2, "may still be committed": 1}
    assert (Path(export_quarantine(root.job)) / ahead.path).exists()


def test_quarantine_files_stay_while_a_type_is_behind_them(tmp_path: Path) -> None:
    root = started(tmp_path)
    commit_bad(root, 0, 10)
    append_listed(root)
    root.write(ZERO, 10, 20, {}, left={"order": [10]})
    (staged,) = stage_bad(root, ZERO, 10, 20)
    assert deleted(root, LATER) == []
    root.catch_up(ZERO, {"order": 10}, 20, {("order", MONDAY): [10]})
    assert deleted(root, LATER) == [staged.path]


def test_the_job_says_how_old_a_leftover_must_be(tmp_path: Path) -> None:
    root = started(tmp_path)
    root.job = replace(root.job, limits=replace(root.job.limits, stage_age_seconds_max=0.0))
    probe = f"order/day={WEDNESDAY}/_probe.{UNIQUE}"
    root.table.storage.put(probe, b"")
    assert deleted(root) == [probe]


def test_the_command_tells_what_went_and_what_stayed(tmp_path: Path) -> None:
    root = started(tmp_path)
    gone = leave_slice(root, 0, 10)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    leave_slice(root, 10, 20)
    app = typer.Typer()
    app.command()(vacuum_command)
    job = str(root.job_path)
    assert "1 files would go, 8 bytes" in CliRunner().invoke(app, [job, "--dry-run"]).stdout
    told = json.loads(CliRunner().invoke(app, [job, "--json"]).stdout)
    assert [(each["table"], each["path"]) for each in told["deleted"]] == [(str(root.lake), gone)]
    assert told["kept"] == {"may still be named by an entry": 1}
