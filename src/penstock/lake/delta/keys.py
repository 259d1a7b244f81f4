"""The app transactions by which a Delta table carries positions, tokens and totals: their names, and reading them.

A name may be written by several commits; the last one counts. Positions are offsets of the next record to read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from penstock.lake.state import TOTAL_NAMES, DeltaPartition, DeltaState, Totals
from penstock.logs.log import EpochMark, Partition

Lookup = Callable[[str], int | None]
"""Gives the number of an app transaction by its name, as of one version."""

_POSITION_KEY = re.compile(r"(?P<job>.+)/(?P<partition>[A-Za-z0-9_-]+/\d+)")
_JOB = re.compile(r"(?P<job>[a-z0-9._-]+)[/#].+")
"""Matches every app id of Penstock; those of other writers contain neither `/` nor `#`."""


def position_key(job: str, partition: Partition) -> str:
    return f"{job}/{partition.topic_id}/{partition.number}"


def field_key(job: str, partition: Partition, field: str) -> str:
    """The name of a further number that is kept with the position of a partition.

    A total by its name; `token`; `origin`, where the totals count from (RULES P1); `quarantine`, the end of the last
    slice that listed quarantine files (RULES Q1); `epoch` and `epoch_end`, the leader epoch of the last record that was
    read and whose epoch is known, and the offset after that record (RULES P3): the position may be further.
    """
    return f"{position_key(job, partition)}#{field}"


def topic_key(job: str, topic: str) -> str:
    return f"{job}/{topic}#id"


def replay_key(job: str) -> str:
    """The number of the last replay run (RULES Q2)."""
    return f"{job}#replay"


def flow_key(job: str) -> str:
    """In the table of a type: what of the job file decided which records became rows of the last batch (RULES E5)."""
    return f"{job}#flow"


def quarantine_key(job: str, partition: Partition, log: str = "") -> str:
    """In a quarantine: up to where the files are appended that a log lists, the log of a type by its name."""
    return field_key(job, partition, f"type/{log}") if log else position_key(job, partition)


def topic_fingerprint(topic_id: str) -> int:
    """A positive 63-bit number that stands for a topic id: app transactions hold only numbers (RULES P3)."""
    return fingerprint(topic_id)


def fingerprint(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def is_position_of(job: str, key: str) -> bool:
    """Whether the name is that of a position of the job."""
    match = _POSITION_KEY.fullmatch(key)
    return match is not None and match["job"] == job


def jobs_with_positions(keys: Iterable[str]) -> frozenset[str]:
    """The jobs that have a position among the app transactions of a table."""
    matches = (_POSITION_KEY.fullmatch(key) for key in keys)
    return frozenset(match["job"] for match in matches if match is not None)


def other_jobs(keys: Iterable[str], job: str) -> list[str]:
    """The other jobs that keep numbers under these names, in order."""
    matches = (_JOB.fullmatch(key) for key in keys)
    return sorted({match["job"] for match in matches if match is not None} - {job})


def other_readers(keys: Iterable[str], job: str, partitions: Iterable[Partition]) -> list[str]:
    """The other jobs that keep a position of one of the partitions, in order."""
    places = {f"{partition.topic_id}/{partition.number}" for partition in partitions}
    matches = (_POSITION_KEY.fullmatch(key) for key in keys)
    return sorted({match["job"] for match in matches if match is not None and match["partition"] in places} - {job})


def state_of(
    version: int, lookup: Lookup, job: str, partitions: Iterable[Partition], numbers: Iterable[str] = ()
) -> DeltaState:
    """The state of these partitions, from a lookup of the app transactions of a version; with these numbers."""
    states = {partition: _partition_state(lookup, job, partition, tuple(numbers)) for partition in partitions}
    topics = {partition.topic for partition in states}
    return DeltaState(version, states, {topic: lookup(topic_key(job, topic)) for topic in topics})


def _partition_state(lookup: Lookup, job: str, partition: Partition, numbers: Iterable[str]) -> DeltaPartition:
    def stored(field: str) -> int | None:
        return lookup(field_key(job, partition, field))

    end, epoch = stored("epoch_end"), stored("epoch")
    return DeltaPartition(
        position=lookup(position_key(job, partition)),
        origin=stored("origin"),
        token=stored("token") or 0,
        totals=Totals(*(stored(name) or 0 for name in TOTAL_NAMES)),
        quarantine_mark=stored("quarantine"),
        mark=None if end is None or epoch is None else EpochMark(end, epoch),
        numbers={name: number for name in numbers if (number := stored(name)) is not None},
    )
