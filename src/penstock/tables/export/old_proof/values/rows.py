"""Both sides of a comparison of values: rows of files, and records of the log written once more.

Where rows tell their partition and offset, each is compared with the record that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.offset_ranges import Ranges
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.logs.log import Bounds, Log, Partition, Slice, SliceShrankError
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.proof.subject import Sample
from penstock.tables.export.old_proof.offsets.owners import QUARANTINE_COLUMNS, OriginColumns
from penstock.tables.export.old_proof.offsets.scan_passes import merged_ranges
from penstock.tables.export.old_proof.sources import Sources, Subject
from penstock.tables.export.old_proof.values.digests import Digests, column_digests, row_digests
from penstock.tables.export.old_proof.values.files import (
    Offsets,
    Rewriter,
    ValueBatch,
    ValueFile,
    columns_of,
    held_by,
    read_values,
)

OFFSETS_PER_CHUNK_MAX = 100_000
"""So many offsets are written to the scratch folder at a time."""
RAW_NAMES = ("timestamp", "key", "value", "headers")
"""What of a quarantined record must be as it is in the log."""


def joined(parts: Sequence[Offsets]) -> Offsets:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def joined_digests(parts: Sequence[Digests]) -> Digests:
    return np.concatenate(parts) if parts else np.array([], dtype=np.uint64)


@dataclass(slots=True)
class PlacedRows:
    """The rows of one partition: offsets, digests, and by which columns these were made."""

    offsets: list[Offsets] = field(default_factory=list)
    digests: list[Digests] = field(default_factory=list)
    kinds: list[Offsets] = field(default_factory=list)

    def add(self, offsets: Offsets, digests: Digests, kind: int = 0) -> None:
        self.offsets.append(offsets)
        self.digests.append(digests)
        self.kinds.append(np.full(len(offsets), kind, dtype=np.int64))


def _raw_digests(records: pa.RecordBatch) -> Digests:
    there = records.select([name for name in RAW_NAMES if name in records.schema.names])
    fitted = fit_columns(there, pa.schema([QUARANTINE_SCHEMA.field(name) for name in RAW_NAMES]))
    return row_digests({name: column_digests(fitted.column(name)) for name in RAW_NAMES}, RAW_NAMES, np.uint64(0))


@dataclass(slots=True)
class Rewritten:
    """Rows as the job would write them again, a batch at a time, for ranges of one partition.

    Records that are in quarantine give no rows: their bytes are kept, as digests.
    """

    log: Log
    rewriter: Rewriter
    partition: Partition
    quarantined: PlacedRows
    records: int = 0
    raw: PlacedRows = field(default_factory=PlacedRows)

    def batches(self, ranges: Ranges, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        for lo, hi in ranges:
            for start in range(lo, hi, OFFSETS_PER_CHUNK_MAX):
                yield from self._chunk(start, min(hi, start + OFFSETS_PER_CHUNK_MAX), origin)

    def _chunk(self, lo: int, hi: int, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        piece = Slice(self.partition, lo, hi, lo)
        with TemporaryDirectory(prefix="penstock-verify-", ignore_cleanup_errors=True) as folder:
            for file in list(self.rewriter.written(piece, self._living(lo, hi), Path(folder))):
                yield from read_values(file, origin)

    def _living(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        in_quarantine = joined(self.quarantined.offsets)
        for batch in self.log.records(self.partition, lo, hi):
            self.records += batch.num_rows
            bad = np.isin(batch.column("offset").to_numpy(), in_quarantine)
            if bad.any():
                raw = batch.filter(pa.array(bad))
                self.raw.add(raw.column("offset").to_numpy(), _raw_digests(raw))
                batch = batch.filter(pa.array(~bad))
            if batch.num_rows:
                yield batch

    def altered(self, ranges: Ranges, exact: bool) -> Offsets:
        """The offsets of quarantined records in the ranges that are not as they are in the log."""
        seen = dict(zip(joined(self.raw.offsets).tolist(), joined_digests(self.raw.digests).tolist(), strict=True))
        offsets, digests = joined(self.quarantined.offsets), joined_digests(self.quarantined.digests)
        inside = held_by(ranges, offsets)
        pairs = zip(offsets[inside].tolist(), digests[inside].tolist(), strict=True)
        wrong = [offset for offset, digest in pairs if (seen[offset] != digest if offset in seen else exact)]
        return np.array(wrong, dtype=np.int64)


Wanted = Mapping[Partition, Ranges]


@dataclass(frozen=True, slots=True)
class RowValues:
    """The rows of a table, and the way to write them once more."""

    files: Sequence[ValueFile]
    rewriter: Rewriter
    strict: bool = True
    """Whether every record that is not in quarantine must have its row; else that is a matter of offsets alone."""


@dataclass(frozen=True)
class ValueSources:
    job: str
    subject: Subject
    held: Sources
    log: Log
    bounds: Mapping[Partition, Bounds]
    """Of the log."""
    sample: Sample
    rows: RowValues

    @cached_property
    def exact(self) -> Mapping[str, bool]:
        """Per topic, whether the log still has every record from its first offset on."""
        return {topic: self.log.compacted(topic) is False for topic in {each.topic for each in self.bounds}}


@dataclass(slots=True)
class Compared:
    violations: list[Violation] = field(default_factory=list)
    records: int = 0
    """Of the log."""
    rows: int = 0
    altered: int = 0
    gone: set[Partition] = field(default_factory=set)
    """Partitions of which the log lost records while they were read."""
    unplaced: int = 0
    """Rows that no record can be found for: they tell no place of one life of a topic."""

    def note(self, partition: Partition, offsets: Offsets, kind: ViolationKind) -> None:
        if len(offsets):
            self.altered += len(offsets)
            self.violations.append(violation_at(partition, int(offsets.min()), kind))


def quarantined_rows(sources: ValueSources, wanted: Wanted) -> dict[Partition, PlacedRows]:
    """The records of the wanted offsets that are in quarantine."""
    schema = pa.schema([each for each in QUARANTINE_SCHEMA if each.name not in ("error", "batch", "quarantined_at")])
    files = [ValueFile(sources.held.quarantine_storage, each, schema) for each in sources.held.quarantine_files]
    return _collect_rows(sources, files, QUARANTINE_COLUMNS, wanted)[0]


def _collect_rows(
    sources: ValueSources,
    files: Sequence[ValueFile],
    origin: OriginColumns,
    wanted: Wanted,
    kinds: list[tuple[str, ...]] | None = None,
) -> tuple[dict[Partition, PlacedRows], int]:
    """The rows of the wanted offsets by partition, and how many rows have no place.

    `kinds` gathers the sets of columns by which digests were made; without it they are those of raw records.
    """
    by_place = {(each.topic_id, each.number): each for each in wanted}
    everywhere = tuple(merged_ranges(each for ranges in wanted.values() for each in ranges))
    found: dict[Partition, PlacedRows] = {}
    unplaced = 0
    for file in files:
        names = RAW_NAMES if kinds is None else columns_of(file, origin)
        if kinds is not None and names not in kinds:
            kinds.append(names)
        for batch in read_values(file, origin, everywhere):
            digests = batch.digests(names)
            unplaced += 0 if batch.places is None else len(batch.places)
            for values, rows, offsets in batch.groups():
                told = values.get("topic_id") or file.file.topic_id
                owner = sources.subject.incarnations.owner(file.file.path, values.get("topic"), told)
                unplaced -= len(rows) if owner is not None else 0
                partition = by_place.get((owner or "", values["partition"]))
                if partition is None or values.get("job") not in (None, sources.job):
                    continue
                inside = held_by(wanted[partition], offsets)
                mine = found.setdefault(partition, PlacedRows())
                mine.add(offsets[inside], digests[rows][inside], kinds.index(names) if kinds else 0)
    return found, unplaced


def compare_places(sources: ValueSources, origin: OriginColumns, wanted: Wanted, so_far: Compared) -> None:
    """Compare the wanted offsets, each row with the record that it came from; memory holds their digests alone."""
    kinds: list[tuple[str, ...]] = []
    table, unplaced = _collect_rows(sources, sources.rows.files, origin, wanted, kinds)
    # Each pass sees rows without a place again.
    so_far.unplaced = max(so_far.unplaced, unplaced)
    quarantine = quarantined_rows(sources, wanted)
    for partition, ranges in sorted(wanted.items()):
        written = Rewritten(sources.log, sources.rows.rewriter, partition, quarantine.get(partition, PlacedRows()))
        offsets: list[Offsets] = []
        digests: list[list[Digests]] = [[] for _ in kinds]
        try:
            for batch in written.batches(ranges, origin):
                for _, rows, found in batch.groups():
                    offsets.append(found)
                    for parts, names in zip(digests, kinds, strict=True):
                        there = [name for name in names if name in batch.columns]
                        parts.append(batch.digests(there)[rows])
        except SliceShrankError:
            so_far.gone.add(partition)
            continue
        so_far.records += written.records
        mine = table.get(partition, PlacedRows())
        _compare_rows(sources, partition, mine, joined(offsets), [joined_digests(each) for each in digests], so_far)
        so_far.note(partition, written.altered(ranges, sources.exact[partition.topic]), ViolationKind.ALTERED)
        so_far.rows += len(joined(written.raw.offsets))


def _compare_rows(
    sources: ValueSources,
    partition: Partition,
    table: PlacedRows,
    offsets: Offsets,
    digests: Sequence[Digests],
    so_far: Compared,
) -> None:
    """Compare the rows of one partition with those that the log gives."""
    order = np.argsort(offsets, kind="stable")
    offsets, digests = offsets[order], [each[order] for each in digests]
    rows, have, kinds = joined(table.offsets), joined_digests(table.digests), joined(table.kinds)
    at = np.minimum(np.searchsorted(offsets, rows), max(0, len(offsets) - 1))
    known = offsets[at] == rows if len(offsets) else np.zeros(len(rows), dtype=bool)
    should = np.zeros(len(rows), dtype=np.uint64)
    for kind, each in enumerate(digests):
        mine = known & (kinds == kind)
        should[mine] = each[at[mine]]
    wrong = (known & (should != have)) | (~known & sources.exact[partition.topic])
    so_far.note(partition, rows[wrong], ViolationKind.ALTERED)
    so_far.rows += int(np.count_nonzero(known))
    if sources.rows.strict and not so_far.unplaced:
        so_far.note(partition, offsets[~np.isin(offsets, rows)], ViolationKind.MISSING)
