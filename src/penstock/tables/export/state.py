"""The state of an export in its logs: positions, types that lag, event times and days, and how slices change it. Pure.

A type that does not lag in a partition is complete up to the partition's position, also if its own log ends lower: so
idle types need no commits. A type lags while records are deferred for it, because its rotation is not due or it failed.
The log of a type keeps every day that has rows, with the watermark at which rows came after the day was complete, or 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime

from penstock.flow.write.report import Share
from penstock.lake.delta.keys import field_key, topic_fingerprint
from penstock.lake.state import TOTAL_NAMES, Totals
from penstock.logs.log import Partition, Slice

MILLIS_PER_SECOND = 1000
EVENT_MS = "event_ms"
"""The number of a partition that holds its highest event time."""
Day = str
"""`YYYY-MM-DD`, in UTC."""
Days = Mapping[Day, int]
"""Days that have rows, with the watermark at which late rows came, or 0."""


@dataclass(frozen=True, slots=True)
class Lag:
    """A type that lags in a partition: everything of it below `position` is written."""

    position: int
    deferred: int = 0
    """How many records it has still to read."""
    since_ms: int = 0
    """When the first of them was deferred."""
    watermark_ms: int | None = None
    """The event time that the type is complete up to, while it lags."""


@dataclass(frozen=True, slots=True)
class JobPartition:
    """One partition in the job log; `position` is that of every type that does not lag."""

    position: int | None = None
    origin: int | None = None
    token: int = 0
    totals: Totals = field(default_factory=Totals)
    watermark_ms: int | None = None
    lags: Mapping[str, Lag] = field(default_factory=dict)

    def watermark_of(self, name: str) -> int | None:
        lag = self.lags.get(name)
        return self.watermark_ms if lag is None else lag.watermark_ms

    def position_of(self, name: str | None = None) -> int | None:
        """The offset up to which everything of a type, or of all types, is written."""
        if self.position is None:
            return None
        names = self.lags.keys() if name is None else self.lags.keys() & {name}
        return min([self.position, *(self.lags[lagging].position for lagging in names)])


PartitionId = tuple[str, int]
"""Topic id and number: the job log does not keep the names of topics."""


@dataclass(frozen=True, slots=True)
class ExportState:
    """The job log as of one version."""

    version: int = -1
    partitions: Mapping[PartitionId, JobPartition] = field(default_factory=dict)
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    """Of the id of each topic."""
    types: Mapping[str, int] = field(default_factory=dict)
    """With the fingerprint of each log's id; 0 while a type has none, because its columns are not known yet."""
    routing: int | None = None

    def of(self, partition: Partition) -> JobPartition:
        return self.partitions.get((partition.topic_id, partition.number), JobPartition())

    def partition_of(self, key: PartitionId) -> Partition:
        """The partition with the name of its topic."""
        names = (topic for topic, number in self.fingerprints.items() if number == topic_fingerprint(key[0]))
        return Partition(next(names, "?"), *key)

    def started(self) -> Iterator[tuple[PartitionId, JobPartition]]:
        return ((key, partition) for key, partition in self.partitions.items() if partition.position is not None)

    def watermark_of(self, name: str, now_ms: int | None = None) -> int | None:
        """The event time up to which a type is complete: the least over all partitions; None while one has none.

        With `now_ms` it is not beyond that: a process whose clock was ahead may have left event times of the future.
        """
        marks = [partition.watermark_of(name) for _, partition in self.started()]
        return _least(marks if now_ms is None or not marks else [*marks, now_ms])

    def present_watermark(self) -> int | None:
        """The watermark of a partition that is created later: it reopens no complete day."""
        return _least([partition.watermark_ms for _, partition in self.started()])


def _least(marks: Sequence[int | None]) -> int | None:
    """The least of these watermarks; None if one is missing, or all are."""
    numbers = [mark for mark in marks if mark is not None]
    return min(numbers, default=None) if len(numbers) == len(marks) else None


# keys in the job log


def type_key(job: str, name: str) -> str:
    return f"{job}#type/{name}"


def routing_key(job: str) -> str:
    return f"{job}#routing"


def lag_numbers(job: str, partition: Partition, lags: Mapping[str, Lag]) -> dict[str, int]:
    """The numbers of lags; a watermark that is None was never known in this partition, so none has to be cleared."""
    return {
        field_key(job, partition, f"lag/{name}/{what}"): number
        for name, lag in lags.items()
        for what, number in asdict(lag).items()
        if number is not None
    }


def parse_state(version: int, numbers: Mapping[str, int], job: str) -> ExportState:
    """The state from all app transactions of the job log."""
    of_partition = re.compile(rf"{re.escape(job)}/([^/#]+)/(\d+)(?:#(?:lag/([^/]+)/)?(.+))?")
    of_topic = re.compile(rf"{re.escape(job)}/([^/#]+)#id")
    type_prefix = type_key(job, "")
    fields: dict[PartitionId, dict[str, dict[str, int]]] = {}
    """By partition and lagging type; those of the partition itself have no type."""
    topics: dict[str, int] = {}
    types: dict[str, int] = {}
    for key, number in numbers.items():
        if (match := of_partition.fullmatch(key)) is not None:
            of_type = fields.setdefault((match[1], int(match[2])), {}).setdefault(match[3] or "", {})
            of_type[match[4] or "position"] = number
        elif (match := of_topic.fullmatch(key)) is not None:
            topics[match[1]] = number
        elif key.startswith(type_prefix):
            types[key.removeprefix(type_prefix)] = number
    partitions = {key: _parse_partition(of_key.pop("", {}), of_key) for key, of_key in fields.items()}
    return ExportState(version, partitions, topics, types, numbers.get(routing_key(job)))


def _parse_partition(numbers: Mapping[str, int], by_type: Mapping[str, Mapping[str, int]]) -> JobPartition:
    return JobPartition(
        numbers.get("position"),
        numbers.get("origin"),
        numbers.get("token", 0),
        Totals(*(numbers.get(name, 0) for name in TOTAL_NAMES)),
        numbers.get(EVENT_MS),
        {name: Lag(**of_type) for name, of_type in by_type.items() if of_type.get("deferred")},
    )


# changes by slices


def deferred_lags(before: JobPartition, shares: Mapping[str, Share], now_ms: int) -> dict[str, Lag]:
    """The lags of types after a slice of the partition deferred these shares."""
    lags = {}
    for name, share in shares.items():
        new = Lag(share.first or 0, since_ms=now_ms, watermark_ms=before.watermark_ms)
        lag = before.lags.get(name, new)
        lags[name] = replace(lag, deferred=lag.deferred + share.counts.read)
    return lags


def caught_up(before: JobPartition, piece: Slice, counts: Mapping[str, int]) -> tuple[dict[str, Lag], Totals]:
    """The lags of types after a catch-up that read `counts` records of each, and the change of the totals.

    At the partition's position, deferred records that the slice did not find have vanished from the log.
    """
    lags: dict[str, Lag] = {}
    totals = Totals()
    for name, count in counts.items():
        lag = before.lags[name]
        deferred = lag.deferred - count
        vanished = deferred if piece.end >= (before.position or 0) else 0
        deferred -= vanished
        totals += Totals(deferred=-count - vanished, vanished=vanished)
        lags[name] = replace(lag, position=piece.end, deferred=deferred)
    return lags, totals


# days


def day_key(job: str, day: Day) -> str:
    return f"{job}#day/{day}"


def parse_days(numbers: Mapping[str, int], job: str) -> dict[Day, int]:
    """The days from the app transactions of a type's log."""
    prefix = day_key(job, "")
    return {key.removeprefix(prefix): late_ms for key, late_ms in numbers.items() if key.startswith(prefix)}


def end_ms(day: Day) -> int:
    """The instant at which a UTC day is over."""
    return ((date.fromisoformat(day) - date(1970, 1, 1)).days + 1) * 86_400 * MILLIS_PER_SECOND


def needed_ms(day: Day, late_ms: int, after_seconds: float) -> int:
    """The watermark that makes a day complete."""
    return max(end_ms(day), late_ms) + int(after_seconds * MILLIS_PER_SECOND)


def instant(millis: int | None) -> str | None:
    """Event time for people: UTC, to the second."""
    if millis is None:
        return None
    return datetime.fromtimestamp(millis / MILLIS_PER_SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
