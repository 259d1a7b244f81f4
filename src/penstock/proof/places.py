"""To which partitions the rows of a table belong, by the place that they carry or the name of their file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import polars as pl

from penstock.logs.log import Partition
from penstock.proof.files import DataFile, RowSource
from penstock.proof.incarnations import UNKNOWN_TOPIC, TopicIncarnations
from penstock.proof.invariants import Span


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One partition; or all incarnations of it, once compaction has mixed their rows and no column tells them apart."""

    spans: Mapping[Partition, tuple[Span, ...]]
    """The current incarnation first."""

    @property
    def partition(self) -> Partition:
        return next(iter(self.spans))

    @property
    def single(self) -> bool:
        return len(self.spans) == 1

    @property
    def range(self) -> tuple[int, int]:
        """The offsets `[origin, position)`, over all incarnations."""
        ends = [(spans[0].lo, spans[-1].hi) for spans in self.spans.values() if spans]
        return (min(lo for lo, _ in ends), max(hi for _, hi in ends)) if ends else (0, 0)


class NoUnit(Enum):
    """Why rows belong to no partition of the job."""

    OTHER_JOB = "of another job on the same table"
    UNKNOWN = "of a partition that the job never read"
    NO_PLACE = "without a place"


class PlaceIndex:
    """Finds the partition of rows."""

    def __init__(
        self,
        incarnations: TopicIncarnations,
        spans: Mapping[Partition, tuple[Span, ...]],
        sources: Iterable[RowSource],
    ) -> None:
        topics = {partition.topic for partition in spans}
        mixed = any(file.topic_id is None for source in sources for file in source.files)
        # Rows of any topic may be of an incarnation whose name is forgotten.
        self._forgotten = mixed and UNKNOWN_TOPIC in topics
        self._only_topic = next(iter(topics)) if len(topics) == 1 and not incarnations.others else None
        self._other_ids = incarnations.other_ids
        groups: dict[tuple[str | None, int], dict[Partition, tuple[Span, ...]]] = {}
        for partition in (each for each in incarnations.partitions if each in spans):
            key = self._key(partition.topic, partition.number) if mixed else (partition.topic_id, partition.number)
            groups.setdefault(key, {})[partition] = spans[partition]
        self.units = [Unit(group) for group in groups.values()]
        self._by_id = {(each.topic_id, each.number): unit for unit in self.units for each in unit.spans}
        self._by_topic = {self._key(each.topic, each.number): unit for unit in self.units for each in unit.spans}

    def _key(self, topic: str | None, number: int) -> tuple[str | None, int]:
        return None if self._forgotten else topic, number

    def find(self, topic_id: str | None, topic: str | None, number: int | None) -> Unit | NoUnit:
        """The unit of rows that tell so much of themselves."""
        if number is None:
            return NoUnit.NO_PLACE
        if topic_id is not None:
            unit = self._by_id.get((topic_id, number))
            names = {topic, None, UNKNOWN_TOPIC}
            if unit is not None and (topic is None or any(each.topic in names for each in unit.spans)):
                return unit
            return NoUnit.OTHER_JOB if topic_id in self._other_ids else NoUnit.UNKNOWN
        topic = topic or self._only_topic
        if topic is None and not self._forgotten:
            return NoUnit.NO_PLACE
        missing = NoUnit.OTHER_JOB if self._other_ids else NoUnit.UNKNOWN
        return self._by_topic.get(self._key(topic, number), missing)

    def groups(self, file: DataFile, places: pl.DataFrame) -> Iterator[tuple[Unit | NoUnit, pl.DataFrame]]:
        """The rows of a file by unit; those without an offset have no place either."""
        keys = [name for name in places.columns if name in ("topic", "topic_id", "partition")]
        for rows in places.partition_by(keys, maintain_order=True):
            values = rows.row(0, named=True)
            unit = self.find(values.get("topic_id") or file.topic_id, values.get("topic"), values["partition"])
            nowhere = rows.filter(pl.col("offset").is_null())
            if len(nowhere):
                yield NoUnit.NO_PLACE, nowhere
                rows = rows.drop_nulls("offset")
            if len(rows):
                yield unit, rows
