"""A day is marked complete only while readers see all of it, whoever dies, sleeps or compacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import TransientError, UserError
from penstock.failpoints import Failpoint
from penstock.job.spec import job_of
from penstock.lake.storage import open_storage
from penstock.tables.export.compact import compact
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.day_answers import DayState, day_answers
from penstock.tables.export.table import ExportTable
from tests.export_root import MONDAY, TUESDAY, WEDNESDAY, ZERO, ExportRoot, job_file, rows_in
from tests.watched_storage import WatchedStorage


def dying_at(step: str, visit: int = 1) -> Environment:
    return Environment(sleep=lambda _: None, reach=Failpoint(step, "error", visit).reach)


def marker(root: ExportRoot, name: str = "order", day: str = MONDAY) -> dict[str, object] | None:
    path = root.lake / "_penstock" / "shop" / "complete" / name / f"{day}.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def asked(root: ExportRoot, day: str = MONDAY, name: str = "order") -> DayState:
    [found] = day_answers(job_of(root.job, ExportSpec), day, [name])
    return found.state


def monday(folder: Path) -> ExportRoot:
    """Two files of Monday, which is open."""
    root = ExportRoot(job_file(folder))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)})
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)}, watermark=MONDAY)
    return root


def closed_monday(folder: Path) -> ExportRoot:
    root = monday(folder)
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    return root


def with_table(root: ExportRoot, environment: Environment, act: Callable[[], object]) -> None:
    """Another process of the job, which dies on the way."""
    root.table = root.open(environment)
    with pytest.raises(TransientError):
        act()
    root.table = root.open()


def test_a_day_is_marked_once_its_files_are_in_place(tmp_path: Path) -> None:
    root = monday(tmp_path)
    assert marker(root) is None
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    assert marker(root) == {
        "type": "order",
        "day": MONDAY,
        "entry": root.state.number,
        "watermark": f"{WEDNESDAY}T12:00:00+00:00",
    }
    assert asked(root) is DayState.COMPLETE
    assert marker(root, day=WEDNESDAY) is None


def test_killed_between_the_entry_that_closes_a_day_and_its_renames_the_day_is_not_complete(tmp_path: Path) -> None:
    """The entry brings Monday's last rows and, with them, the watermark that closes it."""
    root = monday(tmp_path)
    rows = {("order", MONDAY): range(10, 15), ("click", WEDNESDAY): range(15, 20)}
    with_table(root, dying_at("entry_written"), lambda: root.write(ZERO, 10, 20, rows, watermark=WEDNESDAY))
    assert ("order", MONDAY) not in root.state.open_days, "the ledger expects no more rows"
    assert marker(root) is None
    assert asked(root) is DayState.NOT_VISIBLE
    root.table.complete()
    assert asked(root) is DayState.COMPLETE
    assert marker(root) is not None
    assert sum(rows_in(root.lake).values()) == 20


@pytest.mark.parametrize("step", ["entry_written", "removing", "removed", "renaming"])
def test_killed_in_the_middle_of_a_compaction_the_day_is_not_complete(tmp_path: Path, step: str) -> None:
    root = closed_monday(tmp_path)
    before = marker(root)
    dying = root.open(dying_at(step, 2 if step == "removing" else 1))
    with pytest.raises(TransientError):
        compact(dying)
    assert asked(root) is DayState.NOT_VISIBLE
    assert step == "entry_written" or marker(root) is None, "no file was touched before the marker was gone"
    root.open().complete()
    assert rows_in(root.lake) == root.expected
    assert asked(root) is DayState.COMPLETE
    again = marker(root)
    assert again is not None and again != before, "a reader that listed in between has to read again"


def test_another_type_is_complete_meanwhile(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    with pytest.raises(TransientError):
        compact(root.open(dying_at("removed")))
    assert asked(root, name="click") is DayState.COMPLETE


def test_a_late_row_a_kill_and_then_a_compaction_leave_no_marker(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    assert marker(root) is not None
    late = {("order", MONDAY): range(20, 25)}
    with_table(root, dying_at("entry_written"), lambda: root.write(ZERO, 20, 25, late))
    compact(root.open())
    assert marker(root) is None
    for start in range(25, 90):
        root.write(ZERO, start, start + 1, {("click", WEDNESDAY): [start]})
    root.open().complete()
    assert marker(root) is None, "however many entries follow"
    assert asked(root) is DayState.REOPENED


def test_a_day_that_closes_again_has_another_marker(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    first = marker(root)
    # One entry brings the late row and moves the watermark past it: the day is opened and closed at once.
    root.write(ZERO, 20, 25, {("order", MONDAY): range(20, 25)}, watermark="2026-03-05")
    second = marker(root)
    assert first is not None and second is not None
    assert second["entry"] == root.state.number != first["entry"]


def test_a_marker_that_cannot_be_changed_is_carried_until_it_can(tmp_path: Path) -> None:
    root = monday(tmp_path)
    watched = WatchedStorage(open_storage(str(root.lake), {}))

    def refuse(act: str, path: str) -> None:
        if act == "put_if_absent" and "/complete/" in path:
            raise UserError("not allowed")

    watched.watch = refuse
    root.storage = watched
    root.table = root.open()
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    for start in range(20, 40):
        root.write(ZERO, start, start + 1, {("click", WEDNESDAY): [start]})
    assert marker(root) is None
    watched.watch = None
    root.open().complete()
    assert marker(root) is not None


def test_of_two_processes_the_one_that_slept_leaves_no_wrong_marker(tmp_path: Path) -> None:
    """It wakes just before it puts the marker of an entry, and meanwhile a late row has opened the day again."""
    root = monday(tmp_path)
    watched = WatchedStorage(open_storage(str(root.lake), {}))
    other = ExportRoot(root.job_path)

    def sleep_over(act: str, path: str) -> None:
        if act == "put_if_absent" and "/complete/" in path:
            watched.watch = None
            other.write(ZERO, 20, 25, {("order", MONDAY): range(20, 25)})

    watched.watch = sleep_over
    root.storage = watched
    root.table = root.open()
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    assert ("order", MONDAY) in root.state.open_days
    assert marker(root) is None


def test_a_marker_left_by_a_process_that_died_over_it_goes_at_the_next_start(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    stale = json.dumps(marker(root)).encode()
    root.write(ZERO, 20, 25, {("order", MONDAY): range(20, 25)})
    assert marker(root) is None
    root.table.storage.put(root.table.places.marker("order", MONDAY), stale)
    root.open().finishing.remove_stale_markers()
    assert marker(root) is None


def test_a_clock_that_was_a_year_ahead_keeps_no_day_open_for_a_year(tmp_path: Path) -> None:
    hour, year = 3600.0, 365 * 86_400.0
    noon = 1_772_452_800.0  # Monday, 2026-03-02T12:00:00Z

    def at(now: float) -> ExportTable:
        return root.open(Environment(now=lambda: now, sleep=lambda _: None))

    root = ExportRoot(job_file(tmp_path))
    root.table = at(noon + year)
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark="2027-03-02")
    root.table = at(noon)
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)})
    assert ("order", MONDAY) in root.state.open_days, "the right clock says that Monday is not over"
    assert marker(root) is None
    root.table = at(noon + 14 * hour)
    root.write(ZERO, 10, 11, {("order", TUESDAY): [10]})
    assert ("order", MONDAY) not in root.state.open_days
    assert marker(root) is not None
