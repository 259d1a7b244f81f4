"""Laws of the fold: whatever the order of slices and catch-ups, every record is dealt with once and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.report import UNROUTED
from penstock.tables.export.ledger.codec import decode_entry, decode_state, encode_entry, encode_state
from penstock.tables.export.ledger.entry import Entry, EntryKind, StartRecord, TypeRecord
from penstock.tables.export.ledger.fold import apply
from penstock.tables.export.ledger.proposal import RoutedPart, check, slice_record
from penstock.tables.export.ledger.state import Cause, Lane, LedgerState, RoutedPartition
from penstock.tables.export.spec import TypeStart
from tests.routed_parts import EVENTS, Event, Reader

LOG_ENDS = 24
FIRST_TYPES = ("A", "B", "C")
NEW = "N"
KINDS = (*FIRST_TYPES, NEW, None)
"""What an offset may hold: an event of a type, also of one that is added later, or nothing."""

logs = st.lists(st.sampled_from(KINDS), min_size=LOG_ENDS, max_size=LOG_ENDS)


@dataclass(slots=True)
class Story:
    """A ledger beside a plain account of which offsets were written, which wait and which are gone."""

    log: list[str | None]
    origin: int
    state: LedgerState = field(default_factory=LedgerState)
    types: tuple[str, ...] = FIRST_TYPES
    written: Counter[tuple[str, int]] = field(default_factory=Counter)
    waiting: set[tuple[str, int]] = field(default_factory=set)
    strangers: int = 0
    gap: int = 0
    first: int = 0
    """Where the log begins by now: what was below is gone."""
    vanished: int = 0

    def begin(self) -> None:
        self.add(types={name: TypeRecord("", TypeStart.NOW) for name in FIRST_TYPES})
        self.add(starts=(StartRecord(EVENTS, self.origin, 1),))

    @property
    def here(self) -> RoutedPartition:
        return self.state.of(EVENTS)

    @property
    def position(self) -> int:
        assert self.here.position is not None
        return self.here.position

    def add(self, **contents: object) -> None:
        """Through the wire form, as every other process reads it."""
        entry = Entry(self.state.number + 1, EntryKind.BATCH, "garmadon", "b", 1.0, **contents)  # type: ignore[arg-type]
        before = self.here
        self.state = apply(decode_state(encode_state(self.state)), decode_entry(encode_entry(entry)))
        assert (self.here.watermark_ms or 0) >= (before.watermark_ms or 0)
        for name in before.lanes.keys() & self.here.lanes.keys():
            assert (self.here.lanes[name].watermark_ms or 0) >= (before.lanes[name].watermark_ms or 0)
            assert self.here.lanes[name].position >= before.lanes[name].position

    def land(self, part: RoutedPart) -> None:
        refused = check((part,), self.state).refused
        assert refused == ()
        self.add(slices=(slice_record(part, self.here),))
        refused = check((part,), self.state).refused
        assert refused or part.piece.offsets == 0 or not _moves(part), "the same slice is never taken twice"

    def reader(self) -> Reader:
        return Reader([Event(at, kind) for at, kind in enumerate(self.log) if kind is not None], self.types)

    def read_on(self, offsets: int, lagging: dict[str, Cause], gap: int, watermark_ms: int | None) -> None:
        start, end = self.position, min(LOG_ENDS, self.position + offsets)
        gap = min(gap, end - start)
        left = {name: cause for name, cause in lagging.items() if name in self.types}
        left |= {name: lane.cause for name, lane in self.here.lanes.items()}
        self.land(self.reader().main(start, end, left, gap, watermark_ms))
        self.gap += gap
        self.first = max(self.first, start + gap if gap else 0)
        for at in range(start + gap, end):
            kind = self.log[at]
            if kind in left and kind is not None:
                self.waiting.add((kind, at))
            elif kind in self.types and kind is not None:
                self.written[kind, at] += 1
            elif kind is not None:
                self.strangers += 1

    def catch_up(self, names: list[str], end: int, watermark_ms: int | None) -> None:
        lanes = {name: self.here.lanes[name] for name in names if name in self.here.lanes}
        if not lanes:
            return
        end = min(
            [
                max(end, *(lane.position for lane in lanes.values())),
                *(_until(each, self.position) for each in lanes.values()),
            ]
        )
        lanes = {name: lane for name, lane in lanes.items() if lane.position <= end}
        takes = {name: lane.position for name, lane in lanes.items()}
        self.land(self.reader().catch_up(takes, end, self.first, watermark_ms))
        for name, start in takes.items():
            for at in range(start, end):
                if self.log[at] == name and at >= self.first:
                    self.written[name, at] += 1
                    self.waiting.discard((name, at))
            if end >= self.position:
                gone = {each for each in self.waiting if each[0] == name}
                self.vanished += len(gone)
                self.waiting -= gone

    def add_type(self) -> None:
        if NEW not in self.types:
            self.types = (*self.types, NEW)
            self.add(types={NEW: TypeRecord("", TypeStart.BEGINNING)})

    def hold(self) -> None:
        """The laws, each against the plain account."""
        totals, lanes = self.here.totals, self.here.lanes
        assert totals.conserved
        assert totals.offsets == self.position - self.origin
        assert set(self.written.values()) <= {1}, "written twice"
        assert totals.written == sum(self.written.values())
        assert totals.quarantined == self.strangers
        assert totals.gap == self.gap
        assert totals.deferred == sum(lane.deferred for lane in lanes.values()) == len(self.waiting)
        assert totals.vanished == self.vanished
        for name in self.types:
            waits = [at for kind, at in self.waiting if kind == name and at >= self.first]
            lagging = self.state.position_of(EVENTS, name)
            assert lagging is not None
            assert lagging <= min(waits, default=self.position)
            assert (name in lanes) or lagging == self.position
        found = [self.state.position_of(EVENTS, name) for name in self.types]
        assert self.state.global_position(EVENTS) == min(each for each in found if each is not None)


def _until(lane: Lane, position: int) -> int:
    """A backfill ends where the counting of the deferred begins; then comes the rest."""
    return lane.counted_from if lane.position < lane.counted_from else position


def _moves(part: RoutedPart) -> bool:
    return part.main or any(start < part.piece.end for start in part.takes.values())


def test_what_the_account_calls_a_stranger_has_no_type() -> None:
    part = Reader([Event(0, NEW), Event(1, "A")], FIRST_TYPES).main(0, 2)
    assert part.shares[UNROUTED].counts.quarantined == 1
    assert part.shares["A"].counts.written == 1


watermarks = st.none() | st.integers(1, 100)
causes = st.dictionaries(st.sampled_from((*FIRST_TYPES, NEW)), st.sampled_from([Cause.ROTATION, Cause.FAILING]))


@given(logs, st.integers(0, 5), st.data())
def test_every_record_is_dealt_with_once_and_every_count_adds_up(
    log: list[str | None], origin: int, data: st.DataObject
) -> None:
    story = Story(log, origin)
    story.begin()
    for step in data.draw(st.lists(st.sampled_from(["read", "read", "catch up", "catch up", "new type"]), max_size=14)):
        match step:
            case "read":
                gap = data.draw(st.sampled_from([0, 0, 0, 2]))
                story.read_on(data.draw(st.integers(1, 8)), data.draw(causes), gap, data.draw(watermarks))
            case "catch up":
                names = data.draw(st.lists(st.sampled_from((*FIRST_TYPES, NEW)), unique=True, min_size=1))
                story.first = max(story.first, min(story.position, data.draw(st.sampled_from([0, 0, 0, 6]))))
                story.catch_up(names, data.draw(st.integers(0, LOG_ENDS)), data.draw(watermarks))
            case _:
                story.add_type()
        story.hold()
    for _ in range(2):
        for name in sorted(story.here.lanes):
            story.catch_up([name], story.position, None)
            story.hold()
    assert story.here.lanes == {}
    assert story.here.totals.deferred == 0
    assert story.state.global_position(EVENTS) == story.position
