"""The interfaces between the frame of a job file, a kind of table, and a log.

A kind and a log each bring a spec, whose fields are their keys, and complete it: they check what depends on several
keys, and compute the fields that no single key states. While it is completed a job may have faults; `reader.states`
shows which keys could be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from penstock.job.faults import KeyPath, shown
from penstock.job.reader import SpecReader, keys_of
from penstock.job.spec import DecodeFormat, JobSpec, StartAt, TableSpec
from penstock.job.texts import TOPIC_NAME
from penstock.job.values import LOST, count

TableT = TypeVar("TableT", bound=TableSpec)
LogT = TypeVar("LogT")


class KindSection(Generic[TableT]):
    """What a job file may state about a table of one kind."""

    spec: type[TableT]
    """Its fields are the keys under `table.<kind>`, and the keys at the top that only this kind has."""
    decoders: tuple[DecodeFormat, ...] = ("json", "raw", "protobuf")
    unused: tuple[str, ...] = ("place",)
    """Top-level keys that have no meaning for it."""

    @property
    def name(self) -> str:
        """The key under `table`."""
        return self.spec.kind

    def own_keys(self) -> list[str]:
        """The top-level keys that a file has only with this kind."""
        return [key.name for key in keys_of(cast("Any", self.spec)) if key.top]

    def complete(self, job: JobSpec[TableT], reader: SpecReader) -> JobSpec[TableT]:
        """Check what depends on the kind, and add the fields and columns of its rows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LogSection(Generic[LogT]):
    """What a job file may state about one log."""

    name: str
    """The key under `log`."""
    spec: type[LogT]
    complete: Callable[[LogT, JobSpec, SpecReader], LogT]
    """Checks the section, and adds what follows from the rest of the job."""
    shared: bool = False
    """Whether the processes of a job can share its partitions: a group that is named turns that on."""


AnyKindSection = KindSection[Any]
Kinds = Sequence[AnyKindSection]
AnyLogSection = LogSection[Any]
Logs = Sequence[AnyLogSection]


def complete_topics(log: Any, at: KeyPath, reader: SpecReader) -> Any:
    """Check the topics of a log, and name the topics of its start offsets."""
    has_topics, has_pattern = reader.has(*at, "topics"), reader.has(*at, "topic_pattern")
    if has_topics and has_pattern:
        reader.note((*at, "topic_pattern"), "contradicts topics: state one of them", on_key=True)
    if not has_topics and not has_pattern:
        reader.note((*at, "topics"), "required key is missing", "name the topics, or give a topic_pattern")
    if reader.states(*at, "topics") and not log.topics:
        reader.note((*at, "topics"), "names no topic")
    for index, topic in enumerate(log.topics):
        reader.parsed(TOPIC_NAME.read, topic, (*at, "topics", index))
        if topic in log.topics[:index]:
            reader.note((*at, "topics", index), f"{shown(topic)} is named twice")
    return replace(log, start=_start(log, (*at, "start"), at, reader))


def _start(log: Any, at: KeyPath, log_at: KeyPath, reader: SpecReader) -> StartAt | Mapping[str, Mapping[int, int]]:
    """Where to start; offsets under the name of the one topic."""
    if not isinstance(log.start, dict):
        start: StartAt = log.start
        return start
    if not log.start:
        reader.note(at, "names no partition", "write earliest, latest or {0: 1500}")
    if reader.has(*log_at, "topic_pattern") or len(log.topics) > 1:
        reader.note(at, "offsets are for a job that reads one topic", "write earliest or latest")
    offsets: dict[int, int] = {}
    for partition, offset in log.start.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", partition):
            reader.note((*at, partition), "is not a partition number", on_key=True)
        elif reader.parsed(count, offset, (*at, partition)) is not LOST:
            offsets[int(partition)] = count(offset)
    return dict.fromkeys(log.topics[:1], offsets)
