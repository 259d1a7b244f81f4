"""The reconciliation of all offsets: table, quarantine and log are read part by part and checked together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import polars as pl

from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition, SliceShrankError
from penstock.proof.findings import (
    Check,
    Unproven,
    Violation,
    ViolationKind,
    conclude,
    earliest,
    violation_at,
)
from penstock.proof.subject import Depth, Progress
from penstock.tables.export.old_proof.invariants import ALL_VALUES, KEEP_PLACES, Span
from penstock.tables.export.old_proof.offsets.owners import QUARANTINE_COLUMNS
from penstock.tables.export.old_proof.offsets.scan import OffsetScan, PoolKey, Pools, Scanned
from penstock.tables.export.old_proof.offsets.scan_passes import Part, Pass, passes
from penstock.tables.export.old_proof.offsets.verdicts import (
    NO_OFFSETS,
    Held,
    Leave,
    LogOffsets,
    Placed,
    Reconciled,
    held_violations,
    quarantine_violations,
    reconcile,
    reconcile_pool,
    record_violations,
)
from penstock.tables.export.old_proof.sources import Sources, Subject

_OF_QUARANTINE = (ViolationKind.TWICE_IN_QUARANTINE, ViolationKind.BEFORE_ORIGIN, ViolationKind.BEYOND_POSITION)
"""What can be wrong with the rows of the quarantine alone."""


@dataclass(slots=True)
class _Tally:
    """What the parts of one partition have shown so far."""

    spans: tuple[Span, ...]
    found: Reconciled
    log_first: int = 0

    @staticmethod
    def of(spans: tuple[Span, ...]) -> _Tally:
        zeros = (0,) * len(spans)
        return _Tally(spans, Reconciled((), (), zeros, zeros, zeros))

    @property
    def lacking(self) -> int:
        """How many rows are missing over all spans."""
        counts = zip(self.spans, self.found.held_counts, strict=True)
        return sum(max(0, span.held_min - count) for span, count in counts)


class Reconciliation:
    """Reads every part once and keeps only what its comparison left."""

    def __init__(self, job: JobSpec, subject: Subject, sources: Sources, progress: Progress | None) -> None:
        self._subject = subject
        self._sources = sources
        self._progress = progress
        self._tallies = {each: _Tally.of(spans) for each, spans in sorted(subject.spans.items())}
        self._pools = Pools.of(self._tallies, sources.columns)
        columns, whose = sources.columns, (job.name, subject.incarnations, self._pools)
        self._types = [
            OffsetScan(sources.storage, each.files, columns, *whose, each.ends)
            for each in sources.types
            if columns is not None
        ]
        """None where the table does not tell where its rows came from; the quarantine always does."""
        bad = sources.quarantine_files
        self._quarantine = OffsetScan(sources.quarantine_storage, bad, QUARANTINE_COLUMNS, *whose)
        self._pooled: dict[PoolKey, int] = {}
        """Rows whose life of their topic is not known."""
        self._pool_violations: list[Violation] = []
        select = job.sql.select if job.sql is not None else ()
        self._adds_place = {"partition", "offset"} <= dict(place_columns(job.columns, select)).keys()
        """The job keeps the place of rows; the table may be from before it did."""
        self._exact: dict[str, bool] = {}
        self._records_read = 0

    @staticmethod
    def of(job: JobSpec, subject: Subject, sources: Sources, depth: Depth) -> Reconciliation:
        found = Reconciliation(job, subject, sources, depth.progress)
        found._run(depth.offsets_per_pass_max)
        return found

    def _run(self, offsets_max: int) -> None:
        ranges = {each: (tally.spans[0].lo, tally.spans[-1].hi) for each, tally in self._tallies.items() if tally.spans}
        for wanted in passes(self._pools.ranges(ranges), offsets_max):
            table = [each.read(wanted) for each in self._types]
            quarantine = self._quarantine.read(wanted)
            pooled = _by_pool([*table, quarantine])
            records = self._log_offsets(wanted)
            placed: dict[PoolKey, dict[Partition, Placed]] = {}
            for partition, part in wanted.items():
                tally, key = self._tallies[partition], self._pools.key_of(partition)
                by_type = [found.offsets[partition] for found in table if partition in found.offsets]
                bad = quarantine.offsets.get(partition, NO_OFFSETS)
                held = Held(_all(by_type), bad, by_type, pooled.get(key, NO_OFFSETS))
                log = records.get(partition)
                leave = self._subject.leaves.get(partition, Leave())
                tally.found += reconcile(partition, part, tally.spans, held, log, leave)
                tally.log_first = max(tally.log_first, log.first if log else 0)
                if key in pooled:
                    placed.setdefault(key, {})[partition] = Placed(tally.spans, _all([held.table, bad]))
            for key, members in placed.items():
                part = wanted[next(iter(members))]
                with_others = bool(self._subject.incarnations.others)
                self._pool_violations += reconcile_pool(part, members, pooled[key], with_others)
                self._pooled[key] = self._pooled.get(key, 0) + len(pooled[key])

    def check_offsets(self, proved_by_values: bool = False) -> Check:
        """Whether table and quarantine hold each offset that they must once, and no other.

        `proved_by_values` tells that the rows were found to be those of the log's records, all of them.
        """
        violations = [*self._pool_violations, *(each for scan in self._scans for each in scan.violations)]
        count = 0
        for partition, tally in self._placed():
            replayed = partition in self._subject.replayed
            violations += quarantine_violations(partition, tally.spans, tally.found.quarantine_counts, replayed)
            if not self._types:
                violations += [each for each in tally.found.violations if each.kind in _OF_QUARANTINE]
                continue
            counted = held_violations(partition, tally.spans, tally.found.held_counts)
            further = [each for each in (*tally.found.violations, *counted) if self._can_tell(partition, each)]
            violations += [*further, *self._missing_records(partition, further)]
            count += sum(tally.found.held_counts)
        count += sum(self._pooled.values())
        unreadable = sorted(path for scan in self._scans for path in scan.unreadable)
        detail = self._offsets_detail(violations, unreadable, count, proved_by_values)
        return conclude(
            "offsets",
            detail,
            bool(violations or unreadable),
            violations=violations,
            unproven=[] if proved_by_values else self._unproven(),
            facts={"offsets": count},
            partitions=self._tallies,
        )

    def _offsets_detail(self, violations: list[Violation], unreadable: list[str], count: int, by_values: bool) -> str:
        if unreadable:
            return f"{len(unreadable)} files cannot be read to their end: {', '.join(unreadable[:5])}"
        first = earliest(violations)
        if first is not None:
            return str(first)
        if by_values:
            return "every row is that of a record of the log, each once: proved by their values"
        if not self._types:
            return "the rows do not tell their offsets; those of the quarantine are each there once"
        unchecked = sum(self._pooled.values())
        checked = f"{count - unchecked} offsets in table and quarantine, each once"
        return f"{checked}; {unchecked} more add up" if unchecked else checked

    def check_records(self) -> Check:
        """Whether what the log still has is what the table read, and holds."""
        read = self._sources.log_bounds.keys() & self._tallies.keys()
        violations: list[Violation] = []
        for partition in sorted(read):
            tally = self._tallies[partition]
            exact = self._exact.get(partition.topic, False)
            violations += record_violations(partition, tally.spans, tally.found.log_counts, tally.log_first, exact)
        for partition, tally in self._placed():
            violations += [
                each
                for each in tally.found.log_violations
                if (self._types or each.kind is ViolationKind.NOT_IN_LOG) and self._can_tell(partition, each)
            ]
        count = sum(sum(self._tallies[each].found.log_counts) for each in read)
        first = earliest(violations)
        gone = self._gone()
        by_totals = f"; {gone} older offsets are no longer in the log: proved by totals and rows" if gone else ""
        detail = f"{count} records of the log, each accounted for{by_totals}" if first is None else str(first)
        warnings = [
            f"{each} is compacted: its log may have fewer records than were read"
            for each, exact in sorted(self._exact.items())
            if not exact
        ]
        facts = {"records": count, "offsets_gone": gone}
        return conclude(
            "records", detail, first is not None, violations=violations, warnings=warnings, facts=facts, partitions=read
        )

    @property
    def ahead(self) -> Sequence[int]:
        """Rows of each type that are beyond what is checked, once it has run."""
        return [scan.ahead for scan in self._types] if self._types else [0] * len(self._sources.types)

    @property
    def _scans(self) -> tuple[OffsetScan, ...]:
        return (*self._types, self._quarantine)

    def _placed(self) -> list[tuple[Partition, _Tally]]:
        """The partitions whose rows can be told from those of other jobs."""
        shared = self._subject.incarnations.shared_topic_ids
        return [(each, tally) for each, tally in self._tallies.items() if each.topic_id not in shared]

    def _can_tell(self, partition: Partition, violation: Violation) -> bool:
        """An offset may be missing only because its row has no place, or is one of those of an unknown life."""
        if violation.kind is not ViolationKind.MISSING:
            return True
        if self._pools.key_of(partition) in self._pooled:
            # What is in none of the rows at all is missing in any case; counts of spans say less.
            return violation.end is None
        without = self._without_place(partition)
        return not without or self._tallies[partition].lacking > without

    def _missing_records(self, partition: Partition, violations: Sequence[Violation]) -> list[Violation]:
        """The first missing record of a span where counts only tell that there is one.

        The offsets of the log do not tell which records were filtered; where only tombstones are, their values do.
        """
        first = earliest(violations)
        log, bounds = self._sources.log, self._sources.log_bounds.get(partition)
        if first is None or first.end is None or first.kind is not ViolationKind.MISSING:
            return []
        if not self._subject.filters_only_tombstones or log is None or bounds is None:
            return []
        tally = self._tallies[partition]
        number = next(number for number, span in enumerate(tally.spans) if span.lo == first.offset)
        span, lacking = tally.spans[number], tally.spans[number].held - tally.found.held_counts[number]
        nothing = Part(0, 0, takes_lower=False, takes_higher=False)
        wanted = dict.fromkeys(self._tallies, nothing) | {partition: replace(nothing, lo=span.lo, hi=span.hi)}
        scanned = [scan.read(wanted).offsets for scan in self._scans]
        held = _all([offsets[partition] for offsets in scanned if partition in offsets])
        missing: list[int] = []
        with suppress(SliceShrankError):
            for batch in log.records(partition, max(span.read_from, bounds.first), span.hi):
                records = pl.Series(batch.column("offset").filter(batch.column("value").is_valid()))
                missing += records.filter(~records.is_in(held.implode())).to_list()
        # With more of them, some were filtered for another reason: by an earlier job file, or they were given up.
        return [violation_at(partition, missing[0], ViolationKind.MISSING)] if len(missing) == lacking else []

    def _without_place(self, partition: Partition) -> int:
        return sum(scan.rows_without_place(partition) for scan in self._scans)

    def _unproven(self) -> list[Unproven]:
        found: list[Unproven] = []
        if not self._types:
            what = "which records the rows are: they do not carry partition and offset, so they are only counted"
            remedy = "run the job: it adds the columns" if self._adds_place else f"{KEEP_PLACES} before the first run"
            found.append(Unproven(what, f"{remedy}, or {ALL_VALUES}"))
        for each, tally in self._tallies.items() if self._types else ():
            without, lacking = self._without_place(each), tally.lacking
            if lacking and lacking <= without:
                rows = f"{without} rows tell no partition and offset"
                what = f"{lacking} offsets are not found, and {rows}: they may be theirs"
                remedy = f"rows from before the columns were kept can only be counted; {ALL_VALUES}"
                found.append(Unproven(what, remedy, frozenset({each})))
        for key, count in self._pooled.items():
            what = f"which life of a recreated topic {count} compacted rows belong to"
            why = "their offsets add up, but a row of one life may stand for a row of another"
            when = "verify between recreating a topic and the next compaction"
            remedy = f"{when}; nothing in these rows tells them apart any more"
            found.append(Unproven(f"{what}: {why}", remedy, frozenset(self._pools.members(key))))
        incarnations = self._subject.incarnations
        if incarnations.shared_topic_ids:
            what = f"whose rows are whose: the same topics are also written by {', '.join(sorted(incarnations.others))}"
            mine = frozenset(each for each in self._tallies if each.topic_id in incarnations.shared_topic_ids)
            found.append(Unproven(what, "give each job a table of its own", mine))
        return found

    def _gone(self) -> int:
        """How many offsets that were read the log no longer has."""
        bounds = self._sources.log_bounds
        return sum(
            max(0, min(tally.log_first, tally.spans[-1].hi) - tally.spans[0].lo)
            for each, tally in self._tallies.items()
            if tally.spans and each in bounds
        )

    def _log_offsets(self, wanted: Pass) -> dict[Partition, LogOffsets]:
        """The offsets of the records that the log has in the parts of one pass."""
        bounds, log = self._sources.log_bounds, self._sources.log
        read = {each: part for each, part in wanted.items() if each in bounds}
        if not read or log is None:
            return {}
        found: dict[Partition, pl.Series] = {}
        for each, part in read.items():
            spans = self._tallies[each].spans
            start = max(part.lo, spans[0].lo, bounds[each].first)
            end = min(part.hi, spans[-1].hi, bounds[each].end)
            found[each] = pl.Series(log.offsets(each, start, end, self._tell))
        # Retention may have moved while the records were read.
        firsts = {each: now.first for each, now in log.bounds(found).items()}
        for topic in {each.topic for each in found} - self._exact.keys():
            self._exact[topic] = log.compacted(topic) is False
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


def _by_pool(scanned: Sequence[Scanned]) -> dict[PoolKey, pl.Series]:
    keys = {key for each in scanned for key in each.pooled}
    return {key: _all([each.pooled[key] for each in scanned if key in each.pooled]) for key in keys}
