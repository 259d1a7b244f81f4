"""Reads the offsets that files hold, pass by pass: by partition, by pool where the topic's life is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from penstock.lake.storage import Storage
from penstock.logs.log import Partition
from penstock.proof.findings import Violation, ViolationKind, earliest
from penstock.proof.log import UNKNOWN_TOPIC
from penstock.tables.export.old_proof.offsets.owners import OriginColumns, TopicIncarnations
from penstock.tables.export.old_proof.offsets.scan_passes import Part, Pass
from penstock.tables.export.old_proof.offsets.table import DataFile, by_place, origin_frames

PoolKey = tuple[str | None, int]
"""A topic, or None for all of them, and the number of a partition."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Partitions that a row may belong to if nothing tells of which life of its topic it is."""

    by_topic: bool
    partitions: tuple[Partition, ...]

    @staticmethod
    def of(partitions: Iterable[Partition], columns: OriginColumns | None) -> Pools:
        found = tuple(sorted(partitions))
        known = columns is not None and columns.topic is not None
        return Pools(known and all(each.topic != UNKNOWN_TOPIC for each in found), found)

    def key(self, topic: str, number: int) -> PoolKey:
        return (topic if self.by_topic else None, number)

    def key_of(self, partition: Partition) -> PoolKey:
        return self.key(partition.topic, partition.number)

    def members(self, key: PoolKey) -> tuple[Partition, ...]:
        return tuple(each for each in self.partitions if self.key_of(each) == key)

    def ranges(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[int, int]]:
        """The same range for all partitions of a pool, so that one pass sees all rows of an offset."""
        joined: dict[PoolKey, tuple[int, int]] = {}
        for each, (lo, hi) in ranges.items():
            before = joined.get(self.key_of(each), (lo, hi))
            joined[self.key_of(each)] = (min(lo, before[0]), max(hi, before[1]))
        return {each: joined[self.key_of(each)] for each in ranges}


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one pass found: offsets by partition, and those of an unknown life by pool."""

    offsets: Mapping[Partition, pl.Series]
    pooled: Mapping[PoolKey, pl.Series]


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one file with the same topic and partition."""

    topic: str | None
    topic_id: str | None
    number: int
    offsets: pl.Series

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest offset."""
        ascending = self.offsets.sort()
        return int(ascending[0]), int(ascending[-1])


class OffsetScan:
    """Reads offsets of files, pass by pass; counts the rows that have no place, each file once.

    `ends` are the offsets up to which the files are checked: rows beyond are left out and counted.
    """

    def __init__(
        self,
        storage: Storage,
        files: Sequence[DataFile],
        columns: OriginColumns,
        job: str,
        incarnations: TopicIncarnations,
        pools: Pools,
        ends: Mapping[Partition, int] | None = None,
    ) -> None:
        self._storage = storage
        self._files = files
        self._columns = columns
        self._job = job
        self._incarnations = incarnations
        self._pools = pools
        self._ends = ends or {}
        self._seen: set[str] = set()
        self.without_place: Counter[tuple[str | None, int | None]] = Counter()
        """Rows without partition or offset, by the topic id and the partition that their file or they tell."""
        self.violations: list[Violation] = []
        """Rows of partitions that no job has read, and files of one slice in which only some rows have a place."""
        self.unreadable: set[str] = set()
        self.ahead = 0

    def read(self, wanted: Pass) -> Scanned:
        """The offsets in the parts of one pass; rows of other jobs are left out."""
        foreign_ids = self._incarnations.foreign_ids
        parts = {(each.topic_id, each.number): (each, part) for each, part in wanted.items()}
        pool_parts = {self._pools.key_of(each): part for each, part in wanted.items()}
        found: dict[Partition, list[pl.Series]] = {}
        pooled: dict[PoolKey, list[pl.Series]] = {}
        strangers: list[Violation] = []
        for file in self._files:
            if file.path in self._seen and not _may_hold(file, wanted):
                continue
            for group in self._groups(file):
                key = self._pools.key(group.topic or "", group.number)
                if group.topic_id in foreign_ids:
                    continue
                if (place := parts.get((group.topic_id or "", group.number))) is not None:
                    found.setdefault(place[0], []).append(self._up_to_end(place[0], _within(group.offsets, place[1])))
                elif group.topic_id is None and key in pool_parts:
                    pooled.setdefault(key, []).append(_within(group.offsets, pool_parts[key]))
                elif group.topic_id is not None or not self._incarnations.other_ids:
                    name = group.topic or group.topic_id or UNKNOWN_TOPIC
                    strangers.append(Violation(name, group.number, group.ends[0], ViolationKind.UNKNOWN_PARTITION))
            self._seen.add(file.path)
        if (first := earliest(strangers)) is not None:
            self.violations.append(first)
        return Scanned(
            {each: pl.concat(parts) for each, parts in found.items()},
            {each: rows for each, parts in pooled.items() if len(rows := pl.concat(parts))},
        )

    def rows_without_place(self, partition: Partition) -> int:
        """How many rows without a place may be of a partition."""
        return sum(
            count
            for (topic_id, number), count in self.without_place.items()
            if topic_id in (None, partition.topic_id) and number in (None, partition.number)
        )

    def _up_to_end(self, partition: Partition, offsets: pl.Series) -> pl.Series:
        """The parts of all passes are apart, so each row is met once."""
        end = self._ends.get(partition)
        if end is None:
            return offsets
        checked = offsets.filter(offsets < end)
        self.ahead += len(offsets) - len(checked)
        return checked

    def _groups(self, file: DataFile) -> Iterator[_Group]:
        """The rows of a file that have a place, by topic and partition; the others are counted."""
        fresh = file.path not in self._seen
        without = 0
        placed: _Group | None = None
        try:
            for frame in origin_frames(self._storage, file, self._columns, self._job):
                for values, part in by_place(frame):
                    topic, number = values.get("topic"), values["partition"]
                    owner = self._incarnations.owner(file.path, topic, values.get("topic_id") or file.topic_id)
                    nowhere = number is None or (owner is None and topic is None and self._pools.by_topic)
                    offsets = part["offset"].clear() if nowhere else part["offset"].drop_nulls()
                    if fresh and len(part) > len(offsets):
                        without += len(part) - len(offsets)
                        known = number if number is not None else file.number
                        self.without_place[owner, known] += len(part) - len(offsets)
                    if len(offsets):
                        placed = _Group(topic, owner, number, offsets)
                        yield placed
        except (pa.ArrowException, OSError):
            self.unreadable.add(file.path)
        if placed is not None and without and file.number is not None:
            topic = next((each.topic for each in self._pools.partitions if each.topic_id == placed.topic_id), None)
            name = topic or placed.topic or UNKNOWN_TOPIC
            lowest, highest = placed.ends
            # The writer of a slice gives a place to each of its rows.
            self.violations.append(Violation(name, file.number, lowest, ViolationKind.NO_PLACE, highest + 1))


def _may_hold(file: DataFile, wanted: Pass) -> bool:
    if file.offsets is None:
        return True
    lowest, highest = file.offsets
    return any(
        part.takes(lowest, highest) and (file.numbers is None or file.numbers[0] <= each.number <= file.numbers[1])
        for each, part in wanted.items()
    )


def _within(offsets: pl.Series, part: Part) -> pl.Series:
    if not part.takes_lower:
        offsets = offsets.filter(offsets >= part.lo)
    if not part.takes_higher:
        offsets = offsets.filter(offsets < part.hi)
    return offsets
