"""Whose rows a table holds: the job's partitions by life of their topic, and other jobs on the same table. Pure.

To which of them a row belongs, the columns tell that the job keeps, and the name of its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import parse_staged_name
from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.provenance import commits_of
from penstock.logs.log import Partition
from penstock.proof.invariants import CommittedSlice, Slices

UNKNOWN_TOPIC = "?"
"""Stands for a topic whose name the table has forgotten: only its id is left in the positions."""

_POSITION = re.compile(r"(?P<job>.+)/(?P<topic_id>[^/#]+)/(?P<number>\d+)(?:#(?P<what>[a-z_]+))?")
_TOPIC = re.compile(r"(?P<job>.+)/(?P<topic>[^/#]+)#id")

STRANGER = ""
"""Instead of a topic id: the row is of no topic that any job of the table has read."""


@dataclass(frozen=True)
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

    @cached_property
    def ids_of(self) -> Mapping[str, frozenset[str]]:
        """Topic ids by topic."""
        topics = {each.topic for each in self.partitions}
        return {name: frozenset(each.topic_id for each in self.partitions if each.topic == name) for name in topics}

    @cached_property
    def other_ids(self) -> frozenset[str]:
        """Topic ids that other jobs write to the same table."""
        return frozenset().union(*self.others.values())

    @property
    def foreign_ids(self) -> frozenset[str]:
        """Of these, those that the job does not."""
        return self.other_ids.difference(*self.ids_of.values())

    @property
    def shared_topic_ids(self) -> frozenset[str]:
        return self.other_ids - self.foreign_ids

    def owner(self, path: str, topic: str | None, topic_id: str | None) -> str | None:
        """The topic id of a row in the file at `path`, `STRANGER`, or None where nothing tells.

        Only staged files have the id in their names: compaction mixes the incarnations of a recreated topic.
        """
        if topic_id is not None:
            return topic_id
        staged = parse_staged_name(path)
        if staged is not None:
            return staged.topic_id
        if topic is None and len(self.ids_of) == 1 and not self.other_ids:
            [topic] = self.ids_of
        # Any topic may have had a life whose name is forgotten.
        if topic is None or UNKNOWN_TOPIC in self.ids_of:
            return None
        ids = self.ids_of.get(topic)
        if ids is None:
            return None if self.other_ids else STRANGER
        return next(iter(ids)) if len(ids) == 1 else None


def read_history(records: Iterable[Mapping[str, Any]], job: str) -> Slices:
    """The job's slices out of commit metadata, oldest first; of a partition that only started, none."""
    slices: dict[Partition, list[CommittedSlice]] = {}
    for version, ours in commits_of(sorted(records, key=lambda each: int(each["version"])), job):
        for start in ours.starts:
            slices.setdefault(start.place, [])
        for piece in ours.slices:
            found = CommittedSlice(piece.start, piece.end, piece.totals, version)
            slices.setdefault(piece.place, []).append(found)
    return slices


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


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """The columns of a table that tell where a row came from."""

    partition: str
    offset: str
    topic: str | None = None
    topic_id: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        found = (self.partition, self.offset, self.topic, self.topic_id)
        return tuple(each for each in found if each is not None)


QUARANTINE_COLUMNS = OriginColumns("partition", "offset", "topic", "topic_id")


def kept_columns(job: JobSpec, schema: pa.Schema) -> OriginColumns | None:
    """The columns in which the job keeps partition and offset; None if either is not kept."""
    spelled = {folded(name): name for name in schema.names}
    kept: dict[str, str] = {}
    for part, name in place_columns(job.columns, job.sql.select if job.sql is not None else ()):
        if folded(name) in spelled:
            kept.setdefault(part, spelled[folded(name)])
    if "partition" not in kept or "offset" not in kept:
        return None
    return OriginColumns(kept["partition"], kept["offset"], kept.get("topic"))


def named_columns(job: JobSpec) -> OriginColumns | None:
    """Those of an export: the columns stand for every type, so their names are enough."""
    return kept_columns(job, pa.schema([(name, pa.null()) for name in job.columns]))
