"""Whose rows a table holds: the job's partitions by life of their topic, and other jobs on the same table. Pure.

To which of them a row belongs, the columns tell that the job keeps, and the name of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import parse_staged_name
from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.proof import log as incarnations
from penstock.proof.log import UNKNOWN_TOPIC

STRANGER = ""
"""Instead of a topic id: the row is of no topic that any job of the table has read."""


@dataclass(frozen=True)
class TopicIncarnations(incarnations.TopicIncarnations):
    """The partitions that a job has positions of, and to which of them the rows of a file belong."""

    @cached_property
    def ids_of(self) -> Mapping[str, frozenset[str]]:
        """Topic ids by topic."""
        topics = {each.topic for each in self.partitions}
        return {name: frozenset(each.topic_id for each in self.partitions if each.topic == name) for name in topics}

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


def find_incarnations(transactions: Mapping[str, int], job: str) -> TopicIncarnations:
    found = incarnations.find_incarnations(transactions, job)
    return TopicIncarnations(found.current, found.retired, found.fingerprints, found.others, found.rows_written)


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """The columns of a table that tell where a row came from."""

    partition: str
    offset: str
    topic: str | None = None
    topic_id: str | None = None
    job: str | None = None
    """Of a quarantine that jobs share."""

    @property
    def names(self) -> tuple[str, ...]:
        found = (self.partition, self.offset, self.topic, self.topic_id, self.job)
        return tuple(each for each in found if each is not None)


QUARANTINE_COLUMNS = OriginColumns("partition", "offset", "topic", "topic_id", "job")


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
