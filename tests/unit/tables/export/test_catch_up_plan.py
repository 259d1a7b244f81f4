"""What is read again for types that lag: under which routing, around which gap, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import InvariantError
from penstock.job.spec import GapPolicy, Payload, RouteSpec, TombstonePolicy, UnknownTypePolicy
from penstock.logs.log import Bounds, Slice
from penstock.tables.export.catch_up import CatchUp, CatchUpTerms, catch_up, check_residue, lost_lanes
from penstock.tables.export.ledger.entry import Entry, EntryKind, StartRecord, TypeRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.proposal import RoutedPart, slice_record
from penstock.tables.export.ledger.routing import Routing, parse_routing
from penstock.tables.export.ledger.state import Cause, Lane, LedgerState, RoutedFrom, RoutedPartition
from penstock.tables.export.spec import Rotation, TypeStart
from tests.routed_parts import EVENTS, Event, Reader

WHOLE = Bounds(0, 1_000)
NOW = CatchUpTerms({}, now=0.0, flush_now=True)
WAITING = {"B": Cause.ROTATION}


def next_state(state: LedgerState, **contents: object) -> LedgerState:
    return apply(state, Entry(state.number + 1, EntryKind.BATCH, "garmadon", "b", 1.0, **contents))  # type: ignore[arg-type]


def begun() -> LedgerState:
    """The types A and B at offset 0, and two routings that processes may have."""
    types = {name: TypeRecord("", TypeStart.NOW) for name in "AB"}
    state = next_state(LedgerState(), types=types, routings={"old": "{}", "new": "{}"})
    return next_state(state, starts=(StartRecord(EVENTS, 0, 1),))


def landed(state: LedgerState, part: RoutedPart, routing: str = "") -> LedgerState:
    return next_state(state, slices=(slice_record(replace(part, routing=routing), state.of(EVENTS)),))


def reader(kinds: str) -> Reader:
    """A log with a record for each letter, which is its type."""
    return Reader([Event(at, kind) for at, kind in enumerate(kinds)], ("A", "B"))


def planned(state: LedgerState, bounds: Bounds = WHOLE, terms: CatchUpTerms = NOW) -> CatchUp:
    found = catch_up(EVENTS, state.of(EVENTS), bounds, terms)
    assert found is not None
    return found


def place(found: CatchUp) -> tuple[int, int, str]:
    return found.piece.start, found.piece.end, found.routing


# routings


def test_records_are_found_again_under_the_routing_that_they_were_counted_under() -> None:
    """The job file changes at offset 4 while B has records on both sides of it."""
    log = reader("ABABABAB")
    state = landed(begun(), log.main(0, 4, WAITING), "old")
    state = landed(state, log.main(4, 8, WAITING), "new")
    assert place(planned(state)) == (1, 4, "old")
    state = landed(state, log.catch_up({"B": 1}, 4))
    assert place(planned(state)) == (4, 8, "new")
    state = landed(state, log.catch_up({"B": 4}, 8))
    assert state.of(EVENTS).lanes == {}
    assert state.of(EVENTS).totals.conserved


def test_a_partition_remembers_no_more_routings_than_its_lanes_need() -> None:
    log = reader("AAAABAAAAAAA")
    state = landed(begun(), log.main(0, 4, WAITING), "old")
    assert state.of(EVENTS).routings == (RoutedFrom(0, "old"),)
    state = landed(state, log.main(4, 6, WAITING), "new")
    state = landed(state, log.main(6, 8, WAITING), "old")
    assert state.of(EVENTS).routings == (RoutedFrom(4, "new"), RoutedFrom(6, "old")), "B waits since 4"
    state = landed(state, log.catch_up({"B": 4}, 8))
    state = landed(state, log.main(8, 12, WAITING), "old")
    assert state.of(EVENTS).routings == (RoutedFrom(6, "old"),)


def test_two_processes_with_different_job_files_leave_a_border_each_time() -> None:
    log = reader("BBBBBB")
    state = begun()
    for start, routing in ((0, "old"), (2, "new"), (4, "old")):
        state = landed(state, log.main(start, start + 2, WAITING), routing)
    assert [place(planned(state))] == [(0, 2, "old")]
    state = landed(state, log.catch_up({"B": 0}, 2))
    assert [place(planned(state))] == [(2, 4, "new")]


def test_a_backfill_is_found_under_the_routing_of_the_process_that_added_the_type() -> None:
    log = reader("ABAB")
    state = landed(begun(), log.main(0, 4, WAITING), "old")
    state = next_state(state, types={"N": TypeRecord("", TypeStart.BEGINNING, "new")})
    found = planned(state)
    assert (place(found), found.takes) == ((0, 4, "new"), {"N": 0})


def test_a_slice_under_a_routing_that_nobody_entered_is_no_entry() -> None:
    with pytest.raises(InvariantError):
        landed(begun(), reader("AB").main(0, 2, WAITING), "strange")


def test_a_routing_comes_back_from_the_ledger_and_does_not_depend_on_the_order_of_the_file() -> None:
    route = RouteSpec("header", ("kind",), UnknownTypePolicy.TABLE, "rest")
    one = Routing(route, {"A": ("a", "b"), "B": ()}, TombstonePolicy.ROW, Payload.GZIP)
    other = Routing(route, {"B": (), "A": ("b", "a")}, TombstonePolicy.ROW, Payload.GZIP)
    assert parse_routing(one.text) == one
    assert one.id == other.id
    assert (one.is_unknown("rest"), one.is_unknown("A")) == (True, False)


@pytest.mark.parametrize(
    "change",
    [
        {"values": {"A": ("a",)}},
        {"tombstone": TombstonePolicy.FILTER},
        {"payload": Payload.PLAIN},
        {"route": RouteSpec("key")},
    ],
)
def test_whatever_may_give_a_record_another_type_is_another_routing(change: dict[str, object]) -> None:
    one = Routing(RouteSpec("header", ("kind",)), {"A": ("a", "b")}, TombstonePolicy.ROW, Payload.GZIP)
    assert replace(one, **change).id != one.id  # type: ignore[arg-type]


# gaps


def test_a_type_whose_records_the_log_lost_stands_still_and_the_others_go_on() -> None:
    log = reader("ABABABAB")
    lagging = {"A": Cause.ROTATION, "B": Cause.FAILING}
    state = landed(begun(), log.main(0, 4, lagging))
    state = landed(state, log.catch_up({"A": 0}, 4))
    state = landed(state, log.main(4, 8, lagging))
    bounds = Bounds(3, 8)
    assert list(lost_lanes(state.of(EVENTS), bounds)) == ["B"]
    found = planned(state, bounds)
    assert (place(found)[:2], found.takes) == ((4, 8), {"A": 4})
    alone = landed(state, log.catch_up({"A": 4}, 8))
    assert catch_up(EVENTS, alone.of(EVENTS), bounds, NOW) is None


def test_what_a_gap_took_is_counted_however_many_slices_the_rest_needs() -> None:
    """B left 1, 3, 5 and 7; the log begins at 4 by now, and a slice takes two offsets."""
    log = reader("ABABABAB")
    state = landed(begun(), log.main(0, 8, WAITING))
    bounds = Bounds(4, 8)
    terms = replace(NOW, gap=GapPolicy.RECORD, records_max=2)
    for _ in range(2):
        found = planned(state, bounds, terms)
        part = log.catch_up(found.takes, found.piece.end, lost_below=4)
        taken = {name: part.shares[name].counts.read for name in found.takes}
        check_residue(found.piece, state.of(EVENTS), taken, may_vanish=False)
        state = landed(state, part)
    here = state.of(EVENTS)
    assert (here.lanes, here.totals.vanished, here.totals.written) == ({}, 2, 6)


def test_a_gap_of_one_type_excuses_no_other() -> None:
    """A lost records and B did not: that B found too few is a fault all the same."""
    lanes = {"A": Lane(1, Cause.ROTATION, 1, deferred=3), "B": Lane(5, Cause.ROTATION, 5, deferred=2)}
    here = RoutedPartition(8, 0, 1, lanes=lanes)
    piece = Slice(EVENTS, 1, 8, 4)
    check_residue(piece, here, {"A": 1, "B": 2}, may_vanish=False)
    with pytest.raises(InvariantError) as caught:
        check_residue(piece, here, {"A": 1, "B": 1}, may_vanish=False)
    assert caught.value.hint


# time


def test_a_rotation_by_count_or_size_alone_is_due_after_half_an_hour_too() -> None:
    state = landed(begun(), reader("ABAB").main(0, 4, WAITING))
    for rotation in (Rotation(events=100), Rotation(size_bytes=1_000_000)):
        early, late = (CatchUpTerms({"B": rotation}, now=1.0 + seconds) for seconds in (1_799.0, 1_800.0))
        assert catch_up(EVENTS, state.of(EVENTS), WHOLE, early) is None
        assert place(planned(state, terms=late))[:2] == (1, 4)
