"""The partitions that a job has positions of, and the slices of its commits, as a Delta table records them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.provenance import commits_of
from penstock.logs.log import Partition
from penstock.proof.invariants import CommittedSlice, Slices

UNKNOWN_TOPIC = "?"
"""Stands for a topic whose name the table has forgotten: only its id is left in the positions."""

_POSITION = re.compile(r"(?P<job>.+)/(?P<topic_id>[^/#]+)/(?P<number>\d+)(?:#(?P<what>[a-z_]+))?")
_TOPIC = re.compile(r"(?P<job>.+)/(?P<topic>[^/#]+)#id")


@dataclass(frozen=True)
class TopicIncarnations:
    """The partitions of topics as they are, and of earlier topics of the same name that were recreated since."""

    current: tuple[Partition, ...]
    retired: tuple[Partition, ...] = ()
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    """Per topic, the fingerprint of the id that the current positions belong to."""
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Other jobs that write to the same table, with the ids of their topics."""
    rows_written: int = 0
    """Rows that all jobs together have put into the table, replays included."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.current + self.retired

    @cached_property
    def other_ids(self) -> frozenset[str]:
        """Topic ids that other jobs write to the same table."""
        return frozenset().union(*self.others.values())


def read_history(records: Iterable[Mapping[str, Any]], job: str) -> Slices:
    """The job's slices out of commit metadata, oldest first; of a partition that only started, none."""
    slices: dict[Partition, list[CommittedSlice]] = {}
    for version, commit in commits_of(sorted(records, key=lambda record: int(record["version"])), job):
        for start in commit.starts:
            slices.setdefault(start.place, [])
        for piece in commit.slices:
            committed = CommittedSlice(piece.start, piece.end, piece.totals, version)
            slices.setdefault(piece.place, []).append(committed)
    return slices


def find_incarnations(transactions: Mapping[str, int], job: str, named: Iterable[Partition] = ()) -> TopicIncarnations:
    """Sort the app transactions of a table; `named` are partitions of the history, which names retired topics."""
    topics = ((_TOPIC.fullmatch(key), number) for key, number in transactions.items())
    fingerprints = {match["topic"]: number for match, number in topics if match and match["job"] == job}
    current_of = {number: topic for topic, number in fingerprints.items()}
    topic_of = {topic_fingerprint(partition.topic_id): partition.topic for partition in named} | current_of
    current: list[Partition] = []
    retired: list[Partition] = []
    others: dict[str, set[str]] = {}
    rows_written = 0
    for key, number in transactions.items():
        match = _POSITION.fullmatch(key)
        if match is None:
            continue
        if match["what"] is not None:
            rows_written += number if match["what"] in ("written", "replayed") else 0
        elif match["job"] != job:
            others.setdefault(match["job"], set()).add(match["topic_id"])
        else:
            fingerprint = topic_fingerprint(match["topic_id"])
            partition = Partition(topic_of.get(fingerprint, UNKNOWN_TOPIC), match["topic_id"], int(match["number"]))
            (current if fingerprint in current_of else retired).append(partition)
    return TopicIncarnations(
        current=tuple(sorted(current)),
        retired=tuple(sorted(retired)),
        fingerprints=fingerprints,
        others={name: frozenset(ids) for name, ids in others.items()},
        rows_written=rows_written,
    )
