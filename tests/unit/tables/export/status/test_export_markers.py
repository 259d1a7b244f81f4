"""A day is marked complete only while readers see all of it, whichever process dies, sleeps or compacts (RULES E7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.reporting.model import DayState
from penstock.storage import open_storage
from penstock.tables.export.status import day_answers
from tests.support.export_root import MONDAY, TUESDAY, WEDNESDAY, ZERO, ExportRoot, job_file, noon_ms, rows_in
from tests.support.pipes import CrashError
from tests.support.watched_storage import WatchedStorage
from tests.unit.tables.export.processes import compacted, dying_at, quiet, restarted

THURSDAY = "2026-03-05"
LATE = {("order", MONDAY): range(20, 25)}


def marker(root: ExportRoot, name: str = "order", day: str = MONDAY) -> dict[str, object] | None:
    path = root.lake / "_penstock" / "shop" / "complete" / name / f"{day}.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def day_state(root: ExportRoot, day: str = MONDAY, name: str = "order") -> DayState:
    [answer] = day_answers(root.job, day, [name])
    return answer.state


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


def watched(root: ExportRoot, watch: Callable[[str, str], None] | None = None) -> WatchedStorage:
    """The next processes of the job use a storage that reports each act before it happens."""
    storage = root.storage = WatchedStorage(open_storage(str(root.lake), {}), watch)
    root.table = root.open()
    root.table.finish_pending([ZERO])
    return storage


def refuse_markers(act: str, path: str) -> None:
    if act == "put_if_absent" and "/complete/" in path:
        raise UserError("not allowed")


def test_a_day_gets_its_marker_once_the_watermark_is_past_it(tmp_path: Path) -> None:
    root = monday(tmp_path)
    assert marker(root) is None
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    log = root.logs.find_type_log("order")
    assert log is not None
    body = {"type": "order", "day": MONDAY, "version": log.version, "watermark": f"{WEDNESDAY}T12:00:00Z"}
    assert marker(root) == body
    assert day_state(root) is DayState.COMPLETE
    assert marker(root, day=WEDNESDAY) is None


@pytest.mark.parametrize("step", ["type_committed", "renaming", "renamed"])
def test_a_day_closed_by_a_killed_batch_is_marked_once_all_its_rows_are_visible(tmp_path: Path, step: str) -> None:
    """The batch brings Monday's last rows and, with them, the event time that closes it."""
    root = monday(tmp_path)
    rows = {("order", MONDAY): range(10, 15), ("click", WEDNESDAY): range(15, 20)}
    root.table = root.open(dying_at(step))
    with pytest.raises(CrashError):
        root.write(ZERO, 10, 20, rows, watermark=WEDNESDAY)
    assert (marker(root), day_state(root)) == (None, DayState.OPEN)
    restarted(root).write(ZERO, 10, 20, rows, watermark=WEDNESDAY)
    assert day_state(root) is DayState.COMPLETE
    assert marker(root) is not None
    assert rows_in(root.lake) == root.expected


def test_a_complete_day_of_which_a_file_could_not_be_renamed_is_not_marked(tmp_path: Path) -> None:
    root = monday(tmp_path)

    def refuse(act: str, path: str) -> None:
        if act == "rename" and path.startswith("order/"):
            raise UserError("not allowed")

    storage = watched(root, refuse)
    rows = {("order", MONDAY): range(10, 15), ("click", WEDNESDAY): range(15, 20)}
    root.write(ZERO, 10, 20, rows, watermark=WEDNESDAY)
    assert (marker(root), day_state(root)) == (None, DayState.NOT_VISIBLE)
    storage.watch = None
    restarted(root)
    assert day_state(root) is DayState.COMPLETE
    assert marker(root) is not None
    assert rows_in(root.lake) == root.expected


@pytest.mark.parametrize("export", ["format: parquet", "format: delta"])
def test_the_marker_goes_before_late_rows_are_committed(tmp_path: Path, export: str) -> None:
    root = ExportRoot(job_file(tmp_path, export=export))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark=WEDNESDAY)
    assert marker(root) is not None
    observed: list[tuple[int, bool]] = []
    log = root.logs.find_type_log("order")
    assert log is not None
    commit = log.commit_actions

    def watched_commit(*args: object) -> None:
        observed.append((log.version, marker(root) is not None))
        commit(*args)  # type: ignore[arg-type]

    log.commit_actions = watched_commit  # type: ignore[assignment, method-assign]
    root.write(ZERO, 5, 6, {("order", MONDAY): [5]})
    assert [is_marked for _, is_marked in observed] == [False]
    assert marker(root) is None
    root.write(ZERO, 6, 7, {("click", THURSDAY): [6]}, watermark=THURSDAY)
    assert marker(root) is not None


@pytest.mark.parametrize("step", ["checked", "type_committed", "renaming", "renamed", "committed"])
def test_killed_at_any_step_of_late_rows_no_marker_covers_them(tmp_path: Path, step: str) -> None:
    root = closed_monday(tmp_path)
    # The second time that "checked" is reached is inside the type's commit, just before the marker is deleted.
    root.table = root.open(dying_at(step, 2 if step == "checked" else 1))
    with pytest.raises(CrashError):
        root.write(ZERO, 20, 25, LATE)
    landed = step != "checked"
    assert marker(root) is None or not landed
    restarted(root)
    assert (marker(root) is None) is landed
    assert day_state(root) is (DayState.REOPENED if landed else DayState.COMPLETE)
    if step != "committed":
        root.write(ZERO, 20, 25, LATE)
    else:
        root.expected.update(("order", 0, offset) for offset in range(20, 25))
    compacted(root.open())
    assert (marker(root), day_state(root)) == (None, DayState.REOPENED)
    root.write(ZERO, 25, 26, {("click", THURSDAY): [25]}, watermark=THURSDAY)
    assert marker(root) is not None
    assert rows_in(root.lake) == root.expected


@pytest.mark.parametrize(
    ("step", "visit"),
    [
        ("compact_staged", 1),
        ("compact_checked", 1),
        ("compact_committed", 1),
        ("removing", 1),
        ("removing", 2),
        ("removed", 1),
        ("renaming", 1),
        ("renamed", 1),
        ("marked", 1),
    ],
)
def test_killed_during_a_compaction_no_marker_covers_missing_rows(tmp_path: Path, step: str, visit: int) -> None:
    root = closed_monday(tmp_path)
    before = marker(root)
    with pytest.raises(CrashError):
        compacted(root.open(dying_at(step, visit)))
    all_there = rows_in(root.lake) == root.expected
    assert marker(root) is None or all_there
    assert (day_state(root) is DayState.COMPLETE) is (
        step in ("compact_staged", "compact_checked", "renamed", "marked")
    )
    restarted(root)
    assert rows_in(root.lake) == root.expected
    assert day_state(root) is DayState.COMPLETE
    assert marker(root) is not None
    # A reader that listed files in between has to notice that the day changed.
    assert (marker(root) == before) is (step in ("compact_staged", "compact_checked"))


def test_another_type_stays_complete_during_a_compaction(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    with pytest.raises(CrashError):
        compacted(root.open(dying_at("removed")))
    assert day_state(root, name="click") is DayState.COMPLETE


def test_a_marker_that_cannot_be_put_is_put_once_it_can(tmp_path: Path) -> None:
    root = monday(tmp_path)
    storage = watched(root, refuse_markers)
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    assert marker(root) is None
    storage.watch = None
    root.write(ZERO, 20, 21, {("click", WEDNESDAY): [20]})
    assert marker(root) is not None


@pytest.mark.parametrize("is_known", [True, False], ids=["a marker that it knows", "one that another process put"])
def test_late_rows_wait_while_the_marker_of_their_day_cannot_be_removed(tmp_path: Path, is_known: bool) -> None:
    root = closed_monday(tmp_path)

    def refuse(act: str, path: str) -> None:
        if act == "delete" and "/complete/" in path:
            raise UserError("not allowed")

    path = f"{root.logs.home}/complete/order/{MONDAY}.json"
    body = root.logs.storage.read(path)
    if not is_known:
        root.logs.storage.delete(path)
        root.storage = WatchedStorage(open_storage(str(root.lake), {}), refuse_markers)
        root.table = root.open()
        root.table.finish_pending([ZERO])
        root.logs.storage.put(path, body)
    storage = root.storage if isinstance(root.storage, WatchedStorage) else watched(root)
    storage.watch = refuse
    root.write(ZERO, 20, 26, {**LATE, ("click", WEDNESDAY): [25]})
    assert marker(root) is not None
    assert root.state.position_of(ZERO, "order") == 20, "the type lags"
    assert root.state.position_of(ZERO, "click") == 26
    assert not [place for place in rows_in(root.lake) if place[0] == "order" and place[2] >= 20]
    storage.watch = None
    root.catch_up(ZERO, {"order": 20}, 26, LATE)
    assert marker(root) is None


def test_rows_are_written_although_a_marker_cannot_be_put(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    watched(root, refuse_markers)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark=WEDNESDAY)
    root.write(ZERO, 5, 6, {("order", MONDAY): [5]})
    assert rows_in(root.lake) == root.expected


def test_a_process_that_slept_before_it_put_a_marker_leaves_no_wrong_one(tmp_path: Path) -> None:
    """It resumes just before it writes the marker, after a late row has reopened the day."""
    root = monday(tmp_path)
    other = ExportRoot(root.job_path)

    def sleep_over(act: str, path: str) -> None:
        if act == "put_if_absent" and "/complete/" in path:
            storage.watch = None
            other.write(ZERO, 20, 25, LATE)

    storage = watched(root)
    storage.watch = sleep_over
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    assert day_state(root) is DayState.REOPENED
    assert marker(root) is None


def test_a_wrong_marker_left_by_a_crash_is_removed_at_the_next_start(tmp_path: Path) -> None:
    root = closed_monday(tmp_path)
    stale = json.dumps(marker(root)).encode()
    root.write(ZERO, 20, 25, LATE)
    root.logs.storage.put(f"{root.logs.home}/complete/order/{MONDAY}.json", stale)
    restarted(root)
    assert marker(root) is None


def test_a_clock_that_was_a_year_ahead_keeps_no_day_open_for_a_year(tmp_path: Path) -> None:
    hour, year = 3600.0, 365 * 86_400.0
    noon = noon_ms(MONDAY) / 1000
    root = ExportRoot(job_file(tmp_path), quiet(now=lambda: noon + year))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark="2027-03-02")
    assert marker(root) is not None
    root.table = root.open(quiet(now=lambda: noon))
    root.table.finish_pending([ZERO])
    assert marker(root) is None, "by the right clock Monday is not over"
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)})
    assert marker(root) is None
    root.table = root.open(quiet(now=lambda: noon + 14 * hour))
    root.write(ZERO, 10, 11, {("order", TUESDAY): [10]})
    assert marker(root) is not None
