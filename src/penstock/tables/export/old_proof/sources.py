"""What a verification is asked for, and what it reads: files, quarantine and log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.storage import Storage
from penstock.logs.log import Bounds, Log, Partition
from penstock.tables.export.old_proof.invariants import LogFacts, Span, States
from penstock.tables.export.old_proof.offsets.owners import OriginColumns, TopicIncarnations
from penstock.tables.export.old_proof.offsets.table import DataFile
from penstock.tables.export.old_proof.offsets.verdicts import Leave


@dataclass(frozen=True, slots=True)
class TypeFiles:
    """The files of one type, or of a table that has only one."""

    files: Sequence[DataFile]
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Where a type's own table may be ahead of what is checked: the offsets from which on its rows do not count yet."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the offsets are read from."""

    storage: Storage
    types: Sequence[TypeFiles]
    quarantine_storage: Storage
    quarantine_files: Sequence[DataFile]
    columns: OriginColumns | None
    """None where the table does not keep partition and offset."""
    log: Log | None = None
    log_bounds: Mapping[Partition, Bounds] = field(default_factory=dict)
    """Of the partitions whose records shall be read; none in a shallow verification."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: the offsets that must be there, whose rows are among them, and which may be there twice."""

    spans: Mapping[Partition, tuple[Span, ...]]
    incarnations: TopicIncarnations
    leaves: Mapping[Partition, Leave] = field(default_factory=dict)
    replayed: frozenset[Partition] = frozenset()
    """Partitions of which records were taken out of quarantine again."""
    filters_only_tombstones: bool = False
    """Whether every record with a value is in the table or in quarantine."""


def read_log(log: Log, incarnations: TopicIncarnations) -> LogFacts:
    """Ask the log about the partitions of topics that are still the ones which the table has read."""
    ids = log.topic_ids(incarnations.fingerprints)
    known = set(incarnations.current)
    same = {topic for topic, topic_id in ids.items() if topic_fingerprint(topic_id) == incarnations.fingerprints[topic]}
    whole = len(same) == len(incarnations.fingerprints)
    new = [each for each in log.partitions() if each not in known] if whole else []
    return LogFacts(ids, log.bounds(each for each in incarnations.current if each.topic in same), tuple(new))


def with_epochs(facts: LogFacts, states: States, log: Log) -> LogFacts:
    """What the log says of the last records that were read, by the epochs of their leaders (RULES P3)."""
    marks = {each: mark for each in facts.bounds if (mark := states[each].mark) is not None}
    if not marks:
        return facts
    silent = frozenset(each for each, epoch in log.leader_epochs(marks).items() if epoch is None)
    lost = log.lost_tails({each: [mark] for each, mark in marks.items() if each not in silent})
    return replace(facts, lost=tuple(lost), silent=silent)
