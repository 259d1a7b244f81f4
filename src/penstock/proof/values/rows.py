"""Both sides of a comparison of values: rows of files, and records of the log written once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.logs.log import Log, Partition, Slice
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.proof.offsets.owners import OriginColumns, Owners
from penstock.proof.offsets.scan_passes import merged_ranges
from penstock.proof.values.digests import Digests, column_digests, row_digests
from penstock.proof.values.files import Offsets, Ranges, Rewriter, ValueBatch, ValueFile, columns_of, read_values

OFFSETS_PER_CHUNK_MAX = 100_000
"""So many offsets are written to the scratch folder at a time."""
RAW_NAMES = ("timestamp", "key", "value", "headers")
"""What of a quarantined record must be as it is in the log."""


@dataclass(slots=True)
class RawRecords:
    """The bytes of quarantined records, as digests."""

    wanted: Offsets
    offsets: list[Offsets] = field(default_factory=list)
    digests: list[Digests] = field(default_factory=list)

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the digests of wanted records; returns the others, which must be rows."""
        found = np.isin(batch.column("offset").to_numpy(), self.wanted)
        if not found.any():
            return batch
        mine = batch.filter(pa.array(found))
        self.offsets.append(mine.column("offset").to_numpy())
        self.digests.append(raw_digests(mine))
        return batch.filter(pa.array(~found))


def raw_digests(records: pa.RecordBatch) -> Digests:
    columns = {
        name: column_digests(_column(records, name).cast(QUARANTINE_SCHEMA.field(name).type)) for name in RAW_NAMES
    }
    return row_digests(columns, RAW_NAMES, np.uint64(0))


def _column(records: pa.RecordBatch, name: str) -> pa.Array:
    kind = QUARANTINE_SCHEMA.field(name).type
    return records.column(name) if name in records.schema.names else pa.nulls(records.num_rows, kind)


@dataclass(slots=True)
class Rewritten:
    """Rows as the job would write them again, a batch at a time, for ranges of one partition."""

    log: Log
    rewriter: Rewriter
    partition: Partition
    quarantined: RawRecords
    records: int = 0

    def batches(self, ranges: Ranges, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        for lo, hi in ranges.bounds:
            for start in range(lo, hi, OFFSETS_PER_CHUNK_MAX):
                yield from self._chunk(start, min(hi, start + OFFSETS_PER_CHUNK_MAX), origin)

    def _chunk(self, lo: int, hi: int, origin: OriginColumns | None) -> Iterator[ValueBatch]:
        piece = Slice(self.partition, lo, hi, lo)
        with TemporaryDirectory(prefix="penstock-verify-", ignore_cleanup_errors=True) as folder:
            for file in list(self.rewriter.written(piece, self._living(lo, hi), Path(folder))):
                yield from read_values(file, origin)

    def _living(self, lo: int, hi: int) -> Iterator[pa.RecordBatch]:
        for batch in self.log.records(self.partition, lo, hi):
            self.records += batch.num_rows
            rest = self.quarantined.take(batch)
            if rest.num_rows:
                yield rest


def joined(parts: Sequence[Offsets]) -> Offsets:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def joined_digests(parts: Sequence[Digests]) -> Digests:
    return np.concatenate(parts) if parts else np.array([], dtype=np.uint64)


Wanted = Mapping[Partition, Ranges]


@dataclass(frozen=True, slots=True)
class ValueSide:
    """Files whose rows are compared, and how their places are read."""

    files: Sequence[ValueFile]
    origin: OriginColumns
    owners: Owners


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


@dataclass(slots=True)
class PlacedRows:
    """The rows of one partition: offsets, digests, and by which columns these were made."""

    offsets: list[Offsets] = field(default_factory=list)
    digests: list[Digests] = field(default_factory=list)
    kinds: list[Offsets] = field(default_factory=list)

    def add(self, offsets: Offsets, digests: Digests, kind: int) -> None:
        self.offsets.append(offsets)
        self.digests.append(digests)
        self.kinds.append(np.full(len(offsets), kind, dtype=np.int64))


def collect_rows(
    side: ValueSide, wanted: Wanted, kinds: list[tuple[str, ...]], raw: bool = False
) -> tuple[dict[Partition, PlacedRows], int]:
    """The rows of the wanted offsets by partition, and how many rows have no place.

    `kinds` gathers the sets of columns by which digests were made, of raw records only one.
    """
    by_place = {(each.topic_id, each.number): each for each in wanted}
    everywhere = Ranges(tuple(merged_ranges(bound for ranges in wanted.values() for bound in ranges.bounds)))
    found: dict[Partition, PlacedRows] = {}
    unplaced = 0
    for file in side.files:
        names = RAW_NAMES if raw else columns_of(file)
        if names not in kinds:
            kinds.append(names)
        for batch in read_values(file, side.origin, everywhere):
            digests = batch.digests(names)
            unplaced += 0 if batch.places is None else len(batch.places)
            for values, rows, offsets in batch.groups():
                told = values.get("topic_id") or file.file.topic_id
                owner = side.owners.owner(file.file.path, values.get("topic"), told)
                unplaced -= len(rows) if owner is not None else 0
                partition = by_place.get((owner or "", values["partition"]))
                if partition is None or values.get("job") not in (None, side.owners.job):
                    continue
                inside = wanted[partition].holds(offsets)
                mine = found.setdefault(partition, PlacedRows())
                mine.add(offsets[inside], digests[rows][inside], kinds.index(names))
    return found, unplaced


def compare_raw(ranges: Ranges, bad: PlacedRows, raw: RawRecords, exact: bool) -> Offsets:
    """The offsets of quarantined records in the ranges that are not as they are in the log."""
    seen = dict(zip(joined(raw.offsets).tolist(), joined_digests(raw.digests).tolist(), strict=True))
    offsets, digests = joined(bad.offsets), joined_digests(bad.digests)
    inside = ranges.holds(offsets)
    pairs = zip(offsets[inside].tolist(), digests[inside].tolist(), strict=True)
    wrong = [offset for offset, digest in pairs if (seen[offset] != digest if offset in seen else exact)]
    return np.array(wrong, dtype=np.int64)
