"""The partitions that a table has positions of, and what the log says of them now (RULES P3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.provenance import commits_of
from penstock.logs.log import Bounds, Log, LostTail, Partition
from penstock.plan import LostTailError
from penstock.proof.findings import Check, PartitionFacts, Unproven, Violation, ViolationKind, violation_at
from penstock.proof.invariants import CommittedSlice, Slices, States

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


_NO_EPOCHS = "the log tells no leader epochs: whether it was cut and grew again since it was read cannot be seen"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Topic ids, bounds of partitions that the table knows, and partitions that it does not."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[Partition, Bounds]
    new: Sequence[Partition] = ()
    lost: Sequence[LostTail] = ()
    """Records that were read and that the log, by its leader epochs, does not have any more."""
    silent: frozenset[Partition] = frozenset()
    """Partitions whose leaders tell no epoch to compare that of the last record with."""


def read_log(log: Log, incarnations: TopicIncarnations, states: States | None = None) -> LogFacts:
    """Ask the log about the partitions of topics that are still the ones which the table has read.

    With `states` also about the last records that were read, by the epochs of their leaders.
    """
    fingerprints, known = incarnations.fingerprints, set(incarnations.current)
    ids = log.topic_ids(fingerprints)
    same = {topic for topic, topic_id in ids.items() if topic_fingerprint(topic_id) == fingerprints[topic]}
    whole = len(same) == len(fingerprints)
    new = tuple(partition for partition in log.partitions() if partition not in known) if whole else ()
    facts = LogFacts(ids, log.bounds(place for place in incarnations.current if place.topic in same), new)
    marks = {place: mark for place in facts.bounds if states and (mark := states[place].mark) is not None}
    if not marks:
        return facts
    silent = frozenset(partition for partition, epoch in log.leader_epochs(marks).items() if epoch is None)
    lost = log.lost_tails({partition: [mark] for partition, mark in marks.items() if partition not in silent})
    return replace(facts, lost=tuple(lost), silent=silent)


def check_log(states: States, fingerprints: Mapping[str, int], log: LogFacts) -> Check:
    """The positions lie within the log, and the log is the one that they belong to.

    A log that was cut and grew again past a position is recognized by its leader epochs, where the table keeps one.
    """
    texts = [text for topic, known in sorted(fingerprints.items()) if (text := _identity_fault(topic, known, log))]
    violations: list[Violation] = []
    warnings = [f"{partition} is not started yet" for partition in log.new]
    lag = 0
    for partition, state in sorted(states.items()):
        bounds = log.bounds.get(partition)
        if bounds is None or state.position is None:
            continue
        lag += max(0, bounds.end - state.position)
        if state.position > bounds.end:
            texts.append(f"{partition}: position {state.position} is beyond the log's end {bounds.end}")
            violations.append(violation_at(partition, bounds.end, ViolationKind.BEYOND_POSITION, state.position))
        elif state.position < bounds.first:
            warnings.append(f"{partition}: a gap is ahead, the log no longer has [{state.position}, {bounds.first})")
    for lost in log.lost:
        cut = LostTailError(lost.partition, lost.mark, lost.end)
        texts.append(f"{cut.primary} ({cut.detail})")
        first = (states[lost.partition].origin or 0) if lost.end is None else lost.end
        violations.append(violation_at(lost.partition, first, ViolationKind.NOT_IN_LOG, lost.mark.end))
    compared = sum(states[partition].mark is not None for partition in log.bounds) - len(log.silent)
    detail = "; ".join(texts) or (
        f"{len(log.bounds)} positions lie within the log, {lag} offsets before its end; "
        f"leader epochs compared in {compared}"
    )
    return Check(
        "log",
        detail,
        bool(texts),
        violations=violations,
        unproven=[Unproven(_NO_EPOCHS, "brokers that keep leader epochs", log.silent)] if log.silent else [],
        warnings=warnings,
        facts={"lag_records": lag, "epochs_compared": compared},
        checked=log.bounds,
    )


def _identity_fault(topic: str, known: int, log: LogFacts) -> str:
    now = log.topic_ids.get(topic)
    if now is None:
        return f"topic {topic} is gone"
    return "" if topic_fingerprint(now) == known else f"topic {topic} was recreated: the positions are of the old one"


def partition_facts(states: States, log: LogFacts) -> tuple[PartitionFacts, ...]:
    bounds = {partition: (held.first, held.end) for partition, held in log.bounds.items()}
    return tuple(
        PartitionFacts(place, state.origin or 0, state.position or 0, state.totals, *bounds.get(place, (None, None)))
        for place, state in sorted(states.items())
    )
