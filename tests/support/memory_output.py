"""An output in memory, with transactions like a topic's, for tests of publishing without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import FencedError, UserError
from penstock.failpoints import AtStep, noop
from penstock.publish.output import OutputRecord, PublishBucket, PublishPosition, decode_position, encode_position


@dataclass(slots=True)
class MemoryCluster:
    """Topics with their records, and the positions of all buckets as they would be in the positions topic."""

    topics: dict[str, list[OutputRecord]] = field(default_factory=dict)
    """The committed records, in the order of their transactions."""
    sent: dict[str, list[OutputRecord]] = field(default_factory=dict)
    """Everything that was ever sent: what a reader of uncommitted records sees."""
    positions: dict[str, bytes] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """How often each transactional id was taken: only its last producer may commit."""
    record_bytes_max: int = 1024 * 1024

    def create(self, topic: str) -> None:
        self.topics.setdefault(topic, [])
        self.sent.setdefault(topic, [])


class MemoryOutput:
    """Publishes one bucket to a topic of a cluster in memory."""

    def __init__(self, cluster: MemoryCluster, topic: str, bucket: PublishBucket, at_step: AtStep = noop) -> None:
        self._cluster = cluster
        self._topic = topic
        self._bucket = bucket
        self._at_step = at_step
        self._epoch: int | None = None

    def check(self) -> None:
        if self._topic not in self._cluster.topics:
            raise UserError(f"topic {self._topic} does not exist")

    def open(self) -> PublishPosition | None:
        self.check()
        name = self._bucket.transactional_id
        epoch = self._cluster.epochs[name] = self._cluster.epochs.get(name, 0) + 1
        position = decode_position(self._bucket, self._cluster.positions.get(self._bucket.key))
        self._epoch = epoch
        return position

    def publish(self, records: Sequence[OutputRecord], position: PublishPosition) -> None:
        if self._epoch is None:
            raise ValueError("this output is not open")
        try:
            self._send(records)
            self._at_step("publish_sent")
            self._check_epoch()
            self._cluster.topics[self._topic].extend(records)
            self._cluster.positions[self._bucket.key] = encode_position(self._bucket, position)
            self._at_step("publish_committed")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._epoch = None

    def _send(self, records: Sequence[OutputRecord]) -> None:
        self._check_epoch()
        for record in records:
            size = len(record.key) + len(record.value)
            if size > self._cluster.record_bytes_max:
                raise UserError(
                    f"a record of {size} bytes is too large for topic {self._topic}",
                    detail=f"its key is {record.key.decode(errors='replace')}",
                )
            self._cluster.sent[self._topic].append(record)

    def _check_epoch(self) -> None:
        if self._cluster.epochs[self._bucket.transactional_id] != self._epoch:
            raise FencedError(f"another producer publishes {self._bucket}")
