"""Vacuum of exports deletes only what no commit can name any more (RULES C7)."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.maintenance import vacuum as vacuum_command
from penstock.environment import Environment
from penstock.flow.write.names import compacted_name, replayed_name, staged_name
from penstock.logs.log import Slice
from penstock.storage import open_storage
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.upkeep import vacuum
from tests.support.export_root import (
    MONDAY,
    ZERO,
    CopyingStorage,
    ExportRoot,
    filled,
    job_file,
    rows_in,
    rows_stored,
)
from tests.support.pipes import CrashError
from tests.support.quarantine_url import export_quarantine
from tests.unit.tables.export.bad_records import in_quarantine, stage_bad, write_with_bad
from tests.unit.tables.export.processes import acting_at, compacted, dying_at, quiet, restarted

STAGE_AGE_SECONDS = 3600.0
LATER = quiet(now=lambda: time.time() + 2 * STAGE_AGE_SECONDS)
UNIQUE = "0" * 32
FORMATS = pytest.mark.parametrize("export", ["format: parquet", "format: delta"])


def started(folder: Path, export: str = "") -> ExportRoot:
    root = ExportRoot(job_file(folder, export=export))
    root.start(ZERO)
    return root


def leave(root: ExportRoot, name: str, kind: str = "order") -> str:
    """A file in the folder in which files of a type are staged."""
    folder = f"{root.logs.staged}/{kind}" if root.logs.is_plain else f"{kind}/day={MONDAY}"
    root.logs.storage.put(f"{folder}/{name}", b"leftover")
    return f"{folder}/{name}"


def leave_slice(root: ExportRoot, start: int, end: int, kind: str = "order", topic_id: str = ZERO.topic_id) -> str:
    return leave(root, staged_name(topic_id, 0, start, end, uuid.uuid4().hex), kind)


def deleted(root: ExportRoot, environment: Environment | None = None) -> list[str]:
    """What a vacuum deletes, below the root."""
    deleted = vacuum(root.open(environment)).deleted
    return sorted(f"{file.table}/{file.path}".removeprefix(f"{root.lake}/") for file in deleted)


@FORMATS
def test_files_of_a_crash_are_deleted_once_the_position_is_beyond_their_start(tmp_path: Path, export: str) -> None:
    root = started(tmp_path, export)
    path = leave_slice(root, 0, 10)
    assert deleted(root) == []
    root.write(ZERO, 0, 7, {("order", MONDAY): range(7)})
    assert deleted(root) == [path]
    assert root.staged() == []


def test_vacuum_keeps_the_staged_file_of_a_lagging_type(tmp_path: Path) -> None:
    """The partition has passed it, the type itself has not: its catch-up may still be committed."""
    root = started(tmp_path)
    root.write(ZERO, 0, 10, {("click", MONDAY): range(5)}, deferred={"order": range(5, 10)})
    of_clicks, of_orders = leave_slice(root, 5, 10, "click"), leave_slice(root, 5, 10, "order")
    assert deleted(root) == [of_clicks]
    root.catch_up(ZERO, {"order": 5}, 10, {("order", MONDAY): range(5, 10)})
    assert deleted(root) == [of_orders]


@pytest.mark.parametrize("step", ["type_committed", "renaming"])
def test_vacuum_keeps_a_committed_file_that_is_not_renamed_yet(tmp_path: Path, step: str) -> None:
    root = started(tmp_path)
    root.table = root.open(dying_at(step))
    with pytest.raises(CrashError):
        root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    report = vacuum(root.open())
    assert (report.deleted, report.kept) == ((), {"committed, not yet in its place": 1})
    restarted(root)
    assert sum(rows_in(root.lake).values()) == 10


def test_vacuum_keeps_foreign_files_and_files_of_unknown_topics_and_types(tmp_path: Path) -> None:
    root = started(tmp_path)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    leave_slice(root, 0, 10, topic_id="anotherTopic")
    of_unknown_type = leave_slice(root, 0, 10, "refund")
    leave(root, "notes.txt")
    report = vacuum(root.open())
    assert (report.deleted, report.kept) == (
        (),
        {"of a partition without a position": 1, "not a name of Penstock": 1},
    )
    assert (root.lake / of_unknown_type).exists()


@FORMATS
def test_the_output_of_a_compaction_goes_when_its_last_possible_commit_has_passed(tmp_path: Path, export: str) -> None:
    root = started(tmp_path, export)
    log = root.logs.find_type_log("order")
    assert log is not None
    over, open_still = (leave(root, compacted_name(log.version + more, UNIQUE)) for more in (0, 1))
    assert deleted(root) == [over]
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    assert deleted(root) == [open_still]


def test_the_output_of_a_compaction_that_died_stays_while_a_commit_may_name_it(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with pytest.raises(CrashError):
        compacted(root.open(dying_at("compact_staged")))
    assert len(root.staged()) == 1
    assert deleted(root) == []
    assert rows_in(root.lake) == root.expected


def test_a_vacuum_in_the_middle_of_a_compaction_takes_nothing_that_it_needs(tmp_path: Path) -> None:
    for step in ("compact_staged", "compact_checked", "removing", "renaming"):
        (tmp_path / step).mkdir()
        root = filled(tmp_path / step)
        report = compacted(root.open(acting_at(step, lambda root=root: vacuum(root.open()))))  # type: ignore[misc]
        assert report.files_removed == 12
        assert rows_in(root.lake) == root.expected


@FORMATS
def test_a_staged_file_of_a_replay_stays_until_its_run_is_over(tmp_path: Path, export: str) -> None:
    root = started(tmp_path, export)
    leave(root, replayed_name("1", uuid.uuid4().hex))
    assert deleted(root, LATER) == []


def test_a_dry_run_deletes_nothing_and_reports_the_same(tmp_path: Path) -> None:
    root = started(tmp_path)
    path = leave_slice(root, 0, 10)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    report = vacuum(root.open(), dry_run=True)
    assert ([file.path for file in report.deleted], report.dry_run) == ([path], True)
    assert root.staged() == [path]
    assert report.deleted[0].size_bytes == len(b"leftover")


def test_no_staged_copy_is_left_after_a_rename_by_copy(tmp_path: Path) -> None:
    storage = CopyingStorage()
    root = filled(tmp_path, storage)
    assert list(storage.list(root.logs.staged)) == []
    assert deleted(root, LATER) == []
    assert rows_stored(storage) == root.expected


@FORMATS
def test_a_batch_that_commits_in_the_middle_of_a_vacuum_keeps_its_files(tmp_path: Path, export: str) -> None:
    """What is listed before a commit is judged by the logs after it."""
    root = started(tmp_path, export)
    shares = root.stage(ZERO, (0, 10), {("order", MONDAY): range(10)}, pieces=(0,))
    takes = {"order": 0, "click": 0}
    vacuumed = acting_at("vacuum_listed", lambda: root.land(Slice(ZERO, 0, 10, 0), shares, takes))
    assert vacuum(root.open(vacuumed)).deleted == ()
    assert root.state.of(ZERO).position == 10
    log = root.open().logs.find_type_log("order")
    assert log is not None
    assert [open_storage(str(root.lake), {}).exists(path) for path in _paths(root, log.active_files())] == [True]


def _paths(root: ExportRoot, files: object) -> list[str]:
    prefix = "" if root.logs.is_plain else "order/"
    return [f"{prefix}{file.path}" for file in files]  # type: ignore[attr-defined]


@FORMATS
def test_a_type_that_cannot_be_read_does_not_block_the_others(tmp_path: Path, export: str) -> None:
    root = started(tmp_path, export)
    kept, dead = leave_slice(root, 0, 10, "order"), leave_slice(root, 0, 10, "click")
    root.write(ZERO, 0, 10, {("order", MONDAY): range(5), ("click", MONDAY): range(5, 10)})
    folder = root.lake / ("_penstock/shop/types/order" if root.logs.is_plain else "order") / "_delta_log"
    folder.rename(folder.with_name("away"))
    folder.write_text("in the way")
    report = vacuum(ExportTable(ExportLogs(root.job, quiet())))
    assert [reason.split(":")[0] for reason in report.failed] == ["order"]
    folder.unlink()
    folder.with_name("away").rename(folder)
    assert [(root.lake / path).exists() for path in (kept, dead)] == [True, False]
    assert deleted(root) == [kept]


# the quarantine


@FORMATS
@pytest.mark.parametrize("of", ["", "order"], ids=["of no type", "of a type"])
def test_listed_quarantine_files_stay_until_they_are_appended_and_others_go(
    tmp_path: Path, export: str, of: str
) -> None:
    root = started(tmp_path, export)
    write_with_bad(root, ZERO, (0, 10), {}, range(10), of)
    orphan = stage_bad(root, ZERO, (10, 20), range(10, 20))
    root.table = root.open(dying_at("committed"))
    with suppress(CrashError):
        write_with_bad(root, ZERO, (10, 20), {}, range(10, 20), of)
    assert root.state.of(ZERO).position == 20
    assert deleted(root, LATER) == []
    restarted(root)
    assert in_quarantine(root) == list(range(20))
    ahead = stage_bad(root, ZERO, (20, 30), range(20, 30))
    report = vacuum(root.open(LATER))
    assert [(file.table, file.path) for file in report.deleted] == [(export_quarantine(root.job), orphan.path)]
    assert (Path(export_quarantine(root.job)) / ahead.path).exists()
    assert in_quarantine(root) == list(range(20))


def test_quarantine_files_stay_while_a_type_lags_behind_them(tmp_path: Path) -> None:
    root = started(tmp_path)
    write_with_bad(root, ZERO, (0, 10), {}, range(10))
    root.write(ZERO, 10, 20, {}, deferred={"order": [10]})
    staged = stage_bad(root, ZERO, (10, 20), range(10, 20))
    assert deleted(root, LATER) == []
    root.catch_up(ZERO, {"order": 10}, 20, {("order", MONDAY): [10]})
    report = vacuum(root.open(LATER))
    assert [file.path for file in report.deleted] == [staged.path]


def test_the_command_reports_deleted_and_kept_files(tmp_path: Path) -> None:
    root = started(tmp_path)
    dead = leave_slice(root, 0, 10)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    leave_slice(root, 10, 20)
    app = typer.Typer()
    app.command()(vacuum_command)
    job = str(root.job_path)
    assert "1 files would go, 8 bytes" in CliRunner().invoke(app, [job, "--dry-run"]).stdout
    report = json.loads(CliRunner().invoke(app, [job, "--json"]).stdout)
    assert [(file["table"], file["path"]) for file in report["deleted"]] == [(str(root.lake), dead)]
    assert (report["kept"], report["failed"]) == ({"may still be committed": 1}, [])
