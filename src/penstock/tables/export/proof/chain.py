"""The chain of a ledger: slices touch, types catch up from where they are, and all adds up to the state. Pure.

It is a second, simpler reading of the entries than the fold that the state comes from: neither believes the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import msgspec
from msgspec.structs import replace

from penstock.flow.write.offset_ranges import count_of
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.proof.findings import Check, Violation, ViolationKind, conclude, violation_at
from penstock.tables.export.ledger.entry import Entry, EntryKind, ReplayRecord, SliceRecord, TakenRecord
from penstock.tables.export.ledger.names import type_and_day
from penstock.tables.export.ledger.state import LedgerState, Rename, RoutedPartition, TypeDay
from penstock.tables.export.old_proof.invariants import Span
from penstock.tables.export.spec import TypeStart

SPANS_MAX = 100_000
"""Of all partitions together; beyond it neighbouring slices are checked as one."""
_SPANS_OF_PARTITION_MIN = 16


def present(totals: Totals, deleted: int = 0) -> Totals:
    """What must be there: also records that a type's own table had already (RULES L8), but no rows of deleted days."""
    written = totals.written + totals.skipped - deleted
    return replace(totals, written=written, skipped=0, filtered=totals.filtered + deleted)


class Lagging(msgspec.Struct, array_like=True):
    """A type that lags in a partition, as the entries tell it."""

    position: int
    counted_from: int
    deferred: int = 0


class Track(msgspec.Struct):
    """What the entries tell of one partition."""

    origin: int
    position: int
    totals: Totals = Totals()
    lagging: dict[str, Lagging] = msgspec.field(default_factory=dict)
    spans: list[Span] = msgspec.field(default_factory=list)
    twice_below: int | None = None
    """Up to where records may have been read again for a type that came later."""

    def advance(self, piece: SliceRecord, rough: bool, spans_max: int, deleted: int) -> Iterator[Fault]:
        """A slice of the partition itself."""
        if piece.start > self.position:
            yield self.position, ViolationKind.HOLE, None, f"no slice holds [{self.position}, {piece.start})"
        if piece.start < self.position:
            yield piece.start, ViolationKind.OVERLAP, None, f"[{piece.start}, {self.position}) is in two slices"
        for name in sorted(piece.written.keys() & self.lagging.keys()):
            at = self.lagging[name].position
            yield at, ViolationKind.HOLE, None, f"type {name} is written from {piece.start} on and was left at {at}"
        if piece.totals.offsets != piece.end - piece.start:
            yield piece.start, ViolationKind.NOT_COUNTED, piece.end, f"{piece.totals.offsets} offsets are counted"
        self.position = piece.end
        for name, left in piece.deferred.items():
            lane = self.lagging.setdefault(name, Lagging(left.first, left.first))
            lane.deferred += left.count
        totals = present(piece.totals, deleted)
        self.totals += piece.totals
        self.spans.append(Span(piece.start, piece.end, piece.start + totals.gap, totals, rough))
        if len(self.spans) > spans_max:
            pairs = (self.spans[first : first + 2] for first in range(0, len(self.spans), 2))
            self.spans = [reduce(_merged, pair) for pair in pairs]

    def catch_up(self, piece: SliceRecord, taken: Mapping[str, TakenRecord], deleted: int) -> Iterator[Fault]:
        """A slice of types that lagged: each goes on where it was left."""
        totals = piece.totals
        if totals.offsets:
            yield piece.start, ViolationKind.NOT_COUNTED, piece.end, "a catch-up counts offsets a second time"
        for name, took in taken.items():
            lane, start = self.lagging.get(name), took.start
            if lane is None or start < lane.position:
                yield start, ViolationKind.OVERLAP, None, f"type {name} is taken again from {start}"
            elif start > lane.position:
                text = f"nothing takes type {name} in [{lane.position}, {start})"
                yield lane.position, ViolationKind.HOLE, None, text
            if lane is not None:
                totals += self._moved(name, lane, piece.end, took.count)
        self.totals += totals
        first = min((took.start for took in taken.values()), default=piece.start)
        _join(self.spans, first, piece.end, present(totals, deleted))

    def drop(self, lost: Rename, deleted: int) -> None:
        """Rows that were written, and whose staged file was gone before it got its name."""
        totals = Totals(written=-lost.rows, vanished=lost.rows)
        end = lost.start + 1
        if lost.run:
            # Its rows may be of any slices from there on.
            totals, end = Totals(quarantined=-lost.rows, replayed=-lost.rows, vanished=lost.rows), self.position
        self.totals += totals
        _join(self.spans, lost.start, end, present(totals, -deleted))

    def _moved(self, name: str, lane: Lagging, end: int, count: int) -> Totals:
        """Move a lane to the end of a slice; what was counted and not found when it ends has vanished."""
        if end > lane.counted_from:
            lane.deferred -= count
        lane.position = end
        if end < self.position and (lane.deferred or end < lane.counted_from):
            return Totals()
        del self.lagging[name]
        return Totals(deferred=-lane.deferred, vanished=lane.deferred)


Fault = tuple[int, ViolationKind, int | None, str]
"""Offset, kind, end of the range if it is one, and the text."""


@dataclass(slots=True)
class Chain:
    """Takes every entry in turn and keeps what the next ones must fit to."""

    spans_max: int = SPANS_MAX
    tracks: dict[Partition, Track] = field(default_factory=dict)
    deleted: Mapping[TypeDay, int] = field(default_factory=dict)
    """Days that a person has deleted, each with the last entry whose rows went with it."""
    files: dict[str, int] = field(default_factory=dict)
    """The final names that readers see once every entry is finished, with the entry that gave them."""
    days: dict[TypeDay, int] = field(default_factory=dict)
    """The rows of each day of a type."""
    last_written: dict[TypeDay, int] = field(default_factory=dict)
    """The last entry that brought rows of the day, or replaced files of it."""
    first_closed: dict[TypeDay, int] = field(default_factory=dict)
    """The entry with which a day was complete for the first time."""
    deleted_rows: dict[TypeDay, int] = field(default_factory=dict)
    rebuilt: bool = False
    """Whether files are older than the entries: the ledger was made again from them."""
    slices: int = 0
    texts: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    faulty: set[Partition] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        rough = entry.kind is EntryKind.REBUILD
        self.rebuilt |= rough
        for start in entry.starts:
            self.tracks[start.partition] = Track(start.offset, start.offset)
        for name, record in entry.types.items():
            if record.start is TypeStart.BEGINNING:
                self._backfill(name)
        for piece in entry.slices:
            self._slice(piece, entry.number, rough)
        if entry.replay is not None:
            self._replay(entry.replay, entry.number)
        for lost in entry.dropped:
            self._drop(lost, entry.number)
        for path in entry.removes:
            self.files.pop(path, None)
        for rename in entry.renames:
            self.files[rename.target] = entry.number
            if (place := type_and_day(rename.target)) in self.days and place is not None:
                self.last_written[place] = entry.number
        for day in entry.closed:
            self.first_closed.setdefault(day, entry.number)

    def _drop(self, lost: Rename, number: int) -> None:
        self.files.pop(lost.target, None)
        day = type_and_day(lost.target) or ("", "")
        self.days[day] = self.days.get(day, 0) - lost.rows
        deleted = lost.rows if number <= self.deleted.get(day, 0) else 0
        if deleted:
            self.deleted_rows[day] -= deleted
        for partition, track in self.tracks.items():
            if (partition.topic_id, partition.number) == (lost.topic_id, lost.partition):
                track.drop(lost, deleted)

    def _slice(self, piece: SliceRecord, number: int, rough: bool) -> None:
        self.slices += 1
        track = self.tracks.get(piece.partition)
        if track is None:
            unknown = (piece.start, ViolationKind.UNKNOWN_PARTITION, None, "was never started")
            self._tell(piece.partition, number, unknown)
            return
        rows = sum(each.rows for each in piece.written.values())
        deleted = self._count_days(piece, number)
        if not piece.totals.conserved or rows != piece.totals.written:
            text = f"the counts of [{piece.start}, {piece.end}) do not add up"
            self._tell(piece.partition, number, (piece.start, ViolationKind.NOT_COUNTED, piece.end, text))
        if piece.taken is None:
            spans_max = max(_SPANS_OF_PARTITION_MIN, self.spans_max // len(self.tracks))
            faults = track.advance(piece, rough, spans_max, deleted)
        else:
            faults = track.catch_up(piece, piece.taken, deleted)
        for fault in faults:
            self._tell(piece.partition, number, fault)

    def _count_days(self, piece: SliceRecord | ReplayRecord, number: int) -> int:
        """Note the rows of each day; how many of them are deleted by now."""
        gone = 0
        for name, written in piece.written.items():
            for day, rows in written.days.items():
                self.days[name, day] = self.days.get((name, day), 0) + rows
                self.last_written[name, day] = number
                if number <= self.deleted.get((name, day), 0):
                    self.deleted_rows[name, day] = self.deleted_rows.get((name, day), 0) + rows
                    gone += rows
        return gone

    def _replay(self, replay: ReplayRecord, number: int) -> None:
        """A run takes records out of quarantine: they stay where the slices counted them."""
        for partition, ranges in replay.offsets:
            track = self.tracks.get(partition)
            if track is None or ranges[-1][1] > track.position:
                text = "records are replayed that nobody read"
                self._tell(partition, number, (ranges[0][0], ViolationKind.BEYOND_POSITION, ranges[-1][1], text))
            else:
                track.totals += Totals(replayed=count_of(ranges))
        self._count_days(replay, number)
        rows = sum(each.rows for each in replay.written.values())
        replayed = sum(count_of(ranges) for _, ranges in replay.offsets)
        if rows != replayed:
            self.texts.append(f"entry {number}: replay run {replay.run} has {replayed} offsets and other rows")

    def _backfill(self, name: str) -> None:
        for track in self.tracks.values():
            if track.position > track.origin:
                track.lagging[name] = Lagging(track.origin, track.position)
                track.twice_below = track.position

    def _tell(self, partition: Partition, number: int | None, fault: Fault) -> None:
        offset, kind, end, text = fault
        where = "" if number is None else f"entry {number}: "
        self.texts.append(f"{where}{partition}: {text}")
        self.violations.append(violation_at(partition, offset, kind, end))
        self.faulty.add(partition)

    def close(self, state: LedgerState, missing: Sequence[int] = ()) -> Check:
        """Whether the chain is whole and leads to the state; `missing` are numbers whose entries are gone."""
        for number in missing:
            self.texts.append(f"entry {number} is gone or cannot be read")
        for partition, here in sorted(state.partitions.items()):
            for fault in _differences(self.tracks.get(partition), here):
                self._tell(partition, None, fault)
        for partition in sorted(self.tracks.keys() - state.partitions.keys()):
            fault = (0, ViolationKind.UNKNOWN_PARTITION, None, "the ledger's state does not have it")
            self._tell(partition, None, fault)
        return self.check(state.number)

    def check(self, number: int) -> Check:
        detail = "; ".join(self.texts) or f"{self.slices} slices of {number} entries touch and add up"
        facts = {"slices": self.slices, "whole_history": int(not self.rebuilt)}
        return conclude(
            "slices", detail, bool(self.texts), violations=self.violations, facts=facts, partitions=self.tracks
        )

    def spans(self, partition: Partition, here: RoutedPartition) -> tuple[Span, ...]:
        """What must lie where; of a chain that is broken there only the totals are believed."""
        if here.origin is None or here.position is None:
            return ()
        track = self.tracks.get(partition)
        if track is None or partition in self.faulty or not track.spans:
            return (Span(here.origin, here.position, here.origin, present(here.totals), self.rebuilt),)
        return tuple(track.spans)


def _differences(track: Track | None, here: RoutedPartition) -> Iterator[Fault]:
    if here.position is None or here.origin is None:
        return
    if track is None:
        yield here.origin, ViolationKind.HOLE, None, "no entry starts it"
        return
    if track.origin != here.origin:
        kind = ViolationKind.BEFORE_ORIGIN if track.origin < here.origin else ViolationKind.HOLE
        first = min(track.origin, here.origin)
        yield first, kind, None, f"the entries start at {track.origin}, the origin is {here.origin}"
    if track.position != here.position:
        kind = ViolationKind.HOLE if track.position < here.position else ViolationKind.BEYOND_POSITION
        first = min(track.position, here.position)
        yield first, kind, None, f"slices end at {track.position}, the position is {here.position}"
    for name in sorted(track.lagging.keys() | here.lanes.keys()):
        mine, lane = track.lagging.get(name), here.lanes.get(name)
        at = None if mine is None else (mine.position, mine.deferred)
        stated = None if lane is None else (lane.position, lane.deferred)
        if at != stated:
            first = min(each[0] for each in (at, stated) if each is not None)
            told = f"type {name} is at {_told(at)} by the entries and at {_told(stated)} by the state"
            yield first, ViolationKind.HOLE, None, told
    # Slices that end elsewhere count other offsets, too.
    if track.position == here.position and track.totals != here.totals:
        text = f"the slices count {track.totals}, the totals are {here.totals}"
        yield here.origin, ViolationKind.NOT_COUNTED, max(here.position, here.origin), text


def _told(place: tuple[int, int] | None) -> str:
    return "the partition's position" if place is None else f"{place[0]} with {place[1]} records left"


def _merged(one: Span, other: Span) -> Span:
    """Two neighbours as one; where gaps lie is known only for one at the very beginning."""
    read_from = one.lo if other.totals.gap else one.read_from
    return Span(one.lo, other.hi, read_from, one.totals + other.totals, one.rough or other.rough)


def _join(spans: list[Span], lo: int, hi: int, added: Totals) -> None:
    """Make one span of those that `[lo, hi)` touches, and give it further counts."""
    first = bisect_right(spans, lo, key=lambda each: each.hi)
    last = bisect_left(spans, hi, key=lambda each: each.lo)
    if first >= last:
        return
    whole = reduce(_merged, spans[first:last])
    spans[first:last] = [replace(whole, totals=whole.totals + added)]
