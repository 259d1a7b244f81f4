"""When a day is complete: event times, late rows, idle partitions and lagging types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Partition
from penstock.tables.export.catch_up import idle_event_times
from penstock.tables.export.state import ExportState, JobPartition, day_key, end_ms, needed_ms, parse_days
from tests.support.export_root import MONDAY, ONE, TUESDAY, WEDNESDAY, ZERO, ExportRoot, job_file, noon_ms
from tests.support.pipes import Recorder

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
MARGIN = 7200.0
"""Two hours."""
FIRST = "2026-03-01"
FIRST_ENDS = 1_772_409_600_000
"""2026-03-02T00:00:00Z, by the calendar: 20514 days since 1970."""
THURSDAY, FRIDAY = "2026-03-05", "2026-03-06"


def test_a_day_ends_at_midnight_utc() -> None:
    assert end_ms(FIRST) == FIRST_ENDS == 20_514 * 24 * HOUR_MS


def test_a_day_is_complete_some_time_after_its_end_or_its_last_late_row() -> None:
    assert needed_ms(FIRST, 0, MARGIN) == FIRST_ENDS + 2 * HOUR_MS
    assert needed_ms(FIRST, FIRST_ENDS + 5 * HOUR_MS, MARGIN) == FIRST_ENDS + 7 * HOUR_MS


def test_the_days_of_a_type_are_read_back_from_its_log() -> None:
    numbers = {day_key("shop", MONDAY): 0, day_key("shop", TUESDAY): 7, day_key("shop2", MONDAY): 9, "shop/t/0": 4}
    assert parse_days(numbers, "shop") == {MONDAY: 0, TUESDAY: 7}


def test_an_idle_partition_follows_the_clock_in_steps_of_the_idle_time() -> None:
    """Five minutes: from 12:07 on it is complete up to 12:02, which is past the step at 12:00."""
    noon = FIRST_ENDS + 12 * HOUR_MS
    begun, now = noon / 1000, (noon + 7 * MINUTE_MS) / 1000
    for mark_ms, expected in (
        (None, {ZERO: noon + 2 * MINUTE_MS}),
        (noon - 1, {ZERO: noon + 2 * MINUTE_MS}),
        (noon, {}),
    ):
        partition = JobPartition(5, watermark_ms=mark_ms)
        state = ExportState(1, {(ZERO.topic_id, ZERO.number): partition}, {"shop": topic_fingerprint(ZERO.topic_id)})
        since: dict[Partition, float] = {}
        assert not idle_event_times(state, {ZERO: 5}, begun, 300.0, since), "it is not idle for long enough"
        assert idle_event_times(state, {ZERO: 5}, now, 300.0, since) == expected, "at most one commit in five minutes"
        assert not idle_event_times(state, {ZERO: 6}, now, 300.0, since), "it is not read to its end"
        assert not idle_event_times(state, {ZERO: 5}, now, 300.0, since), "it is idle only since now"


# days in the logs


@pytest.fixture
def root(tmp_path: Path) -> ExportRoot:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    return root


@pytest.fixture
def complete(root: ExportRoot) -> Callable[..., bool]:
    def answer(name: str = "order", day: str = MONDAY) -> bool:
        table = root.open()
        table.logs.state()
        return table.markers.is_complete(name, day)

    return answer


def test_late_rows_open_a_complete_day_as_often_as_they_come(root: ExportRoot, complete: Callable[..., bool]) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=MONDAY)
    assert (complete(), dict(root.logs.days_of("order"))) == (False, {MONDAY: 0})
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)}, watermark=WEDNESDAY)
    assert complete()
    root.write(ZERO, 20, 21, {("order", MONDAY): [20], ("order", WEDNESDAY): [20]})
    assert not complete()
    assert dict(root.logs.days_of("order")) == {MONDAY: noon_ms(WEDNESDAY), WEDNESDAY: 0}, "Wednesday was open anyway"
    root.write(ZERO, 21, 22, {("click", THURSDAY): [21]}, watermark=THURSDAY)
    assert complete()
    root.write(ZERO, 22, 23, {("order", MONDAY): [22]})
    assert not complete()
    assert root.logs.days_of("order")[MONDAY] == noon_ms(THURSDAY)


def test_rows_that_come_before_the_day_is_complete_do_not_open_it(root: ExportRoot) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=MONDAY)
    root.write(ZERO, 10, 20, {("order", MONDAY): range(10, 20)})
    assert dict(root.logs.days_of("order")) == {MONDAY: 0}


def test_late_rows_that_come_with_a_later_event_leave_the_day_open_at_the_event_time_before_it(
    root: ExportRoot, complete: Callable[..., bool]
) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=WEDNESDAY)
    root.write(ZERO, 10, 20, {("order", MONDAY): range(10, 20)}, watermark=THURSDAY)
    assert root.logs.days_of("order")[MONDAY] == noon_ms(WEDNESDAY)
    assert complete()


def test_idle_partitions_let_days_be_complete_by_the_clock(root: ExportRoot, complete: Callable[..., bool]) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=MONDAY)
    root.table.raise_event_times({ZERO: end_ms(MONDAY) + 2 * HOUR_MS})
    assert complete()
    root.table.raise_event_times({ZERO: end_ms(MONDAY)})
    assert root.state.of(ZERO).watermark_ms == end_ms(MONDAY) + 2 * HOUR_MS, "an event time never falls"
    assert root.state.of(ZERO).position == 10


def test_a_partition_that_is_created_later_reopens_nothing(root: ExportRoot, complete: Callable[..., bool]) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=WEDNESDAY)
    root.start(ONE)
    assert complete()
    assert root.state.of(ONE).watermark_ms == noon_ms(WEDNESDAY)


def test_a_type_that_lags_keeps_its_day_open_until_it_has_caught_up(
    root: ExportRoot, complete: Callable[..., bool]
) -> None:
    root.write(ZERO, 0, 10, {("order", MONDAY): range(5), ("click", MONDAY): range(5, 10)}, watermark=MONDAY)
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): [10]}, deferred={"click": range(11, 20)}, watermark=WEDNESDAY)
    assert (complete("order"), complete("click")) == (True, False)
    root.catch_up(ZERO, {"click": 11}, 20, {("click", MONDAY): range(11, 20)})
    assert complete("click"), "it is where the others are"
    assert root.logs.days_of("click")[MONDAY] == 0, "its rows were not late"


def test_an_event_time_of_the_future_counts_as_now(tmp_path: Path) -> None:
    """A process whose clock was a year ahead left it."""
    year = 365 * 86_400.0
    noon = noon_ms(MONDAY) / 1000
    root = ExportRoot(job_file(tmp_path), Environment(now=lambda: noon + year, sleep=lambda _: None))
    root.start(ZERO)
    root.write(ZERO, 0, 5, {("order", MONDAY): range(5)}, watermark="2027-03-02")
    root.table = root.open(Environment(now=lambda: noon, sleep=lambda _: None))
    root.write(ZERO, 5, 10, {("order", MONDAY): range(5, 10)})
    assert dict(root.logs.days_of("order")) == {MONDAY: 0}, "by the right clock Monday is not over"
    later = (end_ms(MONDAY) + 5 * HOUR_MS) / 1000
    root.table = root.open(Environment(now=lambda: later, sleep=lambda _: None))
    root.write(ZERO, 10, 11, {("order", MONDAY): [10]})
    assert dict(root.logs.days_of("order")) == {MONDAY: end_ms(MONDAY) + 5 * HOUR_MS}


def test_a_day_is_reported_complete_once_and_opened_again_once(tmp_path: Path) -> None:
    recorder = Recorder()
    root = ExportRoot(job_file(tmp_path), Environment(listener=recorder, sleep=lambda _: None))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)}, watermark=WEDNESDAY)
    root.write(ZERO, 10, 20, {("order", WEDNESDAY): range(10, 20)})
    assert recorder.named("day complete") == [{"type": "order", "day": MONDAY}]
    root.write(ZERO, 20, 21, {("order", MONDAY): [20]})
    assert recorder.named("day opened again") == [{"type": "order", "day": MONDAY}]
