"""What cannot be right under `log`, whichever log it is: which one it is, its topics and its start offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.job.document import Document
from penstock.job.faults import Finding, KeyPath, kind_of, nearest, shown
from penstock.job.sections.log_section import Logs
from penstock.job.sections.models import TopicsSection
from penstock.job.spec import StartAt

GROUP_CHARACTERS_MAX = 249
OFFSET_MAX = 2**63 - 1

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")


def log_findings(sections: Mapping[str, TopicsSection], document: Document, logs: Logs) -> Iterator[Finding]:
    """Whether the file names one log, and what is wrong with it."""
    stated = [each.name for each in logs if document.has("log", each.name)]
    for name in stated[1:]:
        yield Finding(("log", name), f"contradicts log.{stated[0]}: give one of both", on_key=True)
    if not stated:
        hint = ", ".join(f"{each.name} is {each.phrase}" for each in logs)
        yield Finding(("log", logs[0].name), "required key is missing", hint)
    for each in logs:
        section = sections.get(each.name)
        if section is not None:
            at = ("log", each.name)
            yield from each.findings(section, document)
            yield from _topic_findings(section, document, at)
            yield from _start_findings(section, document, at)


def start_offsets(section: TopicsSection) -> StartAt | Mapping[str, Mapping[int, int]] | None:
    """`start` with its short form spelled out; it has been checked before."""
    start = section.start
    if not isinstance(start, dict):
        return start
    if all(isinstance(value, dict) for value in start.values()):
        return {topic: {int(part): offset for part, offset in offsets.items()} for topic, offsets in start.items()}
    only = (section.topics or [""])[0]
    return {only: {int(part): offset for part, offset in start.items()}}


def reads_topic(section: TopicsSection, topic: str) -> bool:
    """Whether a topic is among those of the log."""
    pattern = _compiled(section.topic_pattern) if section.topic_pattern is not None else None
    return topic in (section.topics or ()) or (pattern is not None and pattern.fullmatch(topic) is not None)


def _topic_findings(section: TopicsSection, document: Document, log_at: KeyPath) -> Iterator[Finding]:
    has_topics, has_pattern = (document.has(*log_at, "topics"), document.has(*log_at, "topic_pattern"))
    if has_topics and has_pattern:
        yield Finding((*log_at, "topic_pattern"), "contradicts topics: give one of both", on_key=True)
    if not has_topics and not has_pattern:
        yield Finding((*log_at, "topics"), "required key is missing", "name the topics, or give a topic_pattern")
    if section.topics is not None and not section.topics:
        yield Finding((*log_at, "topics"), "names no topic")
    for index, topic in enumerate(section.topics or ()):
        at = (*log_at, "topics", index)
        yield from topic_name_findings(topic, at)
        if topic in (section.topics or ())[:index]:
            yield Finding(at, f"{shown(topic)} is named twice")
    if section.topic_pattern is not None and _compiled(section.topic_pattern) is None:
        yield Finding((*log_at, "topic_pattern"), f"{shown(section.topic_pattern)} is no regular expression")
    if section.group is not None and len(section.group) > GROUP_CHARACTERS_MAX:
        yield Finding((*log_at, "group"), f"longer than {GROUP_CHARACTERS_MAX} characters")


def topic_name_findings(topic: str, at: KeyPath) -> Iterator[Finding]:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        yield Finding(at, f"{shown(topic)} is no topic name", "letters, digits, . _ - up to 249")


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _start_findings(section: TopicsSection, document: Document, log_at: KeyPath) -> Iterator[Finding]:
    at = (*log_at, "start")
    if not isinstance(section.start, dict):
        return
    if not section.start:
        yield Finding(at, "names no partition", "write earliest, latest or {0: 1500}")
        return
    nested = [isinstance(value, dict) for value in section.start.values()]
    if all(nested):
        for topic, offsets in section.start.items():
            yield from _start_topic_findings(topic, section, (*at, topic))
            yield from _offset_findings(offsets, (*at, topic))
    elif any(nested):
        yield Finding(at, "mixes topics and partitions", "write {topic: {partition: offset}}")
    else:
        if document.has(*log_at, "topic_pattern") or len(section.topics or [""]) != 1:
            yield Finding(at, "several topics: say which", "write {topic: {partition: offset}}")
        yield from _offset_findings(section.start, at)


def _start_topic_findings(topic: str, section: TopicsSection, at: KeyPath) -> Iterator[Finding]:
    if section.topics and topic not in section.topics:
        yield Finding(at, "is not among the topics", nearest(topic, section.topics), on_key=True)
    pattern = _compiled(section.topic_pattern) if section.topic_pattern is not None else None
    if pattern is not None and not pattern.fullmatch(topic):
        yield Finding(at, "does not match topic_pattern", on_key=True)


def _offset_findings(offsets: Mapping[str, object], at: KeyPath) -> Iterator[Finding]:
    if not offsets:
        yield Finding(at, "names no partition")
    for partition, offset in offsets.items():
        if not _PARTITION.fullmatch(partition):
            yield Finding((*at, partition), "is no partition number", on_key=True)
        if isinstance(offset, bool) or not isinstance(offset, int):
            yield Finding((*at, partition), f"expected an offset, found {kind_of(offset)}")
        elif not 0 <= offset <= OFFSET_MAX:
            yield Finding((*at, partition), "an offset is a whole number from 0 on")
