"""The join on places: for each window of offsets the rows of table and quarantine, next to the records of the log.

A window takes 9 bytes of memory per offset, however many rows there are. Every window holds a part of each partition,
so that files which mix partitions are read about once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.logs.log import Log, Partition
from penstock.proof.files import DataFile, RowSource, read_places
from penstock.proof.findings import Check, Unproven, Violation, ViolationKind, conclude, earliest, violation_at
from penstock.proof.invariants import Span
from penstock.proof.log import LogFacts
from penstock.proof.subject import Depth, NoPartition, Subject

_OF_QUARANTINE = (ViolationKind.TWICE_IN_QUARANTINE, ViolationKind.BEFORE_ORIGIN, ViolationKind.BEYOND_POSITION)
"""What can be wrong with the rows of the quarantine alone."""

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int32]


@dataclass(slots=True)
class Window:
    """The offsets `[lo, hi)` of a partition: how many rows and quarantined rows each has, and if the log has it.

    The outermost windows also look at what lies outside of their partition.
    """

    lo: int
    hi: int
    first: bool
    last: bool
    table: Numbers = field(init=False)
    quarantine: Numbers = field(init=False)
    again: Numbers | None = None
    """Rows of records that were read again for a type that was added later; None while there is none."""
    log: Flags | None = None
    """None where the log was not read."""

    def __post_init__(self) -> None:
        self.table, self.quarantine = (np.zeros(self.hi - self.lo, np.int32) for _ in range(2))

    def meets(self, lowest: int, highest: int) -> bool:
        return (self.first or highest >= self.lo) and (self.last or lowest < self.hi)

    def part(self, lo: int, hi: int) -> slice:
        """Where the offsets `[lo, hi)` are in the arrays."""
        return slice(max(lo, self.lo) - self.lo, max(min(hi, self.hi), self.lo) - self.lo)

    def within(self, ranges: Iterable[tuple[int, int]]) -> Flags:
        """Which offsets are in these ranges."""
        flags = np.zeros(self.hi - self.lo, np.bool_)
        for lo, hi in ranges:
            flags[self.part(lo, hi)] = True
        return flags


@dataclass(slots=True)
class Tally:
    """What the windows of one partition have shown so far; counts are by span."""

    partition: Partition
    spans: tuple[Span, ...]
    violations: list[Violation] = field(default_factory=list)
    log_violations: list[Violation] = field(default_factory=list)
    held: list[int] = field(init=False)
    records: list[int] = field(init=False)
    log_first: int = 0
    """Of the log, when its records were read."""
    exact: bool = False
    """Whether the log still has every record from its first offset on: its topic is not compacted."""

    def __post_init__(self) -> None:
        self.held, self.records = ([0] * len(self.spans) for _ in range(2))

    @property
    def range(self) -> tuple[int, int]:
        return (self.spans[0].lo, self.spans[-1].hi) if self.spans else (0, 0)

    @property
    def lacking(self) -> int:
        """How many rows are missing over all spans."""
        return sum(max(0, span.held_min - count) for span, count in zip(self.spans, self.held, strict=True))


Windows = Mapping[Partition, Window]


class OffsetJoin:
    """Joins all places of a table with those of its log, window by window."""

    def __init__(self, subject: Subject, depth: Depth, log: Log, facts: LogFacts) -> None:
        self._subject, self._depth, self._log = subject, depth, log
        self._bounds = facts.bounds if depth.deep else {}
        self._sources = [source for source in subject.sources if source.place is not None]
        self._tallies = {partition: Tally(partition, spans) for partition, spans in sorted(subject.spans.items())}
        self.ahead: Counter[str] = Counter()
        """Rows of each source beyond the job's positions that its own position covers: a batch is half landed."""
        self._without_place = subject.rows_unplaced
        self._exact: dict[str, bool] = {}
        self._violations: list[Violation] = []
        self._unreadable: set[str] = set()
        self._files_read: set[tuple[str, str]] = set()
        ranges = {partition: tally.range for partition, tally in self._tallies.items()}
        total = sum(hi - lo for lo, hi in ranges.values())
        count = max(1, -(-total // depth.offsets_per_pass_max))
        for number in range(count):
            windows = {
                partition: Window(
                    lo + (hi - lo) * number // count,
                    lo + (hi - lo) * (number + 1) // count,
                    first=number == 0,
                    last=number == count - 1,
                )
                for partition, (lo, hi) in ranges.items()
            }
            self._read_rows(windows)
            for partition, window in windows.items():
                self._read_log(self._tallies[partition], window)
                self._compare(self._tallies[partition], window)

    def _read_rows(self, windows: Windows) -> None:
        """Count the rows of files that may hold offsets of these windows; the last ones see every file."""
        last = all(window.last for window in windows.values())
        sources = [*self._sources, self._subject.quarantine.source]
        files = sum(len(source.files) for source in sources)
        for source in sources:
            for file in source.files:
                key = (source.storage.url, file.path)
                fresh = key not in self._files_read
                if _may_hold(file, windows) or (last and fresh):
                    try:
                        self._read_file(source, file, windows, fresh)
                    except (pa.ArrowException, OSError):
                        self._unreadable.add(file.path)
                    self._files_read.add(key)
                    self._depth.tell("files", len(self._files_read), files)

    def _read_file(self, source: RowSource, file: DataFile, windows: Windows, fresh: bool) -> None:
        placed: Violation | None = None
        without = 0
        for places in read_places(source, file):
            for partition, rows in self._subject.rows_by_partition(file, places):
                if isinstance(partition, Partition):
                    offsets = rows["offset"].to_numpy()
                    placed = violation_at(partition, int(offsets.min()), ViolationKind.NO_PLACE, int(offsets.max()) + 1)
                    self._count(source, partition, windows[partition], offsets)
                elif partition is NoPartition.NO_PLACE:
                    without += len(rows)
                elif partition is NoPartition.UNKNOWN and fresh:
                    topics = {each.topic for each in self._tallies}
                    row = rows.sort("offset").row(0, named=True)
                    place = (row.get("topic") or min(topics, default=""), row["partition"], row["offset"])
                    self._violations.append(Violation(*place, ViolationKind.UNKNOWN_PARTITION))
        if fresh:
            self._without_place += without
            # The writer of a slice gives a place to each of its rows.
            self._violations += [placed] if without and placed is not None and file.topic_id is not None else []

    def _count(self, source: RowSource, partition: Partition, window: Window, offsets: npt.NDArray[np.int64]) -> None:
        inside = offsets[(offsets >= window.lo) & (offsets < window.hi)]
        counts = window.quarantine if source is self._subject.quarantine.source else window.table
        is_again = inside < source.again.get(partition, 0)
        if is_again.any():
            window.again = np.zeros_like(window.table) if window.again is None else window.again
            np.add.at(window.again, inside[is_again] - window.lo, 1)
        np.add.at(counts, inside[~is_again] - window.lo, 1)
        below, above = offsets[offsets < window.lo], offsets[offsets >= window.hi]
        end = (source.ends or {}).get(partition, self._tallies[partition].range[1])
        # A type that lags has nothing at its own position or beyond.
        beyond = inside[inside >= end]
        if window.last:
            self.ahead[source.name] += int(np.count_nonzero(above < end))
            beyond = np.concatenate([beyond, above[above >= end]])
        if window.first and len(below):
            self._violations.append(violation_at(partition, int(below.min()), ViolationKind.BEFORE_ORIGIN))
        if len(beyond):
            self._violations.append(violation_at(partition, int(beyond.min()), ViolationKind.BEYOND_POSITION))

    def _read_log(self, tally: Tally, window: Window) -> None:
        """Mark the offsets of records that the log still has."""
        partition, bounds = tally.partition, self._bounds.get(tally.partition)
        if bounds is None:
            return
        start, end = max(window.lo, bounds.first), min(window.hi, bounds.end)
        window.log = np.zeros(window.hi - window.lo, np.bool_)
        if start < end:
            step, before, total = f"offsets of {partition}", window.lo - tally.range[0], tally.range[1] - tally.range[0]
            offsets = self._log.offsets(partition, start, end, lambda n: self._depth.tell(step, before + n, total))
            window.log[np.asarray(offsets) - window.lo] = True
        # Retention may have moved while the records were read.
        tally.log_first = max(tally.log_first, self._log.bounds([partition])[partition].first)
        window.log[window.part(window.lo, tally.log_first)] = False
        topic = partition.topic
        if topic not in self._exact:
            self._exact[topic] = self._log.compacted(topic) is False
        tally.exact = self._exact[topic]

    def _compare(self, tally: Tally, window: Window) -> None:
        """Compare how often each offset is held with how often it must be, and with the log."""
        table, quarantine = window.table, window.quarantine
        once = (table > 0) | (quarantine > 0)
        again = np.zeros_like(once) if window.again is None else window.again > 0
        held = once | again
        # An unfinished replay leaves records in both places (RULES Q2).
        in_both = (table > 0) & (quarantine > 0) & (not self._subject.replay_unfinished)
        full = window.within((span.read_from, span.hi) for span in tally.spans if span.full)
        masks = {
            ViolationKind.TWICE: (table > 1) | (again if window.again is None else window.again > 1),
            ViolationKind.TWICE_IN_QUARANTINE: quarantine > 1,
            ViolationKind.BOTH: in_both,
            ViolationKind.MISSING: full & ~held,
        }
        tally.violations += _firsts(tally.partition, window, masks)
        if window.log is not None:
            unfiltered = window.within((span.lo, span.hi) for span in tally.spans if span.unfiltered)
            retained = window.within([(tally.log_first, window.hi)])
            masks = {
                ViolationKind.NOT_IN_LOG: held & ~window.log & retained & tally.exact,
                ViolationKind.MISSING: window.log & unfiltered & ~held,
            }
            tally.log_violations += _firsts(tally.partition, window, masks)
        for number, span in enumerate(tally.spans):
            part = window.part(span.lo, span.hi)
            if part.start < part.stop:
                # What was read again is counted again.
                tally.held[number] += int(np.count_nonzero(once[part]) + np.count_nonzero(again[part]))
                tally.records[number] += int(np.count_nonzero(window.log[part])) if window.log is not None else 0

    def check_offsets(self) -> Check:
        """Whether table and quarantine hold each offset that they must once, and no other."""
        violations = list(self._violations)
        for tally in self._own_tallies():
            if self._sources:
                violations += [*tally.violations, *_count_violations(tally)]
            else:
                violations += [each for each in tally.violations if each.kind in _OF_QUARANTINE]
        violations, unproven = self._known_missing(violations), [*self._unproven()]
        count, first = sum(sum(tally.held) for tally in self._tallies.values()), earliest(violations)
        detail = f"{count} offsets in table and quarantine, each once"
        if self._unreadable:
            names = ", ".join(sorted(self._unreadable)[:5])
            detail = f"{len(self._unreadable)} files cannot be read to their end: {names}"
        elif first is not None:
            detail = str(first)
        elif not self._sources:
            detail = "the rows do not tell their offsets; those of the quarantine are each there once"
        return conclude(
            "offsets",
            detail,
            bool(violations or self._unreadable),
            violations=violations,
            unproven=unproven,
            facts={"offsets": count},
            partitions=self._tallies,
        )

    def check_records(self) -> Check:
        """Whether what the log still has is what the table read, and holds."""
        read = [tally for tally in self._own_tallies() if tally.partition in self._bounds]
        violations = [each for tally in read for each in (*_record_violations(tally), *tally.log_violations)]
        if not self._sources:
            violations = [each for each in violations if each.kind is not ViolationKind.MISSING]
        violations = self._known_missing(violations)
        first, count = earliest(violations), sum(sum(tally.records) for tally in read)
        gone = sum(max(0, min(tally.log_first, tally.range[1]) - tally.range[0]) for tally in read)
        by_totals = f"; {gone} older offsets are no longer in the log: proved by totals and rows" if gone else ""
        compacted = sorted({tally.partition.topic for tally in read if not tally.exact and tally.spans})
        return conclude(
            "records",
            f"{count} records of the log, each accounted for{by_totals}" if first is None else str(first),
            first is not None,
            violations=violations,
            warnings=[f"{topic} is compacted: its log may have fewer records than were read" for topic in compacted],
            facts={"records": count, "offsets_gone": gone},
            partitions=[tally.partition for tally in read],
        )

    def _own_tallies(self) -> list[Tally]:
        """Those of partitions whose rows can be told from those of other jobs."""
        shared = self._subject.incarnations.other_ids
        return [tally for tally in self._tallies.values() if tally.partition.topic_id not in shared]

    @property
    def _lacking(self) -> list[Tally]:
        """Partitions whose missing rows may all be among those without a place."""
        lacking = [tally for tally in self._tallies.values() if tally.lacking]
        return lacking if 0 < sum(tally.lacking for tally in lacking) <= self._without_place else []

    def _known_missing(self, violations: list[Violation]) -> list[Violation]:
        maybe = {(tally.partition.topic, tally.partition.number) for tally in self._lacking}
        missing = ViolationKind.MISSING
        return [each for each in violations if each.kind is not missing or (each.topic, each.partition) not in maybe]

    def _unproven(self) -> Iterator[Unproven]:
        incarnations = self._subject.incarnations
        if not self._sources:
            what = "which records the rows are: they do not carry partition and offset, so they are only counted"
            yield Unproven(what, self._subject.place_remedy)
        elif lacking := self._lacking:
            count = sum(tally.lacking for tally in lacking)
            rows = f"{self._without_place} rows {NoPartition.NO_PLACE.value}"
            remedy = "verify between recreating a topic and compaction; rows older than the place columns stay unknown"
            partitions = frozenset(tally.partition for tally in lacking)
            yield Unproven(f"{count} offsets are not found, and there are {rows}", remedy, partitions)
        shared = frozenset(partition for partition in self._tallies if partition.topic_id in incarnations.other_ids)
        if shared:
            what = f"whose rows are whose: the same topics are written by {', '.join(sorted(incarnations.others))}"
            yield Unproven(what, "give each job a table of its own", shared)


def _may_hold(file: DataFile, windows: Windows) -> bool:
    if file.offsets is None or file.numbers is None:
        return True
    least, most = file.numbers
    return any(least <= each.number <= most and window.meets(*file.offsets) for each, window in windows.items())


def _firsts(partition: Partition, window: Window, masks: Mapping[ViolationKind, Flags]) -> Iterator[Violation]:
    for kind, mask in masks.items():
        if mask.any():
            yield violation_at(partition, window.lo + int(mask.argmax()), kind)


def _count_violations(tally: Tally) -> Iterator[Violation]:
    """Compare the offsets that whole spans hold with their counts."""
    for span, count in zip(tally.spans, tally.held, strict=True):
        if not span.held <= count <= span.held_max:
            kind = ViolationKind.MISSING if count < span.held else ViolationKind.TOO_MANY
            yield violation_at(tally.partition, span.lo, kind, span.hi)


def _record_violations(tally: Tally) -> Iterator[Violation]:
    """Compare the records that the log still has in whole spans with those that were read."""
    for span, records in zip(tally.spans, tally.records, strict=True):
        more, fewer = records > span.totals.read + span.totals.given_up, records < span.totals.read
        if span.read_from >= tally.log_first and (more or (tally.exact and fewer)):
            yield violation_at(tally.partition, span.lo, ViolationKind.NOT_COUNTED, span.hi)
