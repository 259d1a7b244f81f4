"""Is day D complete? Answers by states made by hand, with the partitions that hold the day back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.lake.delta.keys import topic_fingerprint
from penstock.tables.export.state import Cause, ExportState, JobPartition, Lag, TypeState
from penstock.tables.export.status.day_answers import DayAnswer, DayState, TypeDays

DAY = "2026-03-01"
TWO_HOURS = 7200.0
LATER = "2028-01-01T00:00:00"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def export(zero: str | None, one: str | None, lag: Lag | None = None) -> ExportState:
    """Two partitions at their event times; `lag` is where type fs lags in partition 1."""
    return ExportState(
        version=1,
        partitions={
            ("topic-1", 0): JobPartition(10, 0, watermark_ms=at(zero) if zero else None),
            ("topic-1", 1): JobPartition(10, 0, watermark_ms=at(one) if one else None, lags={"fs": lag} if lag else {}),
        },
        fingerprints={"events": topic_fingerprint("topic-1")},
        types={"fs": TypeState(7), "gc": TypeState(8)},
    )


def days_of(
    state: ExportState,
    late: Mapping[str, str | None] | None = None,
    *,
    name: str = "fs",
    pending: tuple[str, ...] = (),
    now: str = LATER,
) -> TypeDays:
    """`late` are the days that have rows, with the event time at which late ones came."""
    days = {day: at(mark) if mark else 0 for day, mark in (late or {}).items()}
    return TypeDays(state, name, days, pending, TWO_HOURS, at(now))


def answer(days: TypeDays) -> DayAnswer:
    return DayAnswer(days, DAY)


def held(partition: int, watermark: str | None, cause: str | None = None) -> dict[str, object]:
    return {"topic": "events", "partition": partition, "watermark": watermark, "cause": cause}


def test_a_day_is_complete_once_the_watermark_is_so_far_past_its_end() -> None:
    found = answer(days_of(export("2026-03-02T02:00:00", "2026-03-02T05:00:00")))
    assert found.complete
    assert found.holders() == []
    assert found.reason == "the watermark 2026-03-02T02:00:00Z is past 2026-03-02T02:00:00Z"


def test_the_partition_that_holds_a_day_back_is_named() -> None:
    found = answer(days_of(export("2026-03-02T05:00:00", "2026-03-02T01:59:59"), {DAY: None}))
    assert found.state is DayState.OPEN
    assert found.holders() == [held(1, "2026-03-02T01:59:59Z")]
    assert "events/1 is at 2026-03-02T01:59:59Z" in found.reason


def test_a_day_without_rows_that_may_still_come_is_not_yet_complete() -> None:
    found = answer(days_of(export("2026-02-28T05:00:00", None)))
    assert found.state is DayState.NOT_YET
    assert found.holders() == [held(0, "2026-02-28T05:00:00Z"), held(1, None)]
    assert "events/1 has no event time yet" in found.reason


def test_a_type_that_lags_holds_only_its_own_day_back() -> None:
    lagging = Lag(4, Cause.FAILING, 4, 6, watermark_ms=at("2026-03-01T22:00:00"))
    state = export("2026-03-02T05:00:00", "2026-03-02T05:00:00", lagging)
    found = answer(days_of(state, {DAY: None}))
    assert found.holders() == [held(1, "2026-03-01T22:00:00Z", "failing")]
    assert "(the type lags there: failing)" in found.reason
    assert answer(days_of(state, {DAY: None}, name="gc")).complete


def test_late_rows_open_a_day_until_the_watermark_is_as_far_past_them() -> None:
    late = {DAY: "2026-03-02T12:00:00"}
    before = answer(days_of(export("2026-03-02T13:59:59", "2026-03-02T20:00:00"), late))
    assert before.state is DayState.REOPENED
    assert before.as_json()["complete_at_watermark"] == "2026-03-02T14:00:00Z"
    assert before.reason.startswith("late rows came, ")
    assert before.of.reopened_days() == before.of.open_days() == [DAY]
    assert answer(days_of(export("2026-03-02T14:00:00", "2026-03-02T20:00:00"), late)).complete


def test_a_complete_day_with_files_that_are_not_in_place_is_not_visible() -> None:
    state = export("2026-03-02T02:00:00", "2026-03-02T05:00:00")
    found = answer(days_of(state, {DAY: None}, pending=(DAY, DAY, "2026-02-28")))
    assert found.state is DayState.NOT_VISIBLE
    assert not found.complete
    assert found.reason.startswith("2 files of the day are not in their place yet")
    assert (found.as_json()["state"], found.as_json()["unseen_files"]) == ("not visible", 2)
    assert answer(days_of(state, {DAY: None}, pending=("2026-02-28",))).complete


def test_a_day_that_is_complete_only_by_a_clock_that_was_ahead_waits_for_the_clock() -> None:
    state = export("2027-03-02T02:00:00", "2027-03-02T05:00:00")
    before = answer(days_of(state, {DAY: None}, now="2026-03-02T01:59:59"))
    assert (before.state, before.of.watermark_ms) == (DayState.OPEN, at("2026-03-02T01:59:59"))
    assert before.reason.endswith("the clock is not there yet")
    assert answer(days_of(state, {DAY: None}, now="2026-03-02T02:00:00")).complete


def test_before_the_first_position_no_day_is_complete() -> None:
    found = answer(days_of(ExportState(version=1, types={"fs": TypeState(7)})))
    assert found.state is DayState.NOT_YET
    assert found.reason == "the job has no position yet"


def test_the_last_complete_day_is_the_one_before_the_watermarks_day_once_the_margin_is_passed() -> None:
    def last(mark: str | None, late: Mapping[str, str] | None = None, pending: tuple[str, ...] = ()) -> str | None:
        return days_of(export(mark, "2026-03-09T00:00:00"), late, pending=pending).last_complete()

    assert last("2026-03-02T02:00:00") == "2026-03-01"
    assert last("2026-03-02T01:59:59") == "2026-02-28"
    assert last("2026-03-02T02:00:00", {"2026-03-01": "2026-03-02T02:00:00"}) == "2026-02-28"
    assert last("2026-03-02T02:00:00", pending=("2026-03-01",)) == "2026-02-28"
    assert last(None) is None
