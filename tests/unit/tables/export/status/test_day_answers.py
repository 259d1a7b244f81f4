"""Is day D complete? Answers by hand-made ledgers, with who holds the day back."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Partition
from penstock.tables.export.ledger.state import Cause, Lane, LedgerState, Rename, RoutedPartition, TypeState
from penstock.tables.export.status.day_answers import DayAnswer, DayState, Holder, last_complete_day

ZERO = Partition("events", "life-1", 0)
ONE = Partition("events", "life-1", 1)
DAY = "2026-03-01"
TWO_HOURS = 7200.0


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def ledger(
    zero: str | None,
    one: str | None,
    lane: Lane | None = None,
    pending: tuple[Rename, ...] = (),
    opened: tuple[str, ...] = (),
    reopened: dict[str, str] | None = None,
) -> LedgerState:
    """Two partitions at their watermarks; `lane` is where type fs lags in partition 1."""
    return LedgerState(
        number=1,
        partitions={
            ZERO: RoutedPartition(10, 0, watermark_ms=at(zero) if zero else None),
            ONE: RoutedPartition(10, 0, watermark_ms=at(one) if one else None, lanes={"fs": lane} if lane else {}),
        },
        fingerprints={"events": topic_fingerprint("life-1")},
        types={"fs": TypeState(""), "gc": TypeState("")},
        pending=pending,
        open_days=frozenset(("fs", day) for day in opened),
        reopened={("fs", day): at(mark) for day, mark in (reopened or {}).items()},
    )


def asked(state: LedgerState, name: str = "fs") -> DayAnswer:
    return DayAnswer(state, name, DAY, TWO_HOURS)


def test_a_day_is_complete_once_the_watermark_is_so_far_past_its_end() -> None:
    found = asked(ledger("2026-03-02T02:00:00", "2026-03-02T05:00:00"))
    assert found.complete
    assert found.holders == ()
    assert found.reason == "the watermark 2026-03-02T02:00:00Z is past 2026-03-02T02:00:00Z"


def test_the_partition_that_holds_a_day_back_is_named() -> None:
    found = asked(ledger("2026-03-02T05:00:00", "2026-03-02T01:59:59", opened=(DAY,)))
    assert found.state is DayState.OPEN
    assert found.holders == (Holder(ONE, at("2026-03-02T01:59:59")),)
    assert "events/1 is at 2026-03-02T01:59:59Z" in found.reason


def test_a_day_without_rows_that_may_still_come_is_not_yet_complete() -> None:
    found = asked(ledger("2026-02-28T05:00:00", None))
    assert found.state is DayState.NOT_YET
    assert found.holders == (Holder(ZERO, at("2026-02-28T05:00:00")), Holder(ONE, None))
    assert "events/1 has no event time yet" in found.reason


def test_a_type_that_is_behind_holds_only_its_own_day_back() -> None:
    lagging = Lane(4, Cause.FAILING, 4, 6, watermark_ms=at("2026-03-01T22:00:00"))
    state = ledger("2026-03-02T05:00:00", "2026-03-02T05:00:00", lagging, opened=(DAY,))
    assert asked(state).holders == (Holder(ONE, at("2026-03-01T22:00:00"), Cause.FAILING),)
    assert "(the type lags there: failing)" in asked(state).reason
    assert asked(state, "gc").complete


def test_a_file_that_waits_to_be_moved_keeps_the_day_open() -> None:
    pending = (Rename("staged", "target", "fs", "life-1", 0, 4),)
    found = asked(ledger("2026-03-02T05:00:00", "2026-03-02T05:00:00", pending=pending, opened=(DAY,)))
    assert found.state is DayState.OPEN
    assert found.pending == 1
    assert found.reason == "1 files of the type could not be moved to their place yet"


def test_late_rows_open_a_day_until_the_watermark_is_as_far_past_them() -> None:
    late = {DAY: "2026-03-02T12:00:00"}
    before = asked(ledger("2026-03-02T13:59:59", "2026-03-02T20:00:00", opened=(DAY,), reopened=late))
    assert before.state is DayState.REOPENED
    assert before.needed_ms == at("2026-03-02T14:00:00")
    assert before.reason.startswith("late rows came, ")
    assert asked(ledger("2026-03-02T14:00:00", "2026-03-02T20:00:00", opened=(DAY,), reopened=late)).complete


def test_a_complete_day_with_files_that_are_not_in_place_is_not_visible() -> None:
    found = DayAnswer(ledger("2026-03-02T02:00:00", "2026-03-02T05:00:00"), "fs", DAY, TWO_HOURS, unseen=3)
    assert found.state is DayState.NOT_VISIBLE
    assert not found.complete
    assert found.reason.startswith("3 files of the day are not in their place yet")
    assert (found.as_json()["state"], found.as_json()["unseen_files"]) == ("not visible", 3)


def test_a_day_that_is_complete_only_by_a_clock_that_was_ahead_waits_for_the_clock() -> None:
    state = ledger("2027-03-02T02:00:00", "2027-03-02T05:00:00", opened=(DAY,))
    before = DayAnswer(state, "fs", DAY, TWO_HOURS, at("2026-03-02T01:59:59"))
    assert (before.state, before.watermark_ms) == (DayState.OPEN, at("2026-03-02T01:59:59"))
    assert before.reason.endswith("the clock is not there yet")
    assert DayAnswer(state, "fs", DAY, TWO_HOURS, at("2026-03-02T02:00:00")).complete


def test_before_the_first_position_no_day_is_complete() -> None:
    found = asked(LedgerState(number=1, types={"fs": TypeState("")}))
    assert found.state is DayState.NOT_YET
    assert found.reason == "the job has no position yet"


def test_the_last_complete_day_is_the_one_before_the_watermarks_day_once_the_margin_is_passed() -> None:
    def last(mark: str, **more: dict[str, str]) -> str | None:
        return last_complete_day(ledger(mark, "2026-03-09T00:00:00", **more), "fs", TWO_HOURS)  # type: ignore[arg-type]

    assert last("2026-03-02T02:00:00") == "2026-03-01"
    assert last("2026-03-02T01:59:59") == "2026-02-28"
    assert last("2026-03-02T02:00:00", reopened={"2026-03-01": "2026-03-02T02:00:00"}) == "2026-02-28"
    assert last_complete_day(ledger(None, None), "fs", TWO_HOURS) is None
