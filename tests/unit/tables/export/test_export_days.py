"""Is day D complete? What the watermark of a type says, and what late rows, idle partitions and lanes do to it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.job.spec import DaysSpec
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import Totals
from penstock.lake.storage import MemoryStorage
from penstock.logs.log import Partition
from penstock.tables.export.ledger.days import (
    closable,
    end_ms,
    is_complete,
    next_boundary_ms,
    reopened_by,
    watermark_of,
)
from penstock.tables.export.ledger.entry import Entry, EntryKind, SliceRecord, StartRecord, TypeRecord, WrittenRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.state import Cause, Lane, LedgerState, Rename, RoutedPartition
from penstock.tables.export.table import Draft, ExportTable
from tests.routed_parts import EVENTS, Event, Reader, begun, landed, open_table, run_of, staged_in

HOUR_MS = 3_600_000
MARGIN = 7200.0
"""Two hours."""
FIRST, SECOND = "2026-03-01", "2026-03-02"
FIRST_ENDS = 1_772_409_600_000
"""2026-03-02T00:00:00Z, by the calendar: 20514 days since 1970."""
OTHER = Partition("events", "life-1", 1)


def said(
    partitions: Mapping[Partition, RoutedPartition],
    pending: tuple[Rename, ...] = (),
    reopened: Mapping[tuple[str, str], int] | None = None,
    open_days: frozenset[tuple[str, str]] = frozenset(),
) -> LedgerState:
    fingerprints = {"events": topic_fingerprint("life-1")}
    return LedgerState(9, partitions, fingerprints, pending=pending, reopened=reopened or {}, open_days=open_days)


def at(watermark_ms: int | None, lanes: Mapping[str, Lane] | None = None) -> RoutedPartition:
    return RoutedPartition(100, 0, 1, watermark_ms=watermark_ms, lanes=lanes or {})


def complete(state: LedgerState, name: str = "A", day: str = FIRST) -> bool:
    return is_complete(state, name, day, MARGIN)


def test_a_day_ends_at_midnight_utc() -> None:
    assert end_ms(FIRST) == FIRST_ENDS == 20_514 * 24 * HOUR_MS


@pytest.mark.parametrize(
    ("watermark_ms", "answer"),
    [
        (None, False),
        (FIRST_ENDS - 1, False),
        (FIRST_ENDS, False),
        (FIRST_ENDS + 2 * HOUR_MS - 1, False),
        (FIRST_ENDS + 2 * HOUR_MS, True),
    ],
)
def test_a_day_is_complete_once_the_watermark_is_so_far_past_its_end(watermark_ms: int | None, answer: bool) -> None:
    state = said({EVENTS: at(watermark_ms)})
    assert complete(state) is answer
    assert not complete(state, day=SECOND)


def test_nothing_is_complete_in_a_table_without_positions() -> None:
    assert not complete(LedgerState())
    assert not complete(said({EVENTS: RoutedPartition(token=3)}))


def test_the_slowest_partition_decides() -> None:
    ahead = at(FIRST_ENDS + 50 * HOUR_MS)
    assert not complete(said({EVENTS: ahead, OTHER: at(FIRST_ENDS)}))
    assert not complete(said({EVENTS: ahead, OTHER: at(None)})), "nothing is known of a partition that was never read"
    assert complete(said({EVENTS: ahead, OTHER: at(FIRST_ENDS + 3 * HOUR_MS)}))


def test_a_partition_of_a_former_life_of_the_topic_holds_nothing_back() -> None:
    former = Partition("events", "life-0", 0)
    assert complete(said({former: at(0), EVENTS: at(FIRST_ENDS + 3 * HOUR_MS)}))


def test_a_type_that_is_behind_keeps_its_own_watermark_and_the_others_theirs() -> None:
    lane = Lane(10, Cause.FAILING, 10, 5, watermark_ms=FIRST_ENDS - HOUR_MS)
    state = said({EVENTS: at(FIRST_ENDS + 9 * HOUR_MS, {"B": lane})})
    assert watermark_of(state, "B") == FIRST_ENDS - HOUR_MS
    assert not complete(state, "B")
    assert complete(state, "A")


def test_a_type_whose_files_cannot_be_put_in_place_has_no_complete_day() -> None:
    stuck = Rename("s.pq", f"A/day={FIRST}/events.0.9.parquet", "A", "life-1", 0, 0)
    state = said({EVENTS: at(FIRST_ENDS + 9 * HOUR_MS)}, pending=(stuck,))
    assert not complete(state, "A")
    assert complete(state, "B")


def wrote(name: str, *days: str, watermark_ms: int | None = None, start: int = 100) -> SliceRecord:
    written = {name: WrittenRecord(len(days), len(days), 1, dict.fromkeys(days, 1))}
    return SliceRecord(EVENTS, start, start + 10, 1, Totals(read=10, written=10), watermark_ms, written)


def test_late_rows_open_a_complete_day_until_the_watermark_is_as_far_past_them() -> None:
    now = FIRST_ENDS + 5 * HOUR_MS
    opened = reopened_by([wrote("A", FIRST, SECOND)], said({EVENTS: at(now)}), MARGIN)
    assert opened == {("A", FIRST): now}, "the second day was open anyway"
    assert not complete(said({EVENTS: at(now)}, reopened=opened))
    assert not complete(said({EVENTS: at(now + 2 * HOUR_MS - 1)}, reopened=opened))
    assert complete(said({EVENTS: at(now + 2 * HOUR_MS)}, reopened=opened))


def test_rows_that_come_before_the_day_is_complete_open_nothing() -> None:
    assert reopened_by([wrote("A", FIRST)], said({EVENTS: at(FIRST_ENDS + HOUR_MS)}), MARGIN) == {}


def test_further_late_rows_keep_a_day_open_for_longer() -> None:
    before = said({EVENTS: at(FIRST_ENDS + 6 * HOUR_MS)}, reopened={("A", FIRST): FIRST_ENDS + 5 * HOUR_MS})
    assert reopened_by([wrote("A", FIRST)], before, MARGIN) == {("A", FIRST): FIRST_ENDS + 6 * HOUR_MS}


def test_open_days_that_are_complete_can_be_closed() -> None:
    days = frozenset({("A", FIRST), ("A", SECOND), ("B", FIRST)})
    lane = Lane(10, Cause.ROTATION, 10, 5, watermark_ms=FIRST_ENDS)
    state = said({EVENTS: at(FIRST_ENDS + 2 * HOUR_MS, {"B": lane})}, open_days=days)
    assert closable(state, MARGIN) == (("A", FIRST),)


def test_an_idle_partition_is_moved_only_to_where_a_day_becomes_complete() -> None:
    midday = FIRST_ENDS + 12 * HOUR_MS
    boundary = FIRST_ENDS + 2 * HOUR_MS
    assert next_boundary_ms(None, midday, MARGIN) == boundary
    assert next_boundary_ms(boundary - 1, midday, MARGIN) == boundary
    assert next_boundary_ms(boundary, midday, MARGIN) is None, "nothing would be gained before the next midnight"
    assert next_boundary_ms(None, FIRST_ENDS + HOUR_MS, MARGIN) == boundary - 24 * HOUR_MS, "not past the margin yet"


def test_an_idle_partition_is_moved_as_well_to_where_a_day_with_late_rows_becomes_complete_again() -> None:
    """Two hours after the late rows, not at the next midnight."""
    late = FIRST_ENDS + 5 * HOUR_MS
    mark = late + HOUR_MS
    assert next_boundary_ms(mark, late + 2 * HOUR_MS - 1, MARGIN, [late]) is None
    assert next_boundary_ms(mark, late + 2 * HOUR_MS, MARGIN, [late]) == late + 2 * HOUR_MS
    assert next_boundary_ms(late + 2 * HOUR_MS, late + 9 * HOUR_MS, MARGIN, [late]) is None


def test_a_watermark_of_the_future_counts_as_now() -> None:
    """A process whose clock was a year ahead left it."""
    year = 365 * 24 * HOUR_MS
    noon = FIRST_ENDS - 12 * HOUR_MS
    state = said({EVENTS: at(noon + year)})
    assert watermark_of(state, "A", noon) == noon
    assert not is_complete(state, "A", FIRST, MARGIN, noon)
    assert is_complete(state, "A", FIRST, MARGIN, FIRST_ENDS + 2 * HOUR_MS)
    late = FIRST_ENDS + 5 * HOUR_MS
    assert reopened_by([wrote("A", FIRST)], state, MARGIN, late) == {("A", FIRST): late}
    opened = said({EVENTS: at(noon + year)}, reopened={("A", FIRST): late}, open_days=frozenset({("A", FIRST)}))
    assert closable(opened, MARGIN, late + 2 * HOUR_MS - 1) == ()
    assert closable(opened, MARGIN, late + 2 * HOUR_MS) == (("A", FIRST),)


def days_table() -> ExportTable:
    return begun(open_table(MemoryStorage(), ("A", "B"), days=DaysSpec(complete_after_seconds=MARGIN)))


def test_the_story_of_a_day_in_the_ledger() -> None:
    """Rows, the watermark past it, late rows, the watermark past those, late rows once more."""
    table = days_table()
    events = [
        *run_of("A", 0, 10, FIRST),
        *run_of("A", 10, 40, SECOND),
        Event(40, "A", FIRST),
        *run_of("B", 41, 50, SECOND),
    ]
    log = Reader([*events, Event(55, "A", FIRST)], ("A", "B"), stage=staged_in(table))
    state = landed(table, log.main(0, 20, watermark_ms=FIRST_ENDS + HOUR_MS))
    assert state.open_days == {("A", FIRST), ("A", SECOND)}
    state = landed(table, log.main(20, 40, watermark_ms=FIRST_ENDS + 3 * HOUR_MS))
    assert state.open_days == {("A", SECOND)}
    state = landed(table, log.main(40, 41, watermark_ms=FIRST_ENDS + 4 * HOUR_MS))
    assert state.open_days == {("A", FIRST), ("A", SECOND)}
    assert state.reopened == {("A", FIRST): FIRST_ENDS + 3 * HOUR_MS}
    assert not complete(state)
    state = landed(table, log.main(41, 50, watermark_ms=FIRST_ENDS + 5 * HOUR_MS))
    assert ("A", FIRST) not in state.open_days
    assert state.reopened == {}, "the ledger forgets what is over"
    assert complete(state)
    state = landed(table, log.main(50, 60, watermark_ms=FIRST_ENDS + 6 * HOUR_MS))
    assert ("A", FIRST) in state.open_days, "it opens as often as rows come"
    assert not complete(state)


def test_an_idle_partition_lets_days_be_complete_by_the_clock() -> None:
    table = days_table()
    log = Reader(run_of("A", 0, 10, FIRST), ("A", "B"), stage=staged_in(table))
    landed(table, log.main(0, 10, watermark_ms=FIRST_ENDS - HOUR_MS))
    table.append(lambda _: Draft(EntryKind.IDLE, idle={EVENTS: FIRST_ENDS + 2 * HOUR_MS}))
    assert complete(table.state())
    assert table.state().open_days == frozenset()
    table.append(lambda _: Draft(EntryKind.IDLE, idle={EVENTS: FIRST_ENDS}))
    assert table.state().of(EVENTS).watermark_ms == FIRST_ENDS + 2 * HOUR_MS, "a watermark never falls"


def test_a_type_left_behind_keeps_its_day_open_until_it_has_caught_up() -> None:
    table = days_table()
    events = [*run_of("A", 0, 10, FIRST), *run_of("B", 10, 20, FIRST), *run_of("A", 20, 40, SECOND)]
    log = Reader(events, ("A", "B"), stage=staged_in(table))
    landed(table, log.main(0, 15, watermark_ms=FIRST_ENDS - HOUR_MS))
    state = landed(table, log.main(15, 40, {"B": Cause.FAILING}, watermark_ms=FIRST_ENDS + 9 * HOUR_MS))
    assert (complete(state, "A"), complete(state, "B")) == (True, False)
    assert ("B", FIRST) in state.open_days
    state = landed(table, log.catch_up({"B": 15}, 40, watermark_ms=FIRST_ENDS - HOUR_MS))
    assert complete(state, "B"), "it is where the others are"
    assert reopened_by((), state, MARGIN) == {}
    assert ("B", FIRST) not in state.open_days


def test_a_day_that_was_closed_before_its_files_turned_out_to_be_stuck_is_open_again() -> None:
    """RULES L4: the entry closed the day, then its rename failed."""
    stuck = Rename("s.pq", f"A/day={FIRST}/events.0.9.parquet", "A", "life-1", 0, 0)
    start = Entry(
        1, EntryKind.START, "garmadon", "b", 1.0, starts=(StartRecord(EVENTS, 0, 1),), types={"A": TypeRecord("")}
    )
    rows = wrote("A", FIRST, watermark_ms=FIRST_ENDS + 9 * HOUR_MS, start=0)
    closing = Entry(2, EntryKind.BATCH, "garmadon", "b", 1.0, slices=(rows,), renames=(stuck,), closed=(("A", FIRST),))
    state = apply(apply(LedgerState(), start), closing)
    assert state.open_days == frozenset()
    state = apply(state, Entry(3, EntryKind.IDLE, "garmadon", "b", 1.0, pending=(stuck,)))
    assert state.open_days == {("A", FIRST)}
    assert closable(state, MARGIN) == ()
    settled = apply(state, Entry(4, EntryKind.IDLE, "garmadon", "b", 1.0))
    assert closable(settled, MARGIN) == (("A", FIRST),)
