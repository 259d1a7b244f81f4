"""What tests do to a log in memory, under the same names as what they do to a broker (`tests.support.kafka`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from penstock.logs.log import Partition
from tests.support.memory_log import MemoryLog, MemoryRecord

TRIED = {"retention.ms", "max.message.bytes", "message.timestamp.after.max.ms"}
"""Settings that mean something here; records may be of any time."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class MemoryTopics:
    """Makes topics; called, it makes one with a unique name."""

    log: MemoryLog

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None, *, name: str | None = None) -> str:
        assert set(config or ()) <= TRIED, "other settings of topics are tried on a real broker"
        chosen = name or f"topic-{uuid.uuid4().hex[:12]}"
        topic_id = uuid.uuid4().hex[:22]
        for number in range(partitions):
            self.log.values[Partition(chosen, topic_id, number)] = {}
        self.log.settings[chosen] = config or {}
        return chosen

    def delete(self, name: str) -> None:
        self.log.delete(name)

    def recreate(self, name: str, partitions: int = 1) -> None:
        self.log.delete(name)
        self(partitions, name=name)

    def grow(self, name: str, partitions: int) -> None:
        there = self.log.topic_ids([name])[name]
        for number in range(partitions):
            self.log.values.setdefault(Partition(name, there, number), {})

    def cut(self, name: str, offset: int, partition: int = 0) -> None:
        self.log.expire(self._partition(name, partition), offset)

    def _partition(self, name: str, number: int) -> Partition:
        return Partition(name, self.log.topic_ids([name])[name], number)


@dataclass(slots=True)
class MemoryProduce:
    """Puts records into a topic; called, it returns (partition, offset) of each, in the order given."""

    log: MemoryLog
    _turn: count[int] = field(default_factory=count)

    def __call__(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        partition: int | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        transactional: bool = False,
        timestamp_ms: int | None = None,
    ) -> list[tuple[int, int]]:
        partitions = [item for item in self.log.partitions() if item.topic == topic]
        at = time.time() if timestamp_ms is None else timestamp_ms / 1000
        places = []
        for value in values:
            assert len(value or "") <= self.log.record_bytes_max(topic), "the record is larger than its topic allows"
            chosen = partitions[next(self._turn) % len(partitions) if partition is None else partition]
            places.append((chosen.number, self.log.bounds([chosen])[chosen].end))
            self.log.append(chosen, MemoryRecord(_bytes(value), _bytes(key), tuple(headers or ()), at))
        if transactional:
            for number in {place[0] for place in places}:
                # The marker of the transaction takes an offset and is not a record.
                chosen = partitions[number]
                self.log.ends[chosen] = self.log.bounds([chosen])[chosen].end + 1
        return places


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
