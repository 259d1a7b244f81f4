"""The join on places: for each window of offsets the rows of table and quarantine, next to the records of the log.

A window takes 9 bytes of memory per offset, however many rows there are. Every window holds a part of each partition,
so that files which mix partitions are read about once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.logs.log import Log, Partition
from penstock.proof.files import DataFile, RowSource, read_places
from penstock.proof.findings import Check, Unproven, Violation, ViolationKind, conclude, earliest, violation_at
from penstock.proof.invariants import Span
from penstock.proof.log import LogFacts
from penstock.proof.places import NoUnit, Unit
from penstock.proof.subject import Depth, Subject

_OF_QUARANTINE = (ViolationKind.TWICE_IN_QUARANTINE, ViolationKind.BEFORE_ORIGIN, ViolationKind.BEYOND_POSITION)
_FAR = 1 << 63

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int32]


@dataclass(slots=True)
class Window:
    """The offsets `[lo, hi)` of a unit: how many rows and quarantined rows each has, and whether the log has it."""

    lo: int
    hi: int
    first: bool
    last: bool
    table: Numbers = field(init=False)
    quarantine: Numbers = field(init=False)
    log: Flags | None = None

    def __post_init__(self) -> None:
        self.table, self.quarantine = (np.zeros(self.hi - self.lo, np.int32) for _ in range(2))

    @property
    def reach(self) -> tuple[int, int]:
        """The offsets that are looked at: the outermost windows also take what lies outside of their partition."""
        return -_FAR if self.first else self.lo, _FAR if self.last else self.hi

    def part(self, lo: int, hi: int) -> slice:
        """Where the offsets `[lo, hi)` are in the arrays."""
        return slice(max(lo, self.lo) - self.lo, max(min(hi, self.hi), self.lo) - self.lo)

    def covered(self, parts: Iterable[tuple[int, int]]) -> Numbers:
        """How many of these ranges each offset is in."""
        times = np.zeros(self.hi - self.lo, np.int32)
        for lo, hi in parts:
            times[self.part(lo, hi)] += 1
        return times


@dataclass(slots=True)
class Tally:
    """What the windows of one unit have shown so far; counts are by span of its first partition."""

    unit: Unit
    violations: list[Violation] = field(default_factory=list)
    log_violations: list[Violation] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    quarantined: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    log_first: int = 0
    """Of the log, when its records were read."""
    exact: bool = False
    """Whether the log still has every record from its first offset on: its topic is not compacted."""

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.unit.spans[self.unit.partition]

    @property
    def lacking(self) -> int:
        """How many rows are missing over all spans."""
        counted = zip(self.spans, self.held, strict=True) if self.unit.single else ()
        return sum(max(0, span.held_min - count) for span, count in counted)


class OffsetJoin:
    """Joins all places of a table with those of its log, window by window."""

    def __init__(self, subject: Subject, depth: Depth, log: Log, facts: LogFacts) -> None:
        self._subject, self._depth, self._log = subject, depth, log
        self._bounds = facts.bounds if depth.deep else {}
        self._sources = [source for source in subject.sources if source.place is not None]
        self.index = subject.index
        self._tallies = {unit: Tally(unit) for unit in self.index.units}
        for tally in self._tallies.values():
            tally.held, tally.quarantined, tally.records = ([0] * len(tally.spans) for _ in range(3))
        self.ahead: Counter[str] = Counter()
        """Rows of each type beyond the job's positions that its own position covers: a batch is half landed."""
        self._violations: list[Violation] = []
        self._unreadable: set[str] = set()
        self._without_place: Counter[tuple[str | None, int | None]] = Counter()
        """Rows that tell no partition and offset, by the topic id of their file and what else they tell."""
        self._files_read: set[tuple[str, str]] = set()
        for windows in self._passes(depth.offsets_per_pass_max):
            self._read_rows(windows)
            for unit, window in windows.items():
                self._read_log(self._tallies[unit], window)
                self._compare(self._tallies[unit], window)

    # reading

    def _passes(self, offsets_max: int) -> Iterator[dict[Unit, Window]]:
        ranges = {unit: unit.range for unit in self._tallies}
        count = max(1, -(-sum(hi - lo for lo, hi in ranges.values()) // offsets_max))
        for number in range(count):
            cuts = {
                unit: [lo + (hi - lo) * at // count for at in (number, number + 1)] for unit, (lo, hi) in ranges.items()
            }
            yield {unit: Window(lo, hi, number == 0, number == count - 1) for unit, (lo, hi) in cuts.items()}

    def _read_rows(self, windows: dict[Unit, Window]) -> None:
        last = all(window.last for window in windows.values())
        quarantine = self._subject.quarantine.source
        sources = [*self._sources, quarantine]
        total = sum(len(source.files) for source in sources)
        for number, source in enumerate(sources):
            for file in source.files:
                key = (str(number), file.path)
                if not (_may_hold(file, windows) or (last and key not in self._files_read)):
                    continue
                try:
                    self._read_file(source, file, windows, source is quarantine, key not in self._files_read)
                except (pa.ArrowException, OSError):
                    self._unreadable.add(file.path)
                self._files_read.add(key)
                self._depth.tell("files", len(self._files_read), total)

    def _read_file(
        self, source: RowSource, file: DataFile, windows: dict[Unit, Window], is_quarantine: bool, fresh: bool
    ) -> None:
        placed: tuple[Partition, int] | None = None
        without: Counter[tuple[str | None, int | None]] = Counter()
        for places in read_places(source, file, self._subject.job.name):
            for unit, rows in self.index.groups(file, places):
                offsets = rows["offset"].to_numpy()
                if isinstance(unit, Unit):
                    placed = (unit.partition, int(offsets.min()))
                    self._count(source, unit, windows[unit], offsets, is_quarantine)
                elif unit is NoUnit.NO_PLACE:
                    without[file.topic_id, rows["partition"][0]] += len(rows)
                elif unit is NoUnit.UNKNOWN and fresh:
                    row = rows.sort("offset").row(0, named=True)
                    topic = row.get("topic") or self.index.units[0].partition.topic if self.index.units else "?"
                    kind = ViolationKind.UNKNOWN_PARTITION
                    self._violations.append(Violation(topic, row["partition"], row["offset"], kind))
        if without and fresh:
            self._without_place += without
            if placed is not None and file.topic_id is not None:
                # The writer of a slice gives a place to each of its rows.
                end = placed[1] + 1 if file.offsets is None else file.offsets[1] + 1
                self._violations.append(violation_at(*placed, ViolationKind.NO_PLACE, end))

    def _count(
        self, source: RowSource, unit: Unit, window: Window, offsets: npt.NDArray[np.int64], is_quarantine: bool
    ) -> None:
        ends = source.ends or {}
        inside = offsets[(offsets >= window.lo) & (offsets < window.hi)]
        np.add.at(window.quarantine if is_quarantine else window.table, inside - window.lo, 1)
        below, above = offsets[offsets < window.lo], offsets[offsets >= window.hi]
        partition = unit.partition
        if window.first and len(below):
            self._violations.append(violation_at(partition, int(below.min()), ViolationKind.BEFORE_ORIGIN))
        if not window.last:
            above = above[:0]
        end = ends.get(partition, unit.range[1])
        self.ahead[source.name] += int(np.count_nonzero(above < end))
        # A type that lags has nothing at its own position or beyond.
        beyond = [*above[above >= end], *inside[inside >= end]]
        if beyond:
            self._violations.append(violation_at(partition, int(min(beyond)), ViolationKind.BEYOND_POSITION))

    def _read_log(self, tally: Tally, window: Window) -> None:
        """Mark the offsets of records that the log still has."""
        partition = tally.unit.partition
        bounds = self._bounds.get(partition)
        if bounds is None or not tally.spans:
            return
        start = max(window.lo, tally.spans[0].lo, bounds.first)
        end = min(window.hi, tally.spans[-1].hi, bounds.end)
        window.log = np.zeros(window.hi - window.lo, np.bool_)
        if start < end:
            tell = self._telling()
            window.log[np.asarray(self._log.offsets(partition, start, end, tell)) - window.lo] = True
        # Retention may have moved while the records were read.
        tally.log_first = max(tally.log_first, self._log.bounds([partition])[partition].first)
        window.log[window.part(window.lo, tally.log_first)] = False
        tally.exact = self._log.compacted(partition.topic) is False

    def _telling(self) -> Callable[[int], None]:
        total = sum(
            max(0, min(tally.spans[-1].hi, bounds.end) - max(tally.spans[0].lo, bounds.first))
            for tally in self._tallies.values()
            if tally.spans and (bounds := self._bounds.get(tally.unit.partition)) is not None
        )
        before = sum(sum(tally.records) for tally in self._tallies.values())
        return lambda done: self._depth.tell("records of the log", before + done, total)

    # comparing

    def _compare(self, tally: Tally, window: Window) -> None:
        """Compare how often each offset is held with how often it must and may be."""
        unit, table, quarantine = tally.unit, window.table, window.quarantine
        every = [span for its in unit.spans.values() for span in its]
        most = window.covered((span.lo, span.hi) for span in every)
        least = window.covered((span.read_from, span.hi) for span in every if span.full)
        held = table + quarantine
        both = (held > most) & (table <= most) & (quarantine <= most)
        masks = {
            ViolationKind.TWICE: table > most,
            ViolationKind.TWICE_IN_QUARANTINE: quarantine > most,
            # An unfinished replay leaves records in both places (RULES Q2).
            ViolationKind.BOTH: both & (not self._subject.replay_unfinished),
            ViolationKind.MISSING: held < least,
        }
        tally.violations += _firsts(unit.partition, window, masks)
        held = np.minimum(held, most)
        if window.log is not None:
            own = window.covered((span.lo, span.hi) for span in tally.spans)
            unfiltered = window.covered((span.lo, span.hi) for span in tally.spans if span.unfiltered)
            unknown = held > most - own + window.log
            unknown[window.part(window.lo, tally.log_first)] = False
            masks = {
                ViolationKind.NOT_IN_LOG: unknown & tally.exact,
                ViolationKind.MISSING: window.log & (unfiltered > 0) & (held == 0),
            }
            tally.log_violations += _firsts(unit.partition, window, masks)
        for number, span in enumerate(tally.spans):
            part = window.part(span.lo, span.hi)
            if part.start < part.stop:
                tally.held[number] += int(held[part].sum())
                tally.quarantined[number] += int(quarantine[part].sum())
                tally.records[number] += int(np.count_nonzero(window.log[part])) if window.log is not None else 0

    # results

    def check_offsets(self) -> Check:
        """Whether table and quarantine hold each offset that they must once, and no other."""
        violations, unproven = list(self._violations), self._unproven()
        count = 0
        for tally in self._owned():
            if self._sources:
                violations += [*tally.violations, *_count_violations(tally, self._subject)]
                count += sum(tally.held)
            else:
                violations += [each for each in tally.violations if each.kind in _OF_QUARANTINE]
            violations += _quarantine_violations(tally, self._subject)
        violations = [violation for violation in violations if not self._may_be_unplaced(violation)]
        first = earliest(violations)
        detail = f"{count} offsets in table and quarantine, each once"
        if not self._sources:
            detail = "the rows do not tell their offsets; those of the quarantine are each there once"
        if self._unreadable:
            names = ", ".join(sorted(self._unreadable)[:5])
            detail = f"{len(self._unreadable)} files cannot be read to their end: {names}"
        return conclude(
            "offsets",
            detail if first is None or self._unreadable else str(first),
            bool(violations or self._unreadable),
            violations=violations,
            unproven=unproven,
            facts={"offsets": count},
            partitions=self._subject.states,
        )

    def check_records(self) -> Check:
        """Whether what the log still has is what the table read, and holds."""
        violations: list[Violation] = []
        read = [tally for tally in self._owned() if tally.unit.partition in self._bounds]
        for tally in read:
            violations += _record_violations(tally)
            kinds = (ViolationKind.NOT_IN_LOG, *([ViolationKind.MISSING] if self._sources else []))
            violations += [each for each in tally.log_violations if each.kind in kinds]
        violations = [violation for violation in violations if not self._may_be_unplaced(violation)]
        count = sum(sum(tally.records) for tally in read)
        gone = sum(max(0, min(each.log_first, each.spans[-1].hi) - each.spans[0].lo) for each in read if each.spans)
        by_totals = f"; {gone} older offsets are no longer in the log: proved by totals and rows" if gone else ""
        first = earliest(violations)
        compacted = sorted({each.unit.partition.topic for each in read if not each.exact and each.spans})
        return conclude(
            "records",
            f"{count} records of the log, each accounted for{by_totals}" if first is None else str(first),
            first is not None,
            violations=violations,
            warnings=[f"{topic} is compacted: its log may have fewer records than were read" for topic in compacted],
            facts={"records": count, "offsets_gone": gone},
            partitions=[tally.unit.partition for tally in read],
        )

    def _owned(self) -> list[Tally]:
        """The partitions whose rows can be told from those of other jobs."""
        shared = self._subject.incarnations.other_ids
        return [tally for tally in self._tallies.values() if not shared & {each.topic_id for each in tally.unit.spans}]

    def _rows_without_place(self, unit: Unit) -> int:
        ids, numbers = {None, *(each.topic_id for each in unit.spans)}, (None, unit.partition.number)
        return sum(count for (id, number), count in self._without_place.items() if id in ids and number in numbers)

    def _may_be_unplaced(self, violation: Violation) -> bool:
        """Whether a row that seems to be missing may be one of those without a place."""
        if violation.kind is not ViolationKind.MISSING or not self._without_place:
            return False
        return any(
            0 < tally.lacking <= self._rows_without_place(tally.unit)
            for tally in self._tallies.values()
            if (violation.topic, violation.partition) == (tally.unit.partition.topic, tally.unit.partition.number)
        )

    def _unproven(self) -> list[Unproven]:
        found: list[Unproven] = []
        if not self._sources:
            what = "which records the rows are: they do not carry partition and offset, so they are only counted"
            found.append(Unproven(what, self._subject.place_remedy))
        for unit, tally in self._tallies.items() if self._sources else ():
            without = self._rows_without_place(unit)
            if 0 < tally.lacking <= without:
                what = f"{tally.lacking} offsets are not found, and {without} rows tell no partition and offset: "
                remedy = "rows from before the columns were kept can only be counted"
                found.append(Unproven(f"{what}they may be theirs", remedy, frozenset(unit.spans)))
            if not unit.single:
                what = "which incarnation of a recreated topic compacted rows belong to: their offsets add up"
                remedy = "verify between recreating a topic and the next compaction"
                found.append(Unproven(what, remedy, frozenset(unit.spans)))
        if shared := frozenset(
            each for each in self._subject.states if each.topic_id in self._subject.incarnations.other_ids
        ):
            names = ", ".join(sorted(self._subject.incarnations.others))
            what = f"whose rows are whose: the same topics are also written by {names}"
            found.append(Unproven(what, "give each job a table of its own", shared))
        return found


def _may_hold(file: DataFile, windows: dict[Unit, Window]) -> bool:
    if file.offsets is None or file.numbers is None:
        return True
    (low, high), (least, most) = file.offsets, file.numbers
    return any(
        window.reach[0] <= high and low < window.reach[1] and least <= unit.partition.number <= most
        for unit, window in windows.items()
    )


def _firsts(partition: Partition, window: Window, masks: dict[ViolationKind, Flags]) -> Iterator[Violation]:
    for kind, mask in masks.items():
        if mask.any():
            yield violation_at(partition, window.lo + int(mask.argmax()), kind)


def _count_violations(tally: Tally, subject: Subject) -> Iterator[Violation]:
    """Compare the offsets that whole spans hold with their counts, and those of the partition with its totals."""
    if not tally.unit.single or not tally.spans:
        return
    partition, counted = tally.unit.partition, zip(tally.spans, tally.held, strict=True)
    wrong = [(span, count) for span, count in counted if not span.held <= count <= span.held_max]
    for span, count in wrong:
        kind = ViolationKind.MISSING if count < span.held else ViolationKind.TOO_MANY
        yield violation_at(partition, span.lo, kind, span.hi)
    totals = subject.states[partition].totals
    surplus = sum(tally.held) - totals.written - totals.quarantined
    if surplus and not wrong:
        kind = ViolationKind.MISSING if surplus < 0 else ViolationKind.TOO_MANY
        yield violation_at(partition, tally.spans[0].lo, kind, tally.spans[-1].hi)


def _quarantine_violations(tally: Tally, subject: Subject) -> Iterator[Violation]:
    """Compare the quarantined records of whole spans with their counts; a replay takes some of them out."""
    if not tally.unit.single:
        return
    replayed = subject.states[tally.unit.partition].totals.replayed
    for span, count in zip(tally.spans, tally.quarantined, strict=True):
        if count > span.totals.quarantined + span.totals.deferred:
            yield violation_at(tally.unit.partition, span.lo, ViolationKind.TOO_MANY_QUARANTINED, span.hi)
        elif count < span.totals.quarantined and not replayed:
            yield violation_at(tally.unit.partition, span.lo, ViolationKind.MISSING_IN_QUARANTINE, span.hi)


def _record_violations(tally: Tally) -> Iterator[Violation]:
    """Compare the records that the log still has in whole spans with those that were read."""
    for span, records in zip(tally.spans, tally.records, strict=True):
        more, fewer = records > span.totals.read + span.totals.given_up, records < span.totals.read
        if span.read_from >= tally.log_first and (more or (tally.exact and fewer)):
            yield violation_at(tally.unit.partition, span.lo, ViolationKind.NOT_COUNTED, span.hi)
