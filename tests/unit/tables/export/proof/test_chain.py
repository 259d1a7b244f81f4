"""The chain of a ledger's slices, right whatever the story, and broken by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind
from penstock.tables.export.ledger.entry import (
    DeferredRecord,
    Entry,
    EntryKind,
    SliceRecord,
    StartRecord,
    TakenRecord,
    TypeRecord,
    WrittenRecord,
)
from penstock.tables.export.ledger.state import Cause, Lane, LedgerState, Rename, RoutedPartition
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.proof.chain import Chain
from penstock.tables.export.spec import TypeStart
from tests.routed_parts import EVENTS
from tests.unit.tables.export.ledger.test_ledger_laws import FIRST_TYPES, LOG_ENDS, NEW, Story, causes, logs

ZERO = Partition("shop", "topicA", 0)
START = StartRecord(ZERO, 0, 1)


def entry(number: int, *slices: SliceRecord, **more: object) -> Entry:
    return Entry(number, EntryKind.BATCH, "shop", f"b{number}", 1.0, slices=slices, **more)  # type: ignore[arg-type]


def wrote(rows: int) -> dict[str, WrittenRecord]:
    return {"order": WrittenRecord(rows, 1, rows)} if rows else {}


def main(start: int, end: int, left: int = 0) -> SliceRecord:
    """All offsets written as orders but the last ones, which are clicks and left."""
    count = end - start
    deferred = {"click": DeferredRecord(left, end - left, left, Cause.ROTATION)} if left else {}
    totals = Totals(read=count, written=count - left, deferred=left)
    return SliceRecord(ZERO, start, end, 1, totals, written=wrote(count - left), deferred=deferred)


def catch_up(start: int, end: int, count: int) -> SliceRecord:
    totals = Totals(written=count, deferred=-count)
    taken = {"click": TakenRecord(start, count)}
    return SliceRecord(ZERO, start, end, 1, totals, written={"click": WrittenRecord(count, 1, count)}, taken=taken)


def chained(*slices: SliceRecord) -> Chain:
    chain = Chain()
    for number, one in enumerate([entry(1, starts=(START,)), *(entry(2, each) for each in slices)], 1):
        chain.add(replace(one, number=number))
    return chain


def state_at(position: int, totals: Totals, lanes: dict[str, Lane] | None = None) -> LedgerState:
    return LedgerState(partitions={ZERO: RoutedPartition(position, 0, 1, totals, lanes or {})})


def at(offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation("shop", 0, offset, kind, end)


WRITTEN = state_at(30, Totals(read=30, written=30))


def test_slices_that_touch_and_lead_to_the_state_hold() -> None:
    assert chained(main(0, 10), main(10, 30)).close(WRITTEN).ok


@pytest.mark.parametrize(
    ("slices", "violation"),
    [
        ([main(0, 10), main(12, 30)], at(10, ViolationKind.HOLE)),
        ([main(0, 10), main(8, 30)], at(8, ViolationKind.OVERLAP)),
        ([main(0, 10), main(10, 28)], at(28, ViolationKind.HOLE)),
        ([main(0, 10), main(10, 31)], at(30, ViolationKind.BEYOND_POSITION)),
        ([main(0, 10), replace(main(10, 30), end=29)], at(10, ViolationKind.NOT_COUNTED, 29)),
        ([main(0, 10), replace(main(10, 30), written=wrote(19))], at(10, ViolationKind.NOT_COUNTED, 30)),
    ],
)
def test_slices_that_do_not_are_named(slices: list[SliceRecord], violation: Violation) -> None:
    check = chained(*slices).close(WRITTEN)
    assert not check.ok
    assert check.violation == violation


BEHIND = [main(0, 10, left=4), main(10, 20, left=2)]
TOTALS = Totals(read=20, written=14, deferred=6)


def test_a_type_that_is_behind_is_where_the_entries_left_it() -> None:
    lane = Lane(6, Cause.ROTATION, 6, 6)
    assert chained(*BEHIND).close(state_at(20, TOTALS, {"click": lane})).ok
    for wrong in (replace(lane, position=7), replace(lane, deferred=5)):
        check = chained(*BEHIND).close(state_at(20, TOTALS, {"click": wrong}))
        assert check.violation == at(6, ViolationKind.HOLE)
    assert chained(*BEHIND).close(state_at(20, TOTALS)).violation == at(6, ViolationKind.HOLE)


@pytest.mark.parametrize(
    ("slices", "violation"),
    [
        ([catch_up(6, 10, 4), catch_up(12, 20, 2)], at(10, ViolationKind.HOLE)),
        ([catch_up(6, 10, 4), catch_up(8, 20, 2)], at(8, ViolationKind.OVERLAP)),
        ([catch_up(6, 20, 6), catch_up(6, 20, 6)], at(6, ViolationKind.OVERLAP)),
        ([catch_up(6, 10, 4)], at(10, ViolationKind.HOLE)),
    ],
)
def test_catch_ups_that_do_not_chain_up_to_the_lanes_are_named(slices: list[SliceRecord], violation: Violation) -> None:
    caught_up = state_at(20, Totals(read=20, written=20))
    assert chained(*BEHIND, catch_up(6, 10, 4), catch_up(10, 20, 2)).close(caught_up).ok
    check = chained(*BEHIND, *slices).close(caught_up)
    assert not check.ok
    assert check.violation == violation


def test_a_slice_that_writes_a_type_which_is_behind_is_named() -> None:
    wrong = replace(main(20, 30), written={"click": WrittenRecord(10, 1, 10)})
    check = chained(*BEHIND, wrong).check(4)
    assert check.violation == at(6, ViolationKind.HOLE)


def test_an_entry_that_is_gone_breaks_the_chain() -> None:
    assert not chained(main(0, 10), main(10, 30)).close(WRITTEN, missing=[3]).ok


def test_the_files_that_readers_see_are_those_named_and_not_removed() -> None:
    chain = Chain()
    renames = tuple(Rename(f"s{each}", f"order/{each}", "order") for each in "abc")
    chain.add(entry(1, renames=renames))
    chain.add(entry(2, removes=("order/a", "order/b"), renames=(Rename("c1", "order/all", "order", waits=True),)))
    assert set(chain.files) == {"order/c", "order/all"}


def test_a_catch_up_joins_the_spans_that_it_reaches_into() -> None:
    chain = chained(main(0, 5), main(5, 10, left=2), main(10, 20), main(20, 30), catch_up(8, 20, 2))
    here = RoutedPartition(30, 0, 1, Totals(read=30, written=30))
    assert chain.close(LedgerState(partitions={ZERO: here})).ok
    assert chain.spans(ZERO, here) == (
        Span(0, 5, 0, Totals(read=5, written=5)),
        Span(5, 20, 5, Totals(read=15, written=15)),
        Span(20, 30, 20, Totals(read=10, written=10)),
    )


def test_many_slices_are_kept_in_few_spans() -> None:
    chain = Chain(spans_max=20)
    chain.add(entry(1, starts=(START,)))
    for number in range(1000):
        chain.add(entry(number + 2, main(number * 3, number * 3 + 3)))
    here = RoutedPartition(3000, 0, 1, Totals(read=3000, written=3000))
    spans = chain.spans(ZERO, here)
    assert len(spans) <= 20
    assert [one.hi for one in spans[:-1]] == [other.lo for other in spans[1:]]
    assert sum((each.totals for each in spans), Totals()) == here.totals
    assert all(each.full for each in spans)


@dataclass(slots=True)
class ChainedStory(Story):
    """The same account, with the chain that `verify` makes of the entries."""

    chain: Chain = field(default_factory=lambda: Chain(spans_max=16))
    quarantined: list[int] = field(default_factory=list)

    def add(self, **contents: object) -> None:
        # Zero-argument `super` does not work in a class that slots have made again.
        Story.add(self, **contents)
        self.chain.add(Entry(self.state.number, EntryKind.BATCH, "g", "b", 1.0, **contents))  # type: ignore[arg-type]

    def read_on(self, offsets: int, lagging: dict[str, Cause], gap: int, watermark_ms: int | None) -> None:
        first = min(self.position + gap, LOG_ENDS)
        last = min(LOG_ENDS, self.position + offsets)
        known = self.types
        self.quarantined += [at for at in range(first, last) if self.log[at] not in (*known, None)]
        Story.read_on(self, offsets, lagging, gap, watermark_ms)

    def hold(self) -> None:
        Story.hold(self)
        check = self.chain.close(self.state)
        assert check.ok, check.detail
        spans = self.chain.spans(EVENTS, self.here)
        assert (spans[0].lo if spans else self.origin) == self.origin
        assert (spans[-1].hi if spans else self.origin) == self.position
        held = [*(at for _, at in self.written), *self.quarantined]
        for span in spans:
            assert span.held == sum(span.lo <= at < span.hi for at in held)
            if span.full:
                assert set(range(span.read_from, span.hi)) <= set(held)


@given(logs, st.integers(0, 5), st.data())
def test_whatever_the_story_the_chain_leads_to_the_state_and_its_spans_hold_what_was_written(
    log: list[str | None], origin: int, data: st.DataObject
) -> None:
    story = ChainedStory(log, origin)
    story.begin()
    for step in data.draw(st.lists(st.sampled_from(["read", "read", "catch up", "new type"]), max_size=14)):
        match step:
            case "read":
                gap = data.draw(st.sampled_from([0, 0, 0, 2]))
                story.read_on(data.draw(st.integers(1, 8)), data.draw(causes), gap, None)
            case "catch up":
                names = data.draw(st.lists(st.sampled_from((*FIRST_TYPES, NEW)), unique=True, min_size=1))
                story.first = max(story.first, min(story.position, data.draw(st.sampled_from([0, 0, 0, 6]))))
                story.catch_up(names, data.draw(st.integers(0, LOG_ENDS)), None)
            case _:
                story.add_type()
        story.hold()


def test_a_type_that_begins_at_the_beginning_may_double_what_lies_below() -> None:
    chain = chained(main(0, 10))
    chain.add(entry(3, types={"view": TypeRecord("", TypeStart.BEGINNING)}))
    chain.add(entry(4, main(10, 20)))
    assert chain.tracks[ZERO].twice_below == 10
