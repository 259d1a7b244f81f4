"""Rows of files with their places and digests, and what a comparison of values has shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, violation_at
from penstock.proof.offsets.owners import OriginColumns, Owners
from penstock.proof.values.digests import Digests
from penstock.proof.values.files import Offsets, Ranges, ValueFile, columns_of, read_values
from penstock.proof.values.log import RAW_NAMES, RawRecords, joined, joined_digests

Wanted = Mapping[Partition, Ranges]


@dataclass(frozen=True, slots=True)
class ValueSide:
    """Files whose rows are compared, and how their places are read."""

    files: Sequence[ValueFile]
    origin: OriginColumns
    owners: Owners


@dataclass(slots=True)
class Compared:
    """What a comparison has shown so far."""

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


@dataclass(frozen=True, slots=True)
class Collected:
    """The rows of the wanted offsets by partition, and how many rows have no place."""

    rows: Mapping[Partition, PlacedRows]
    unplaced: int


def collect_rows(side: ValueSide, wanted: Wanted, kinds: list[tuple[str, ...]], raw: bool = False) -> Collected:
    """Read all files; `kinds` gathers the sets of columns by which digests were made, of raw records only one."""
    by_place = {(each.topic_id, each.number): each for each in wanted}
    everywhere = Ranges(tuple(_merged(bound for ranges in wanted.values() for bound in ranges.bounds)))
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
    return Collected(found, unplaced)


def compare_raw(ranges: Ranges, bad: PlacedRows, raw: RawRecords, exact: bool) -> Offsets:
    """The offsets of quarantined records in the ranges that are not as they are in the log."""
    seen = dict(zip(joined(raw.offsets).tolist(), joined_digests(raw.digests).tolist(), strict=True))
    offsets, digests = joined(bad.offsets), joined_digests(bad.digests)
    inside = ranges.holds(offsets)
    pairs = zip(offsets[inside].tolist(), digests[inside].tolist(), strict=True)
    wrong = [offset for offset, digest in pairs if (seen[offset] != digest if offset in seen else exact)]
    return np.array(wrong, dtype=np.int64)


def _merged(bounds: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of several partitions as one ascending list without overlaps."""
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(bounds):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        else:
            found.append((lo, hi))
    return found
