"""The seed's timelines on the ledger: which offset is the global one at each t, and who is refused."""

from __future__ import annotations

import pytest

from penstock.environment import new_batch_id
from penstock.errors import InvariantError
from penstock.lake.proposal import FencePart
from penstock.lake.state import Totals
from penstock.lake.storage import MemoryStorage
from penstock.logs.log import Partition
from penstock.tables.export.ledger.entry import Entry, EntryKind, SliceRecord, StartRecord, TakenRecord, WrittenRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.state import Cause, LedgerState
from penstock.tables.export.spec import TypeStart
from penstock.tables.export.table import ExportTable
from tests.routed_parts import (
    EVENTS,
    Event,
    Reader,
    begun,
    expected,
    land,
    landed,
    open_table,
    run_of,
    staged_in,
    visible,
)

ABC = ("A", "B", "C")
FAILS = Cause.FAILING
WAITS = Cause.ROTATION


def opened(types: tuple[str, ...] = ABC) -> ExportTable:
    return begun(open_table(MemoryStorage(), types))


def reader(table: ExportTable, events: list[Event], types: tuple[str, ...] = ABC, token: int = 1) -> Reader:
    return Reader(events, types, token=token, stage=staged_in(table))


def global_offset(table: ExportTable) -> int | None:
    return table.state().global_position(EVENTS)


def test_happy_timeline_of_the_seed() -> None:
    """O1 to O5 are 10, 12, 20, 30 and 40; B's first event is at O2, C's at O3."""
    table = opened()
    events = [
        *run_of("A", 0, 10),
        *(Event(offset, "B") for offset in (12, 13, 15, 19, 24, 29)),
        *(Event(offset, "C") for offset in (20, 21, 26, 33, 39)),
    ]
    log = reader(table, events)
    landed(table, log.main(0, 10))
    assert global_offset(table) == 10, "t1: O1"
    # t2 and t3: B and C have events that nobody wrote; there is nothing to land.
    assert global_offset(table) == 10
    landed(table, log.main(10, 30, {"C": WAITS}))
    assert global_offset(table) == 20, "t4: O3, where C's first event waits"
    landed(table, log.main(30, 40, {"C": WAITS}))
    assert global_offset(table) == 20
    landed(table, log.catch_up({"C": 20}, 40))
    assert global_offset(table) == 40, "t5: O5"
    assert visible(table.storage) == expected(events)


def test_happy_timeline_when_every_read_is_landed_at_once() -> None:
    """Also if B and C are read, and left, slice by slice: the offset never passes an event that waits."""
    table = opened()
    events = [
        *run_of("A", 0, 10),
        *run_of("B", 12, 19),
        *run_of("C", 20, 24),
        *run_of("B", 24, 29),
        *run_of("C", 30, 40),
    ]
    log = reader(table, events)
    landed(table, log.main(0, 10))
    landed(table, log.main(10, 13, {"B": WAITS}))
    assert global_offset(table) == 12, "t2: nothing was between O1 and O2, and B waits from O2 on"
    landed(table, log.main(13, 21, {"B": WAITS, "C": WAITS}))
    assert global_offset(table) == 12, "t3"
    landed(table, log.main(21, 30, {"B": WAITS, "C": WAITS}))
    landed(table, log.catch_up({"B": 12}, 30))
    assert global_offset(table) == 20, "t4: O3"
    landed(table, log.main(30, 40, {"C": WAITS}))
    landed(table, log.catch_up({"C": 20}, 40))
    assert global_offset(table) == 40, "t5: O5"
    assert visible(table.storage) == expected(events)


def test_unhappy_timeline_of_the_seed() -> None:
    """O1 to O7 are 10, 14, 20, 30, 34, 50 and 70; A fails until t3."""
    table = opened()
    events = [
        *run_of("A", 0, 10),
        *run_of("B", 14, 18),
        *(Event(offset, "A") for offset in (19, 20, 21, 29)),
        *(Event(offset, "B") for offset in (22, 31, 36, 49)),
        *(Event(offset, "C") for offset in (34, 35, 41, 55, 69)),
    ]
    log = reader(table, events)
    landed(table, log.main(0, 10, {"A": FAILS}))
    assert global_offset(table) == 0, "t1: A fails, no offset"
    landed(table, log.main(10, 15, {"A": FAILS, "B": WAITS}))
    assert global_offset(table) == 0, "t2: no offset"
    landed(table, log.main(15, 20, {"A": FAILS, "B": WAITS}))
    landed(table, log.catch_up({"A": 0}, 20))
    assert global_offset(table) == 14, "t3: O2, from where on B waits"
    landed(table, log.main(20, 30, {"B": WAITS}))
    assert global_offset(table) == 14, "t4: no offset"
    landed(table, log.main(30, 35, {"B": WAITS, "C": WAITS}))
    assert global_offset(table) == 14, "t5: no offset"
    landed(table, log.main(35, 50, {"B": WAITS, "C": WAITS}))
    landed(table, log.catch_up({"B": 14}, 50))
    assert global_offset(table) == 34, "t6: O5"
    landed(table, log.main(50, 70, {"C": WAITS}))
    landed(table, log.catch_up({"C": 34}, 70))
    assert global_offset(table) == 70, "t7: O7"
    assert visible(table.storage) == expected(events)
    totals = table.state().of(EVENTS).totals
    assert (totals.read, totals.written, totals.deferred) == (len(events), len(events), 0)


@pytest.mark.parametrize(("old_end", "new_end"), [(20, 30), (30, 20)], ids=["O1 before O2", "O1 after O2"])
def test_rebalancing_the_late_owner_is_refused_however_far_it_read(old_end: int, new_end: int) -> None:
    storage = MemoryStorage()
    old, new = begun(open_table(storage, ("A",))), open_table(storage, ("A",))
    events = run_of("A", 0, 40)
    late = reader(old, events, ("A",), token=1).main(0, old_end)
    landed(new, FencePart(EVENTS, 2))
    after = landed(new, reader(new, events, ("A",), token=2).main(0, new_end))
    outcome = land(old, late)
    assert outcome.version is None
    assert [each.partition for each in outcome.refused] == [EVENTS]
    assert old.state() == after
    assert after.global_position(EVENTS) == new_end
    assert visible(storage) == expected(events[:new_end])


@pytest.mark.parametrize("fenced", [True, False], ids=["with the fence there", "by the position alone"])
def test_rebalancing_an_old_owner_that_lands_first_moves_the_new_one_on(fenced: bool) -> None:
    """C1 commits O1 before C2 does anything: C2's slice from O0 is refused, and it goes on from O1."""
    storage = MemoryStorage()
    old, new = begun(open_table(storage, ("A",))), open_table(storage, ("A",))
    events = run_of("A", 0, 40)
    successor = reader(new, events, ("A",), token=2)
    planned = successor.main(0, 30)
    landed(old, reader(old, events, ("A",), token=1).main(0, 20))
    if fenced:
        landed(new, FencePart(EVENTS, 2))
    assert [each.partition for each in land(new, planned).refused] == [EVENTS]
    landed(new, successor.main(20, 30))
    assert visible(storage) == expected(events[:30])


def test_app_restart_of_the_seed() -> None:
    """O0 to O4 are 0, 10, 15, 20 and 40. F fails in the first run; S is written once although the run begins anew."""
    storage = MemoryStorage()
    events = [Event(offset, "S" if offset % 2 else "F") for offset in range(40)]
    first = begun(open_table(storage, ("F", "S")))
    log = reader(first, events, ("F", "S"))
    landed(first, log.main(0, 10, {"F": FAILS}))
    landed(first, log.main(10, 20, {"F": FAILS}))
    assert first.state().global_position(EVENTS) == 0, "the overall offset is still O0"
    assert first.state().position_of(EVENTS, "S") == 20, "S is at O3"

    second = open_table(storage, ("F", "S"))
    again = reader(second, events, ("F", "S"))
    assert second.state() == first.state()
    (refusal,) = land(second, again.main(0, 15)).refused
    assert refusal.partition == EVENTS, "S's events from O0 to O2 are there, in files that end elsewhere"
    landed(second, again.catch_up({"F": 0}, 10))
    assert second.state().global_position(EVENTS) == 10, "t1: F has written up to O1"
    landed(second, again.main(20, 40, {"F": WAITS}))
    assert second.state().position_of(EVENTS, "S") == 40, "t3: S is at O4"
    assert second.state().global_position(EVENTS) == 10
    landed(second, again.catch_up({"F": 10}, 40))
    assert second.state().global_position(EVENTS) == 40
    assert visible(storage) == expected(events)


def test_time_based_partitioning_of_the_seed_holds_or_is_bettered() -> None:
    """O0 to O6 are 0, 5, 10, 20, 30, 40 and 50.

    The seed keeps a file open per day, so a day that is still open holds the offset back (t2: O1, t3: O2). A slice
    here writes the rows of all its days in one entry: the position does not depend on days, and is never below
    the seed's. What the table column promises (a restart at any t loses and doubles nothing) is tried at each t.
    """
    storage = MemoryStorage()
    table = begun(open_table(storage, ("A",)))
    second_day = {5, 6, 13, 15, 19}
    events = [Event(each, "A", "2026-03-02" if each in second_day else "2026-03-01") for each in range(30)]
    events += run_of("A", 40, 50, "2026-02-28")
    seed = {"t0": 0, "t1": 0, "t2": 5, "t3": 10, "t4": 30, "t5": 40, "t6": 50}
    ours = {"t0": 0, "t1": 0, "t2": 10, "t3": 20, "t4": 30, "t5": 40, "t6": 50}
    for moment, promised in seed.items():
        end = ours[moment]
        here = table.state().of(EVENTS).position
        assert here is not None
        if end > here:
            landed(table, reader(table, events, ("A",)).main(here, end))
        table = open_table(storage, ("A",))
        found = table.state().global_position(EVENTS)
        assert found == end
        assert found >= promised, moment
        assert visible(storage) == expected(each for each in events if each.offset < found), moment
    names = sorted(each.path for each in storage.list() if each.path.startswith("A/"))
    assert names == [
        "A/day=2026-02-28/events.0.49.parquet",
        "A/day=2026-03-01/events.0.18.parquet",
        "A/day=2026-03-01/events.0.29.parquet",
        "A/day=2026-03-01/events.0.9.parquet",
        "A/day=2026-03-02/events.0.19.parquet",
        "A/day=2026-03-02/events.0.6.parquet",
    ]


def test_a_type_without_events_is_where_the_others_are_and_one_that_failed_is_not() -> None:
    table = opened()
    log = reader(table, [*run_of("A", 0, 100), *run_of("B", 100, 101), *run_of("A", 101, 1000)])
    landed(table, log.main(0, 100))
    landed(table, log.main(100, 500, {"B": FAILS}))
    state = landed(table, log.main(500, 1000, {"B": FAILS}))
    assert state.position_of(EVENTS, "A") == 1000
    assert state.position_of(EVENTS, "C") == 1000, "C never had an event"
    assert state.position_of(EVENTS, "B") == 100, "an old position is no proof that nothing was there since"
    assert state.of(EVENTS).lanes["B"].cause is FAILS
    assert state.global_position(EVENTS) == 100


def test_a_failing_type_without_events_holds_nobody_back() -> None:
    table = opened()
    state = landed(table, reader(table, run_of("A", 0, 50)).main(0, 50, {"B": FAILS}))
    assert state.of(EVENTS).lanes == {}
    assert state.global_position(EVENTS) == 50


def test_days_that_overlap_at_a_crash_lose_nothing() -> None:
    """S1: offsets 1 to 5 are of yesterday, 6 to 8 of today."""
    storage = MemoryStorage()
    events = [*run_of("A", 1, 6, "2026-03-01"), *run_of("A", 6, 9, "2026-03-02")]
    table = begun(open_table(storage, ("A",)), offset=1)
    landed(table, reader(table, events, ("A",)).main(1, 9))
    again = open_table(storage, ("A",))
    assert again.state().global_position(EVENTS) == 9
    assert visible(storage) == expected(events)


def test_a_rare_type_that_is_not_written_at_a_crash_is_read_again() -> None:
    """S2: B's offset 10 waits while A is at 100."""
    storage = MemoryStorage()
    events = [*run_of("A", 0, 10), Event(10, "B"), *run_of("A", 11, 100)]
    table = begun(open_table(storage, ("A", "B")))
    landed(table, reader(table, events, ("A", "B")).main(0, 100, {"B": WAITS}))
    again = open_table(storage, ("A", "B"))
    assert again.state().global_position(EVENTS) == 10
    landed(again, reader(again, events, ("A", "B")).catch_up({"B": 10}, 100))
    assert visible(storage) == expected(events)


def test_a_row_that_is_days_late_is_not_written_again_after_a_restart() -> None:
    """S9: the file of an old day says nothing about where to go on."""
    storage = MemoryStorage()
    events = [*run_of("A", 0, 5), Event(5, "A", "2026-02-24")]
    table = begun(open_table(storage, ("A",)))
    landed(table, reader(table, events, ("A",)).main(0, 6))
    again = open_table(storage, ("A",))
    assert again.state().global_position(EVENTS) == 6
    assert land(again, reader(again, events, ("A",)).main(5, 6)).refused
    assert visible(storage) == expected(events)


def test_a_lane_ends_before_the_others_position_where_nothing_of_the_type_is_left() -> None:
    table = opened()
    log = reader(table, [*run_of("A", 0, 3), *run_of("B", 3, 100)])
    landed(table, log.main(0, 100, {"A": FAILS}))
    state = landed(table, log.catch_up({"A": 0}, 10))
    assert state.of(EVENTS).lanes == {}
    assert state.position_of(EVENTS, "A") == 100


def test_deferred_records_that_the_log_lost_are_counted_as_vanished() -> None:
    table = opened()
    log = reader(table, run_of("A", 0, 20))
    landed(table, log.main(0, 20, {"A": FAILS}))
    state = landed(table, log.catch_up({"A": 0}, 20, lost_below=8))
    totals = state.of(EVENTS).totals
    assert (totals.written, totals.vanished, totals.deferred) == (12, 8, 0)
    assert totals.conserved


def test_a_type_that_begins_at_the_beginning_is_backfilled_up_to_where_it_was_added() -> None:
    storage = MemoryStorage()
    events = [Event(offset, "A" if offset % 2 else "new") for offset in range(30)]
    old = begun(open_table(storage, ("A",)))
    landed(old, reader(old, events, ("A",)).main(0, 20))
    table = open_table(storage, ("A", "new"), start=TypeStart.BEGINNING)
    table.agree_on_types()
    log = reader(table, events, ("A", "new"))
    assert table.state().position_of(EVENTS, "new") == 0
    landed(table, log.main(20, 30, {"new": WAITS}))
    state = landed(table, log.catch_up({"new": 0}, 20))
    assert state.of(EVENTS).totals.backfilled == 10
    assert state.position_of(EVENTS, "new") == 20
    state = landed(table, log.catch_up({"new": 20}, 30))
    totals = state.of(EVENTS).totals
    # Offsets 0 to 19 held 10 records of a type that was unknown then: they stay counted as quarantined.
    assert (totals.read, totals.written, totals.quarantined, totals.backfilled) == (30, 30, 10, 10)
    assert totals.conserved
    assert visible(storage) == expected(events)


def test_a_type_that_begins_now_is_where_the_others_are() -> None:
    storage = MemoryStorage()
    old = begun(open_table(storage, ("A",)))
    landed(old, reader(old, run_of("A", 0, 20), ("A",)).main(0, 20))
    table = open_table(storage, ("A", "new"), start=TypeStart.NOW)
    assert table.agree_on_types().position_of(EVENTS, "new") == 20


def test_partitions_are_judged_each_for_itself() -> None:
    """RULES C4: one is refused, the other lands in the same entry."""
    other = Partition("events", "life-1", 1)
    table = begun(opened(), other, offset=0)
    mine = reader(table, run_of("A", 0, 10))
    theirs = Reader(run_of("A", 0, 10), ABC, other, stage=staged_in(table))
    landed(table, FencePart(other, 7))
    outcome = table.land(new_batch_id(), (mine.main(0, 10), theirs.main(0, 10)))
    assert [each.partition for each in outcome.refused] == [other]
    assert [each.partition for each in outcome.accepted] == [EVENTS]
    state = table.state()
    assert (state.global_position(EVENTS), state.global_position(other)) == (10, 0)
    assert visible(table.storage) == expected(run_of("A", 0, 10))


NOTHING = Totals()
ONE_ROW = WrittenRecord(rows=1, files=1, size_bytes=1)
MISFITS = {
    "a hole": SliceRecord(EVENTS, 11, 20, 1, NOTHING),
    "an overlap": SliceRecord(EVENTS, 9, 20, 1, NOTHING),
    "a type that lags": SliceRecord(EVENTS, 10, 20, 1, NOTHING, written={"A": ONE_ROW}),
    "not from where the type is": SliceRecord(EVENTS, 4, 10, 1, NOTHING, taken={"A": TakenRecord(4, 1)}),
    "a type that does not lag": SliceRecord(EVENTS, 2, 10, 1, NOTHING, taken={"B": TakenRecord(2, 1)}),
    "ends before it begins": SliceRecord(EVENTS, 0, 2, 1, NOTHING, taken={"A": TakenRecord(3, 0)}),
}


@pytest.mark.parametrize("piece", MISFITS.values(), ids=MISFITS.keys())
def test_an_entry_that_would_lose_or_double_rows_is_never_folded(piece: SliceRecord) -> None:
    """A is behind at 3, the partition is at 10."""
    table = opened()
    before = landed(table, reader(table, run_of("A", 3, 10)).main(0, 10, {"A": FAILS}))
    entry = Entry(before.number + 1, EntryKind.BATCH, "garmadon", "b", 1.0, slices=(piece,))
    with pytest.raises(InvariantError):
        apply(before, entry)
    with pytest.raises(InvariantError):
        table.ledger.append(entry)
    assert open_table(table.storage, ABC).state() == before, "nothing of it is in the chain"


def test_entries_are_folded_in_the_order_of_their_numbers() -> None:
    with pytest.raises(InvariantError):
        apply(LedgerState(), Entry(2, EntryKind.START, "garmadon", "b", 1.0, starts=(StartRecord(EVENTS, 0, 1),)))
