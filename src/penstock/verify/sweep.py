"""The sweep over all offsets: table, quarantine and log are read window by window and judged together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import polars as pl

from penstock.job.spec import JobSpec
from penstock.log.kafka import KafkaLog
from penstock.log.offsets import Bounds, Partition
from penstock.storage import Storage
from penstock.verify.findings import Check, Offence, OffenceKind, earliest
from penstock.verify.judge import NO_OFFSETS, Held, Leave, LogCounts, LogOffsets, held_offences, judge, record_offences
from penstock.verify.laws import Span
from penstock.verify.lives import Lives
from penstock.verify.log_offsets import open_consumer, record_offsets
from penstock.verify.owners import QUARANTINE_COLUMNS, OriginColumns, Owners
from penstock.verify.table_offsets import DataFile, OffsetScan
from penstock.verify.windows import Pass, passes

Progress = Callable[[str, int, int], None]
"""Hears what is read, and how many of how many offsets are done."""
Offsets = Mapping[Partition, pl.Series]


@dataclass(frozen=True, slots=True)
class Depth:
    """How far a verification goes, and in which steps."""

    deep: bool
    """Whether the records of the log are read."""
    progress: Progress | None
    offsets_per_pass_max: int


@dataclass(frozen=True, slots=True)
class TypeFiles:
    """The files of one type, or of a table that has only one."""

    files: Sequence[DataFile]
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Where a type's own table may be ahead of what is judged: the offsets from which on its rows do not count yet."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the offsets are read from."""

    storage: Storage
    types: Sequence[TypeFiles]
    quarantine_storage: Storage
    quarantine_files: Sequence[DataFile]
    columns: OriginColumns | None
    """None where the table does not keep partition and offset."""
    log: KafkaLog | None = None
    log_bounds: Mapping[Partition, Bounds] = field(default_factory=dict)
    """Of the partitions whose records shall be read; none in a shallow verification."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: the offsets that must be there, whose rows are among them, and which may be there twice."""

    spans: Mapping[Partition, tuple[Span, ...]]
    lives: Lives
    leaves: Mapping[Partition, Leave] = field(default_factory=dict)


@dataclass(slots=True)
class _Tally:
    """What the windows of one partition have shown so far."""

    spans: tuple[Span, ...]
    offences: list[Offence] = field(default_factory=list)
    log_offences: list[Offence] = field(default_factory=list)
    held_counts: list[int] = field(default_factory=list)
    log_counts: list[int] = field(default_factory=list)
    log_first: int = 0

    def __post_init__(self) -> None:
        self.held_counts = [0] * len(self.spans)
        self.log_counts = [0] * len(self.spans)


class Sweep:
    """Reads every window once and keeps only what its judgement left."""

    def __init__(self, job: JobSpec, subject: Subject, sources: Sources, progress: Progress | None) -> None:
        self._job = job
        self._subject = subject
        self._sources = sources
        self._progress = progress
        self._tallies = {each: _Tally(spans) for each, spans in sorted(subject.spans.items())}
        self._scans = self._open_scans()
        self._strangers: list[Offence] = []
        self._exact: dict[str, bool] = {}
        self._records_read = 0

    def run(self, offsets_max: int) -> None:
        """Read and judge all windows."""
        ranges = {each: (tally.spans[0].lo, tally.spans[-1].hi) for each, tally in self._tallies.items() if tally.spans}
        for wanted in passes(ranges, offsets_max):
            table, quarantine = self._held(wanted)
            records = self._log_offsets(wanted)
            for partition, window in wanted.items():
                tally = self._tallies[partition]
                by_type = [found[partition] for found in table if partition in found]
                held = Held(_all(by_type), quarantine.get(partition, NO_OFFSETS), by_type)
                log = records.get(partition)
                # Without the columns nothing is held; only the counts of such a judgement are used.
                leave = self._subject.leaves.get(partition, Leave())
                found = judge(partition, window, tally.spans, held, log, leave)
                tally.offences += found.offences
                tally.log_offences += found.log_offences
                tally.held_counts = [a + b for a, b in zip(tally.held_counts, found.held_counts, strict=True)]
                tally.log_counts = [a + b for a, b in zip(tally.log_counts, found.log_counts, strict=True)]
                tally.log_first = max(tally.log_first, log.first if log else 0)

    def check_offsets(self) -> Check:
        """Whether table and quarantine hold each offset that they must once, and no other."""
        if not self._scans:
            reason = "not checked: the table keeps no columns of kafka.partition and kafka.offset"
            return Check("offsets", True, reason, checked=False)
        offences = list(self._strangers)
        count = 0
        for partition, tally in self._placed():
            counted = held_offences(partition, tally.spans, tally.held_counts)
            offences += [each for each in (*tally.offences, *counted) if self._can_tell(each)]
            count += sum(tally.held_counts)
        first = earliest(offences)
        detail = f"{count} offsets in table and quarantine, each once" if first is None else str(first)
        return Check("offsets", first is None, detail, first, warnings=self._doubts(), facts={"offsets": count})

    def check_records(self) -> Check:
        """Whether what the log still has is what the table read, and holds."""
        read = self._sources.log_bounds.keys() & self._tallies.keys()
        offences: list[Offence] = []
        for partition in sorted(read):
            tally = self._tallies[partition]
            counts = LogCounts(tuple(tally.log_counts), tally.log_first, self._exact[partition.topic])
            offences += record_offences(partition, tally.spans, counts)
        for _, tally in self._placed():
            offences += [each for each in tally.log_offences if self._can_tell(each)]
        count = sum(sum(self._tallies[each].log_counts) for each in read)
        first = earliest(offences)
        detail = f"{count} records of the log, each accounted for" if first is None else str(first)
        warnings = [
            f"{each} is compacted: its log may have fewer records than were read"
            for each, exact in sorted(self._exact.items())
            if not exact
        ]
        return Check("records", first is None, detail, first, warnings=tuple(warnings), facts={"records": count})

    def _open_scans(self) -> tuple[list[OffsetScan], OffsetScan] | None:
        sources, columns = self._sources, self._sources.columns
        if columns is None:
            return None
        owners = Owners.of(self._subject.lives)
        return (
            [OffsetScan(sources.storage, each.files, columns, owners, each.ends) for each in sources.types],
            OffsetScan(sources.quarantine_storage, sources.quarantine_files, QUARANTINE_COLUMNS, owners),
        )

    def _held(self, wanted: Pass) -> tuple[list[Offsets], Offsets]:
        """The offsets in the windows of one pass, of each type and of the quarantine."""
        if not self._scans:
            return [], {}
        types, quarantine = self._scans
        return [self._scan(each, wanted) for each in types], self._scan(quarantine, wanted)

    def _scan(self, scan: OffsetScan, wanted: Pass) -> Offsets:
        others = frozenset(topic_id for ids in self._subject.lives.others.values() for topic_id in ids)
        scanned = scan.read(wanted, others)
        if scanned.stranger is not None:
            self._strangers.append(scanned.stranger)
        return scanned.offsets

    def _placed(self) -> list[tuple[Partition, _Tally]]:
        """The partitions whose rows can be told from those of other jobs."""
        if not self._scans:
            return []
        shared = self._subject.lives.shared_topic_ids
        return [(each, tally) for each, tally in self._tallies.items() if each.topic_id not in shared]

    def _can_tell(self, offence: Offence) -> bool:
        """An offset may be missing only because its row cannot be placed: then counts of rows have to do."""
        return not self._unplaced or offence.kind is not OffenceKind.MISSING

    @property
    def _unplaced(self) -> int:
        return sum(scan.unplaced for scan in (*self._scans[0], self._scans[1])) if self._scans else 0

    @property
    def ahead(self) -> Sequence[int]:
        """Rows of each type that are beyond what is judged, once the sweep has run."""
        return [scan.ahead for scan in self._scans[0]] if self._scans else [0] * len(self._sources.types)

    def _doubts(self) -> tuple[str, ...]:
        found = []
        if self._unplaced:
            found.append(f"{self._unplaced} rows tell no partition and offset of one topic: missing offsets not judged")
        if shared := len(self._subject.lives.shared_topic_ids):
            found.append(
                f"{shared} topics are also written by {', '.join(sorted(self._subject.lives.others))}: not judged"
            )
        return tuple(found)

    def _log_offsets(self, wanted: Pass) -> dict[Partition, LogOffsets]:
        """The offsets of the records that the log has in the windows of one pass."""
        bounds = self._sources.log_bounds
        read = {each: window for each, window in wanted.items() if each in bounds}
        log = self._sources.log
        if not read or log is None:
            return {}
        found: dict[Partition, pl.Series] = {}
        with closing(open_consumer(self._job.log)) as consumer:
            for each, window in read.items():
                start, end = max(window.lo, bounds[each].first), min(window.hi, bounds[each].end)
                bootstrap = self._job.log.bootstrap
                found[each] = record_offsets(consumer, bootstrap, each, start, end, self._tell)
        # Retention may have moved while the records were read.
        firsts = {each: now.first for each, now in log.bounds(found).items()}
        for each in found:
            if each.topic not in self._exact:
                self._exact[each.topic] = log.compacted(each.topic) is False
        return {
            each: LogOffsets(offsets.filter(offsets >= firsts[each]), firsts[each], self._exact[each.topic])
            for each, offsets in found.items()
        }

    def _tell(self, offsets: int) -> None:
        self._records_read += offsets
        if self._progress is None:
            return
        bounds = self._sources.log_bounds
        total = sum(
            max(0, min(tally.spans[-1].hi, bounds[each].end) - max(tally.spans[0].lo, bounds[each].first))
            for each, tally in self._tallies.items()
            if tally.spans and each in bounds
        )
        self._progress("records of the log", self._records_read, total)


def _all(parts: Sequence[pl.Series]) -> pl.Series:
    return NO_OFFSETS if not parts else parts[0] if len(parts) == 1 else pl.concat(parts)
