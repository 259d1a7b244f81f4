"""Whose rows a table holds: the job's partitions by life of their topic, and other jobs on the same table. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.provenance import commits_of
from penstock.logs.log import Partition
from penstock.proof.invariants import CommittedSlice

UNKNOWN_TOPIC = "?"
"""Stands for a topic whose name the table has forgotten: only its id is left in the positions."""

_POSITION = re.compile(r"(?P<job>.+)/(?P<topic_id>[^/#]+)/(?P<number>\d+)(?:#(?P<what>[a-z_]+))?")
_TOPIC = re.compile(r"(?P<job>.+)/(?P<topic>[^/#]+)#id")


@dataclass(frozen=True, slots=True)
class TopicIncarnations:
    """The partitions that a job has positions of: of topics as they are, and of topics that were recreated since."""

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

    @property
    def shared_topic_ids(self) -> frozenset[str]:
        mine = {each.topic_id for each in self.partitions}
        return frozenset(topic_id for ids in self.others.values() for topic_id in ids if topic_id in mine)


@dataclass(frozen=True, slots=True)
class Committed:
    """What the retained history of a table tells of a job, oldest first."""

    slices: Mapping[Partition, tuple[CommittedSlice, ...]]
    partitions: frozenset[Partition]


def read_history(records: Iterable[Mapping[str, Any]], job: str) -> Committed:
    """Take the job's slices and starts out of commit metadata."""
    slices: dict[Partition, list[CommittedSlice]] = {}
    partitions: set[Partition] = set()
    for version, ours in commits_of(sorted(records, key=lambda each: int(each["version"])), job):
        partitions.update(each.place for each in ours.starts)
        for piece in ours.slices:
            found = CommittedSlice(piece.start, piece.end, piece.totals, version)
            slices.setdefault(piece.place, []).append(found)
    return Committed({each: tuple(found) for each, found in slices.items()}, frozenset({*partitions, *slices}))


def find_incarnations(transactions: Mapping[str, int], job: str, named: Iterable[Partition] = ()) -> TopicIncarnations:
    """Sort the app transactions of a table; `named` are partitions of the history, which names retired topics."""
    fingerprints = {
        found["topic"]: number
        for key, number in transactions.items()
        if (found := _TOPIC.fullmatch(key)) and found["job"] == job
    }
    topic_of = {topic_fingerprint(each.topic_id): each.topic for each in named}
    current_of = {number: topic for topic, number in fingerprints.items()}
    current: list[Partition] = []
    retired: list[Partition] = []
    others: dict[str, set[str]] = {}
    sums = {"written": 0, "replayed": 0}
    for key, number in transactions.items():
        found = _POSITION.fullmatch(key)
        if found is None:
            continue
        if found["what"] is not None:
            sums[found["what"]] = sums.get(found["what"], 0) + number
            continue
        if found["job"] != job:
            others.setdefault(found["job"], set()).add(found["topic_id"])
            continue
        fingerprint = topic_fingerprint(found["topic_id"])
        topic = current_of.get(fingerprint) or topic_of.get(fingerprint, UNKNOWN_TOPIC)
        partition = Partition(topic, found["topic_id"], int(found["number"]))
        (current if fingerprint in current_of else retired).append(partition)
    return TopicIncarnations(
        current=tuple(sorted(current)),
        retired=tuple(sorted(retired)),
        fingerprints=fingerprints,
        others={name: frozenset(ids) for name, ids in others.items()},
        rows_written=sums["written"] + sums["replayed"],
    )
