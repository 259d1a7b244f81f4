"""The checks of a verification that are the same for every kind of table (I2, I3).

The order: the table by itself (totals, slices, rows), then the places of its rows (offsets), then the log (bounds,
records), then values. Nothing is written. A job may run meanwhile: one version of the table is checked.

Places are joined in windows of offsets: the rows of table and quarantine, next to the records of the log. A window
takes 9 bytes of memory per offset, however many rows there are. Every window holds a part of each partition, so that
files which mix partitions are read about once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.logs.log import Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Proof, Unproven, Violation, ViolationKind, earliest, violation_at
from penstock.proof.numbers import CommittedSlice, LogFacts, check_log, check_slices, check_totals, read_log
from penstock.proof.subject import (
    PLACE_REMEDY,
    DataFile,
    Depth,
    NoPartition,
    RowSource,
    Subject,
    named_paths,
    windows_of,
)
from penstock.proof.values import check_values

FAULTS_SHOWN_MAX = 5

LogChecks = Callable[[Log, LogFacts], Iterable[Check]]
Flags = npt.NDArray[np.bool_]


def prove(
    subject: Subject,
    depth: Depth,
    open_log: OpenLog,
    table_checks: Iterable[Check] = (),
    log_checks: LogChecks = lambda log, facts: (),
) -> Proof:
    """Check a table against itself and its log; a kind whose rows are not records adds checks of its own."""
    with closing(open_log(subject.job)) as log:
        facts = read_log(log, subject.incarnations, subject.states)
        slices = subject.job_slices or (subject.states, subject.slices)
        checks = [check_totals(subject.states), check_slices(*slices), *table_checks]
        join = OffsetJoin(subject, depth, log, facts) if subject.sources else None
        if join is not None:
            checks += [_check_rows(subject), join.check_offsets()]
        checks.append(check_log(subject.states, subject.incarnations.fingerprints, facts))
        if join is not None and depth.deep:
            checks.append(join.check_records())
        if join is not None and depth.values is not None:
            checks.append(check_values(subject, depth, log, facts.bounds))
        return Proof(subject.version, (*checks, *log_checks(log, facts)))


def _check_rows(subject: Subject) -> Check:
    """The table has as many rows as were written, in files that are as they were committed."""
    faults = [*(fault for source in subject.sources for fault in source.faults), *subject.faults]
    table = sum(source.rows for source in subject.sources)
    for source in subject.sources:
        written = subject.rows_written.get(source.name, 0)
        if source.rows != written:
            whose = f"type {source.name}" if source.name else "the table"
            faults.append(f"{whose} has {source.rows} rows, {written} were written: another writer changed it")
    return rows_check(subject, table, faults, f"{table} rows in the table")


def rows_check(subject: Subject, rows: int, faults: Sequence[str], detail: str) -> Check:
    """The check `rows` of any kind: what is wrong with rows and quarantine."""
    quarantined, wrong = subject.quarantine.rows, shown([*faults, *subject.quarantine_faults])
    return Check(
        "rows",
        wrong or f"{detail}, {quarantined} in quarantine, as counted",
        bool(wrong),
        violation=subject.violation,
        warnings=subject.warnings,
        facts={"rows": rows, "quarantine": quarantined},
    )


def shown(faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - FAULTS_SHOWN_MAX} more" if len(faults) > FAULTS_SHOWN_MAX else ""
    return "; ".join(faults[:FAULTS_SHOWN_MAX]) + more


@dataclass(slots=True)
class OffsetWindow:
    """The offsets `[lo, hi)` of a partition: how many rows each has in table and quarantine, and if the log has it."""

    lo: int
    hi: int
    table: npt.NDArray[np.int32] = field(init=False)
    quarantine: npt.NDArray[np.int32] = field(init=False)
    log: Flags | None = None
    """None where the log was not read."""

    def __post_init__(self) -> None:
        self.table, self.quarantine = (np.zeros(self.hi - self.lo, np.int32) for _ in range(2))

    def part(self, lo: int, hi: int) -> slice:
        """Where the offsets `[lo, hi)` are in the arrays."""
        return slice(max(lo, self.lo) - self.lo, max(min(hi, self.hi), self.lo) - self.lo)


@dataclass(slots=True)
class SpanCount:
    """How many offsets of a span are in table or quarantine, and how many the log has, in all windows so far."""

    partition: Partition
    span: CommittedSlice
    held: int = 0
    records: int = 0

    def violation(self, kind: ViolationKind) -> Violation:
        return violation_at(self.partition, self.span.start, kind, self.span.end)


class OffsetJoin:
    """Joins all places of a table with those of its log, window by window."""

    def __init__(self, subject: Subject, depth: Depth, log: Log, facts: LogFacts) -> None:
        self._subject, self._depth, self._log = subject, depth, log
        self._bounds = facts.bounds if depth.deep else {}
        topics = {partition.topic for partition in self._bounds}
        self._compacted = {topic for topic in topics if log.compacted(topic) is not False}
        self._spans = {
            partition: [SpanCount(partition, span) for span in spans] for partition, spans in subject.spans.items()
        }
        self._counts = [count for counts in self._spans.values() for count in counts]
        self._log_first: dict[Partition, int] = {}
        """Of partitions that were read, the first offset that the log had then."""
        self._violations: set[Violation] = set()
        self._log_violations: set[Violation] = set()
        self._unreadable: set[str] = set()
        self._unplaced: dict[tuple[str, str], int] = {}
        """By source and path of each file that was read, how many of its rows have no place."""
        for ranges in windows_of(subject.ranges, depth.offsets_per_pass_max):
            windows = {partition: OffsetWindow(lo, hi) for partition, (lo, hi) in ranges.items()}
            self._read_files(windows, last=all(hi == subject.ranges[place][1] for place, (_, hi) in ranges.items()))
            for partition, window in windows.items():
                self._read_log(partition, window)
                self._compare(partition, window)
        self._rows_unplaced = subject.rows_unplaced + sum(self._unplaced.values())
        self._rows_missing = sum(max(0, count.span.held - count.held) for count in self._counts)
        self._only_counted = any(source.place is None for source in subject.sources)
        """Rows do not carry their place: the check of rows counts them."""
        self._unsure = self._rows_missing > 0 and (self._only_counted or self._rows_missing <= self._rows_unplaced)
        """All missing rows may be among those without a place, or of days that were deleted."""

    def _read_files(self, windows: Mapping[Partition, OffsetWindow], last: bool) -> None:
        """Count the rows of files that may hold offsets of these windows; with the last ones every file was read."""
        sources = [*(source for source in self._subject.sources if source.place), self._subject.quarantine]
        files = [(source, file) for source in sources for file in source.files]
        for source, file in files:
            key = (source.name, file.path)
            if _may_hold(file, windows) or (last and key not in self._unplaced):
                try:
                    self._unplaced[key] = self._read_file(source, file, windows)
                except (pa.ArrowException, OSError):
                    self._unreadable.add(file.path)
                    self._unplaced[key] = 0
                self._depth.report("files", len(self._unplaced), len(files))

    def _read_file(self, source: RowSource, file: DataFile, windows: Mapping[Partition, OffsetWindow]) -> int:
        """Count the rows of a file in these windows; returns how many of its rows have no place."""
        unplaced = 0
        for partition, rows in (group for _, placed in self._subject.placed_rows(source, file) for group in placed):
            if isinstance(partition, Partition):
                window, offsets = windows[partition], rows["offset"].to_numpy()
                counts = window.quarantine if source is self._subject.quarantine else window.table
                np.add.at(counts, offsets[(offsets >= window.lo) & (offsets < window.hi)] - window.lo, 1)
                self._check_range(source, partition, offsets)
            elif partition is NoPartition.NO_PLACE:
                unplaced += len(rows)
            elif partition is NoPartition.UNKNOWN:
                row = rows.sort("offset").row(0, named=True)
                topic = row.get("topic") or min((place.topic for place in self._spans), default="")
                place = (topic, row["partition"], row["offset"])
                self._violations.add(Violation(*place, ViolationKind.UNKNOWN_PARTITION))
        return unplaced

    def _check_range(self, source: RowSource, partition: Partition, offsets: npt.NDArray[np.int64]) -> None:
        """No row lies before the origin, or beyond the position: that of its type, if the type lags."""
        origin, position = self._subject.ranges[partition]
        end = (source.ends or {}).get(partition, position)
        if (lowest := int(offsets.min())) < origin:
            self._violations.add(violation_at(partition, lowest, ViolationKind.BEFORE_ORIGIN))
        if len(beyond := offsets[offsets >= end]):
            self._violations.add(violation_at(partition, int(beyond.min()), ViolationKind.BEYOND_POSITION))

    def _read_log(self, partition: Partition, window: OffsetWindow) -> None:
        """Mark the offsets of records that the log still has."""
        bounds, (origin, position) = self._bounds.get(partition), self._subject.ranges[partition]
        if bounds is None:
            return
        start, end = max(window.lo, bounds.first), min(window.hi, bounds.end)
        window.log = np.zeros(window.hi - window.lo, np.bool_)
        if start < end:
            step, before, total = f"offsets of {partition}", window.lo - origin, position - origin
            offsets = self._log.offsets(partition, start, end, lambda n: self._depth.report(step, before + n, total))
            window.log[np.asarray(offsets) - window.lo] = True
        # Retention may have moved while the records were read.
        first = self._log.bounds([partition])[partition].first
        self._log_first[partition] = max(self._log_first.get(partition, 0), first)
        window.log[window.part(window.lo, first)] = False

    def _compare(self, partition: Partition, window: OffsetWindow) -> None:
        """Compare how often each offset is in table and quarantine with how often it must be, and with the log."""
        table, quarantine, log = window.table, window.quarantine, window.log
        held = (table > 0) | (quarantine > 0)

        def note(violations: set[Violation], kind: ViolationKind, wrong: Flags, start: int = 0) -> None:
            if wrong.any():
                violations.add(violation_at(partition, window.lo + start + int(wrong.argmax()), kind))

        note(self._violations, ViolationKind.TWICE, table > 1)
        note(self._violations, ViolationKind.TWICE_IN_QUARANTINE, quarantine > 1)
        if not self._subject.replay_unfinished:
            # An unfinished replay leaves records in both places (RULES Q2).
            note(self._violations, ViolationKind.BOTH, (table > 0) & (quarantine > 0))
        if log is not None and partition.topic not in self._compacted:
            retained = window.part(self._log_first[partition], window.hi)
            note(self._log_violations, ViolationKind.NOT_IN_LOG, held[retained] & ~log[retained], retained.start)
        for count in self._spans[partition]:
            span = count.span
            part, must = window.part(span.start, span.end), window.part(span.read_from, span.end)
            count.held += int(np.count_nonzero(held[part]))
            if span.full:
                note(self._violations, ViolationKind.MISSING, ~held[must], must.start)
            if log is not None:
                count.records += int(np.count_nonzero(log[part]))
                if span.unfiltered:
                    note(self._log_violations, ViolationKind.MISSING, log[part] & ~held[part], part.start)

    def check_offsets(self) -> Check:
        """Whether table and quarantine hold each offset that they must once, and no other."""
        violations = set(self._violations)
        for count in self._counts:
            if not count.span.held <= count.held <= count.span.held + count.span.totals.deferred:
                fewer = count.held < count.span.held
                violations.add(count.violation(ViolationKind.MISSING if fewer else ViolationKind.TOO_MANY))
        first, held = self._first_sure(violations), sum(count.held for count in self._counts)
        detail = str(first) if first else f"{held} offsets in table and quarantine, each once"
        if self._unreadable:
            detail = named_paths("files cannot be read to their end", self._unreadable)
        violated, unproven = bool(first or self._unreadable), [*self._unproven()]
        return Check("offsets", detail, violated, violation=first, unproven=unproven, facts={"offsets": held})

    def check_records(self) -> Check:
        """Whether the records that the log still has are those that the table read, and has."""
        violations, records, deleted = set(self._log_violations), 0, 0
        for count in (count for count in self._counts if count.partition in self._log_first):
            span, read = count.span, count.span.totals.read
            fewer = count.records < read and count.partition.topic not in self._compacted
            more = count.records > read + span.gap_within
            if (more or fewer) and span.read_from >= self._log_first[count.partition]:
                violations.add(count.violation(ViolationKind.NOT_COUNTED))
            records += count.records
            deleted += max(0, min(self._log_first[count.partition], span.end) - span.start)
        first = self._first_sure(violations)
        by_totals = f"; {deleted} older offsets are no longer in the log: proved by totals and rows" if deleted else ""
        compacted = sorted(self._compacted & {count.partition.topic for count in self._counts})
        return Check(
            "records",
            str(first) if first else f"{records} records of the log, each accounted for{by_totals}",
            bool(first),
            violation=first,
            warnings=[f"{topic} is compacted: its log may have fewer records than were read" for topic in compacted],
            facts={"records": records, "offsets_deleted": deleted},
        )

    def _first_sure(self, violations: Iterable[Violation]) -> Violation | None:
        missing = ViolationKind.MISSING
        return earliest(violation for violation in violations if violation.kind is not missing or not self._unsure)

    def _unproven(self) -> Iterator[Unproven]:
        if self._only_counted:
            what = "which records the rows are: they do not carry partition and offset, so they are only counted"
            yield Unproven(what, PLACE_REMEDY)
            return
        if self._unsure:
            rows = f"{self._rows_unplaced} rows of deleted days, or {NoPartition.NO_PLACE.value}"
            remedy = "verify between recreating a topic and compaction; rows older than the place columns stay unknown"
            yield Unproven(f"{self._rows_missing} offsets are not found, and there are {rows}", remedy)


def _may_hold(file: DataFile, windows: Mapping[Partition, OffsetWindow]) -> bool:
    if file.offsets is None:
        return True
    lowest, highest = file.offsets
    return any(lowest < window.hi and highest >= window.lo for window in windows.values())
