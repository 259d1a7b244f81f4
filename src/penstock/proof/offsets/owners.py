"""To which partition a row belongs: by the columns that the job keeps and by the name of its file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import parse_staged_name
from penstock.job.expressions import KafkaField
from penstock.job.spec import JobSpec
from penstock.proof.offsets.incarnations import UNKNOWN_TOPIC, TopicIncarnations

_PASSED_ON = re.compile(r"`?(?P<name>\w+)`?(?:\s+(?:as\s+)?`?(?P<alias>\w+)`?)?", re.IGNORECASE)

STRANGER = ""
"""Instead of a topic id: the row is of no topic that any job of the table has read."""


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
    passed = {folded(name): folded(output) for name, output in _passed_names(job).items()}
    spelled = {folded(name): name for name in schema.names}
    kept: dict[str, str] = {}
    for name, expression in job.columns.items():
        column = spelled.get(passed.get(folded(name), ""))
        if isinstance(expression, KafkaField) and column is not None:
            kept.setdefault(expression.name, column)
    if "partition" not in kept or "offset" not in kept:
        return None
    return OriginColumns(kept["partition"], kept["offset"], kept.get("topic"))


def named_columns(job: JobSpec) -> OriginColumns | None:
    """Those of an export: the columns stand for every type, so their names are enough."""
    return kept_columns(job, pa.schema([(name, pa.null()) for name in job.columns]))


def _passed_names(job: JobSpec) -> Mapping[str, str]:
    """Computed columns that reach the table as they are, with the names that they have there."""
    own = {name: name for name in job.columns}
    if job.sql is None or not job.sql.select:
        return own
    passed: dict[str, str] = {}
    for text in job.sql.select:
        found = _PASSED_ON.fullmatch(text.strip())
        if text.strip() == "*":
            passed = {**own, **passed}
        elif found is not None:
            passed[found["name"]] = found["alias"] or found["name"]
    return passed


@dataclass(frozen=True, slots=True)
class Owners:
    """Finds the life of a topic that a row belongs to."""

    ids_of: Mapping[str, frozenset[str]]
    """Topic ids by topic."""
    other_ids: frozenset[str] = frozenset()
    """Topic ids that other jobs write to this table."""
    job: str | None = None
    """Rows that name another job are not looked at."""
    has_forgotten: bool = False
    """Whether there are incarnations of topics whose names are forgotten: any topic may have had one."""

    @staticmethod
    def of(incarnations: TopicIncarnations, job: str | None = None) -> Owners:
        ids: dict[str, set[str]] = {}
        for each in incarnations.partitions:
            ids.setdefault(each.topic, set()).add(each.topic_id)
        return Owners(
            ids_of={topic: frozenset(found) for topic, found in ids.items()},
            other_ids=frozenset(topic_id for found in incarnations.others.values() for topic_id in found),
            job=job,
            has_forgotten=UNKNOWN_TOPIC in ids,
        )

    @property
    def foreign_ids(self) -> frozenset[str]:
        """Topic ids whose rows are only other jobs'."""
        return self.other_ids.difference(*self.ids_of.values())

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
        if topic is None or self.has_forgotten:
            return None
        ids = self.ids_of.get(topic)
        if ids is None:
            return None if self.other_ids else STRANGER
        return next(iter(ids)) if len(ids) == 1 else None
