"""The names of the app transactions by which a Delta table carries positions, tokens and totals.

A name may be written by several commits; the last one counts. Positions are offsets of the next record to read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from penstock.logs.log import Partition

_POSITION_KEY = re.compile(r"(?P<job>.+)/[A-Za-z0-9_-]+/\d+")


def position_key(job: str, partition: Partition) -> str:
    return f"{job}/{partition.topic_id}/{partition.number}"


def token_key(job: str, partition: Partition) -> str:
    return f"{position_key(job, partition)}#token"


def origin_key(job: str, partition: Partition) -> str:
    """Where the partition began (RULES P1): the totals count from here."""
    return f"{position_key(job, partition)}#origin"


def total_key(job: str, partition: Partition, total: str) -> str:
    return f"{position_key(job, partition)}#{total}"


def quarantine_key(job: str, partition: Partition) -> str:
    """The end of the last slice that listed quarantine files (RULES Q1)."""
    return f"{position_key(job, partition)}#quarantine"


def epoch_key(job: str, partition: Partition) -> str:
    """The leader epoch of the last record that was read and whose epoch is known (RULES P3)."""
    return f"{position_key(job, partition)}#epoch"


def epoch_end_key(job: str, partition: Partition) -> str:
    """The offset after that record: the position may be further, where offsets have no record."""
    return f"{position_key(job, partition)}#epoch_end"


def topic_key(job: str, topic: str) -> str:
    return f"{job}/{topic}#id"


def replay_key(job: str) -> str:
    """The number of the last replay run (RULES Q2)."""
    return f"{job}#replay"


def flow_key(job: str) -> str:
    """In the table of a type: what of the job file decided which records became rows of the last batch (RULES L8)."""
    return f"{job}#flow"


def table_key(job: str) -> str:
    """In a quarantine: the fingerprint of the table whose commits listed the job's rows and moved its positions."""
    return f"{job}#table"


def topic_fingerprint(topic_id: str) -> int:
    """A positive 63-bit number that stands for a topic id: app transactions hold only numbers (RULES P3)."""
    return fingerprint(topic_id)


def fingerprint(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def is_position_of(job: str, key: str) -> bool:
    """Whether the name is that of a position of the job."""
    found = _POSITION_KEY.fullmatch(key)
    return found is not None and found["job"] == job


def jobs_with_positions(keys: Iterable[str]) -> frozenset[str]:
    """The jobs whose positions stand among the names of a table's app transactions."""
    found = (_POSITION_KEY.fullmatch(key) for key in keys)
    return frozenset(each["job"] for each in found if each is not None)
