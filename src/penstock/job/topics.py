"""Checks of the topics of a log, whichever log it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from penstock.job.faults import KeyPath, shown
from penstock.job.reader import SpecReader
from penstock.job.spec import LogSpec, StartAt
from penstock.job.texts import TOPIC_NAME
from penstock.job.values import LOST, count

LogT = TypeVar("LogT", bound=LogSpec)


def complete_topics(log: LogT, reader: SpecReader) -> LogT:
    """Check the topics of a log, and name the topics of its start offsets."""
    at: KeyPath = ("log", log.kind)
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
    return replace(log, start=_start(log, at, reader))


def _start(log: LogSpec, log_at: KeyPath, reader: SpecReader) -> StartAt | Mapping[str, Mapping[int, int]]:
    """Where to start; offsets under the name of the one topic."""
    if not isinstance(log.start, dict):
        return log.start
    at: KeyPath = (*log_at, "start")
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
