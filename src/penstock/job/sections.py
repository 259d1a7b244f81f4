"""The interfaces between the frame of a job file, a kind of table, and a log.

A kind and a log each bring a spec, whose fields are their keys, and complete it: they check what depends on several
keys, and compute the fields that no single key states. While it is completed a job may have faults; `reader.states`
tells which keys could be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from penstock.job.faults import Finding, KeyPath, kind_of, nearest, shown
from penstock.job.reader import Reader, keys_of
from penstock.job.spec import JobSpec, StartAt, TableSpec
from penstock.job.texts import TOPIC_NAME

OFFSET_MAX = 2**63 - 1

TableT = TypeVar("TableT", bound=TableSpec)
LogT = TypeVar("LogT")


class KindSection(Generic[TableT]):
    """What a job file may state about a table of one kind."""

    spec: type[TableT]
    """Its fields are the keys under `table.<kind>`, and the keys at the top that only this kind has."""
    phrase: str
    """What it is, for a file that names no kind: `one table`."""
    signs: tuple[str, ...] = ()
    """Top-level keys by which a file means this kind, if it forgot to name one."""
    many_types: str = ""
    """How records of many types are written with it, as a hint; empty: all its records are of one type."""
    takes_points: bool = False
    """Whether it takes points of series; else rows."""
    has_place: bool = False
    """Whether each of its rows is one record, and carries topic, partition and offset of it (`place`)."""

    @property
    def name(self) -> str:
        """The key under `table`."""
        return self.spec.kind

    def own_keys(self) -> list[str]:
        """The top-level keys that a file has only with this kind."""
        return [key.name for key in keys_of(cast("Any", self.spec)) if key.top]

    def complete(self, job: JobSpec[TableT], reader: Reader) -> JobSpec[TableT]:
        """Check what depends on the kind, and add the fields and columns of its rows."""
        raise NotImplementedError

    def clash(self, job: JobSpec, other: JobSpec, other_path: Path) -> Finding | None:
        """Why a job of this kind cannot run beside the other; paths of tables are not named, they may be secrets."""
        return None


class LogSection(Generic[LogT]):
    """What a job file may state about one log."""

    name: str
    """The key under `log`."""
    phrase: str
    """What it is, for a file that names no log: `a Kafka cluster`."""
    spec: type[LogT]
    shared: bool = False
    """Whether the processes of a job can share its partitions: a group that is named turns that on."""

    def complete(self, log: LogT, job: JobSpec, reader: Reader) -> LogT:
        """Check the section, and add what follows from the rest of the job."""
        raise NotImplementedError


AnyKindSection = KindSection[Any]
Kinds = Sequence[AnyKindSection]
AnyLogSection = LogSection[Any]
Logs = Sequence[AnyLogSection]


def complete_topics(log: Any, at: KeyPath, reader: Reader) -> Any:
    """Check the topics of a log, and name the topics of its start offsets."""
    has_topics, has_pattern = reader.has(*at, "topics"), reader.has(*at, "topic_pattern")
    if has_topics and has_pattern:
        reader.note((*at, "topic_pattern"), "contradicts topics: give one of both", on_key=True)
    if not has_topics and not has_pattern:
        reader.note((*at, "topics"), "required key is missing", "name the topics, or give a topic_pattern")
    if reader.states(*at, "topics") and not log.topics:
        reader.note((*at, "topics"), "names no topic")
    for index, topic in enumerate(log.topics):
        reader.parsed(TOPIC_NAME.read, topic, (*at, "topics", index))
        if topic in log.topics[:index]:
            reader.note((*at, "topics", index), f"{shown(topic)} is named twice")
    return replace(log, start=_start(log, (*at, "start"), at, reader))


def _start(log: Any, at: KeyPath, log_at: KeyPath, reader: Reader) -> StartAt | Mapping[str, Mapping[int, int]]:
    start = log.start
    if isinstance(start, str):
        return StartAt(start)
    if not start:
        reader.note(at, "names no partition", "write earliest, latest or {0: 1500}")
        return StartAt.EARLIEST
    nested = [isinstance(value, dict) for value in start.values()]
    if all(nested):
        for topic in start:
            _note_start_topic(topic, log, (*at, topic), reader)
        return {topic: _offsets(offsets, (*at, topic), reader) for topic, offsets in start.items()}
    if any(nested):
        reader.note(at, "mixes topics and partitions", "write {topic: {partition: offset}}")
        return StartAt.EARLIEST
    if reader.has(*log_at, "topic_pattern") or len(log.topics) > 1:
        reader.note(at, "several topics: say which", "write {topic: {partition: offset}}")
    return {topic: _offsets(start, at, reader) for topic in log.topics[:1]}


def _note_start_topic(topic: str, log: Any, at: KeyPath, reader: Reader) -> None:
    if log.topics and topic not in log.topics:
        reader.note(at, "is not among the topics", nearest(topic, log.topics), on_key=True)
    if log.topic_pattern is not None and not reads_topic(log, topic):
        reader.note(at, "does not match topic_pattern", on_key=True)


def _offsets(offsets: Mapping[str, object], at: KeyPath, reader: Reader) -> dict[int, int]:
    found: dict[int, int] = {}
    if not offsets:
        reader.note(at, "names no partition")
    for partition, offset in offsets.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", partition):
            reader.note((*at, partition), "is no partition number", on_key=True)
        if isinstance(offset, bool) or not isinstance(offset, int):
            reader.note((*at, partition), f"expected an offset, found {kind_of(offset)}")
        elif not 0 <= offset <= OFFSET_MAX:
            reader.note((*at, partition), "an offset is a whole number from 0 on")
        elif partition.isdecimal():
            found[int(partition)] = offset
    return found


def reads_topic(log: Any, topic: str) -> bool:
    """Whether a topic is among those of the log."""
    matches = log.topic_pattern is not None and re.fullmatch(log.topic_pattern, topic) is not None
    return matches or topic in log.topics
