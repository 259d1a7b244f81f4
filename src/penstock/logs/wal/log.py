"""A WAL as a log: the topics of one job, asked of the server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import TransientError, UserError, did_you_mean
from penstock.logs.log import (
    Bounds,
    EpochMark,
    LostTail,
    Offsets,
    Partition,
    Piece,
    ShowReport,
    Slice,
    Told,
    pieces_of,
    start_offset,
)
from penstock.logs.wal.client import Patience, WalClient
from penstock.logs.wal.source import READ_BYTES, WalSource, read_piece
from penstock.logs.wal.spec import WalLogSpec
from penstock.logs.wal.store.positions import Place

RECORDS_BATCH_BYTES = 16 * 1024 * 1024


class WalLog:
    """The topics of one job. The job is registered before it reads: nothing that it needs is trimmed from then on."""

    def __init__(self, spec: WalLogSpec, patience: Patience | None = None) -> None:
        self.spec = spec
        self._client = WalClient(spec.url, patience, spec.token)
        self._registered: set[Partition] = set()

    def partitions(self) -> tuple[Partition, ...]:
        topics = {each.name: each for each in self._client.topics().topics}
        for topic in self.spec.topics:
            if topic not in topics:
                hint = did_you_mean(topic, topics) or f"the log has {', '.join(sorted(topics)[:20]) or 'none'}"
                raise UserError(f"there is no topic {topic} in the WAL at {self.spec.url}", hint=hint)
        seen = [each for each in topics.values() if self._sees(each.name)]
        return tuple(sorted(Partition(each.name, each.id, part.number) for each in seen for part in each.partitions))

    def _sees(self, topic: str) -> bool:
        pattern = self.spec.topic_pattern
        return topic in self.spec.topics if pattern is None else re.fullmatch(pattern, topic) is not None

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        wanted = set(topics)
        return {each.name: each.id for each in self._client.topics().topics if each.name in wanted}

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
        held = {
            Partition(topic.name, topic.id, each.number): Bounds(each.first, each.end)
            for topic in self._client.topics().topics
            for each in topic.partitions
        }
        wanted = tuple(partitions)
        for each in wanted:
            if each not in held:
                raise TransientError(f"partition {each} is gone")
        return {each: held[each] for each in wanted}

    def start_offsets(
        self, partitions: Iterable[Partition], bounds: Mapping[Partition, Bounds]
    ) -> Mapping[Partition, int]:
        """Where the job begins; the server keeps everything from there on for it."""
        found = {each: start_offset(self.spec.start, each, bounds[each]) for each in partitions}
        if found:
            self._client.report(self.spec.group, self.spec.owner, _places(found), "reset")
            self._registered |= found.keys()
        return found

    def compacted(self, topic: str) -> bool | None:
        return False

    def record_bytes_max(self, topic: str) -> int:
        return self._client.topics().record_bytes_max

    def leader_epochs(self, partitions: Iterable[Partition]) -> Mapping[Partition, int | None]:
        return dict.fromkeys(partitions)

    def lost_tails(self, marks: Mapping[Partition, Iterable[EpochMark]]) -> Sequence[LostTail]:
        """A durable record is never lost: one that is makes the server refuse to start."""
        return []

    def source(self, slices: Sequence[Slice], tasks_min: int, batch_bytes: int) -> WalSource:
        new = {each.partition: each.start for each in slices if each.partition not in self._registered}
        if new:
            self._client.report(self.spec.group, self.spec.owner, _places(new), "register")
            self._registered |= new.keys()
        return WalSource(self.spec.url, pieces_of(slices, tasks_min), batch_bytes, self.spec.token)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return read_piece(self._client, Piece(partition.topic, partition.number, start, end), RECORDS_BATCH_BYTES)

    def offsets(self, partition: Partition, start: int, end: int, told: Told) -> Offsets:
        """Reads the records, and so checks each of them."""
        first = max(start, min(end, self.bounds([partition])[partition].first))
        told(first - start)
        at = first
        for header, _ in self._client.frames(partition.topic, partition.number, first, end, READ_BYTES):
            reached = min(end, header.end)
            told(reached - at)
            at = reached
        return np.arange(first, end, dtype=np.int64)

    def record_times(self, offsets: Mapping[Partition, int], seconds_max: float) -> Mapping[Partition, float]:
        found: dict[Partition, float] = {}
        for each, held in self.bounds(offsets).items():
            at = max(offsets[each], held.first)
            if at < held.end:
                header, _ = next(self._client.frames(each.topic, each.number, at, at + 1, 0))
                found[each] = header.at_ms / 1000
        return found

    def show(self, positions: Mapping[Partition, int]) -> ShowReport:
        moved, refused = self._client.report(self.spec.group, self.spec.owner, _places(positions))
        return ShowReport(
            {Partition(*place): offset for place, offset in moved.items()},
            {Partition(*place): reason for place, reason in refused.items()},
        )

    def shown(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        known = {Partition(*place): offset for place, offset in self._client.positions(self.spec.group).items()}
        return {each: known[each] for each in partitions if each in known}

    def trim(self, positions: Mapping[Partition, int]) -> None:
        """What is shown is what is committed: the server trims below it by itself, as its retention says."""
        self.show(positions)

    def close(self) -> None:
        self._client.close()


def _places(positions: Mapping[Partition, int]) -> dict[Place, int]:
    return {(each.topic, each.topic_id, each.number): offset for each, offset in positions.items()}
