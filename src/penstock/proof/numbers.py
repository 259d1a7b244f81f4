"""The numbers of a table: totals, slices of its commit history and positions, against each other and against the log.

Pure, except for `read_log`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.provenance import commits_of
from penstock.lake.state import TOTAL_NAMES, DeltaPartition, Totals
from penstock.logs.log import Bounds, Log, LostTail, Partition
from penstock.plan import LostTailError
from penstock.proof.findings import Check, Unproven, Violation, ViolationKind, earliest, violation_at

_COUNTED = tuple(name for name in TOTAL_NAMES if name != "replayed")
"""A slice never replays: that total is moved by replay commits alone."""


@dataclass(frozen=True, slots=True)
class CommittedSlice:
    """Offsets `[start, end)` with their counts by the history of the table."""

    start: int
    end: int
    totals: Totals
    version: int | None = 0
    """None for several slices that are no longer in the history: only the sum of their counts is known."""

    @property
    def read_from(self) -> int:
        """The offsets below are a gap; where the gaps of expired slices lie is not known."""
        return self.start if self.version is None else self.start + self.totals.gap

    @property
    def gap_within(self) -> int:
        """How many offsets beyond `read_from` are gaps; which ones is unknown."""
        return self.totals.gap - (self.read_from - self.start)

    @property
    def unfiltered(self) -> bool:
        """Whether every record that the log has of it must be in the table or in quarantine."""
        totals = self.totals
        return not totals.filtered + totals.skipped + totals.deferred + totals.vanished + self.gap_within

    @property
    def full(self) -> bool:
        """Whether every offset from `read_from` on must be there: no hole, nothing left out."""
        return self.unfiltered and not self.totals.holes

    @property
    def held(self) -> int:
        """How many offsets are in table or quarantine; a replay moves them from one to the other."""
        return self.totals.written + self.totals.quarantined


States = Mapping[Partition, DeltaPartition]
Slices = Mapping[Partition, Sequence[CommittedSlice]]
"""Per partition the slices that history still has, in ascending order."""
_NumberViolation = tuple[Violation, str]


def check_totals(states: States) -> Check:
    """Every offset between origin and position is accounted for, and so is every record that was read (I3)."""
    read = sum(state.totals.read for state in states.values())
    detail = f"{read} records read in {len(states)} partitions, each accounted for"
    return _check("totals", states, _totals_fault, detail, {"read": read})


def check_slices(states: States, slices: Slices) -> Check:
    """The retained slices touch, end at the position, conserve, and add up with what came before them (I2, I3)."""
    count = sum(map(len, slices.values()))
    detail = f"{count} slices of the retained history touch and add up"
    return _check("slices", states, partial(_slices_fault, slices), detail, {"slices": count})


def _check(
    name: str,
    states: States,
    fault_of: Callable[[Partition, DeltaPartition], _NumberViolation | None],
    detail: str,
    facts: Mapping[str, int],
) -> Check:
    """Check an invariant of every partition; `detail` is the text if it holds."""
    faults = {partition: fault for partition, state in sorted(states.items()) if (fault := fault_of(partition, state))}
    wrong = "; ".join(f"{partition}: {text}" for partition, (_, text) in faults.items())
    first = earliest(violation for violation, _ in faults.values())
    return Check(name, wrong or detail, bool(faults), violation=first, facts=facts)


def _totals_fault(partition: Partition, state: DeltaPartition) -> _NumberViolation | None:
    totals, origin, position = state.totals, state.origin, state.position
    missing = totals.unaccounted
    if position is None or origin is None:
        text = "has no position or no origin"
    elif position - origin != totals.offsets:
        text = f"[{origin}, {position}) has {position - origin} offsets, {totals.offsets} counted"
    elif missing:
        text = f"{totals.read} read, {abs(missing)} {'unaccounted for' if missing > 0 else 'too many accounted for'}"
    elif not 0 <= totals.replayed <= totals.quarantined:
        text = f"{totals.replayed} replayed of {totals.quarantined} quarantined"
    else:
        return None
    return violation_at(partition, origin or 0, ViolationKind.NOT_COUNTED, max(position or 0, 0)), text


def _slices_fault(slices_of: Slices, partition: Partition, state: DeltaPartition) -> _NumberViolation | None:
    slices = slices_of.get(partition, ())
    if state.origin is None or state.position is None or not slices:
        return None
    if slices[0].start < state.origin:
        violation = violation_at(partition, slices[0].start, ViolationKind.BEFORE_ORIGIN)
        return violation, f"a slice starts before {state.origin}"
    # The next slice starts where one ends, and the position is where the last one ends.
    for piece, start in zip(slices, [*(after.start for after in slices[1:]), state.position], strict=True):
        if piece.end < start:
            text = f"no slice holds [{piece.end}, {start}), after version {piece.version}"
            return violation_at(partition, piece.end, ViolationKind.HOLE), text
        if piece.end > start:
            kind = ViolationKind.BEYOND_POSITION if piece is slices[-1] else ViolationKind.OVERLAP
            text = f"version {piece.version} holds up to {piece.end}, beyond {start}, where it should end"
            return violation_at(partition, start, kind), text
        if piece.totals.offsets != piece.end - piece.start or not piece.totals.conserved:
            text = f"the counts of version {piece.version} do not add up over [{piece.start}, {piece.end})"
            return violation_at(partition, piece.start, ViolationKind.NOT_COUNTED, piece.end), text
    older, before = _older_totals(state, slices), slices[0].start - state.origin
    negative = min(getattr(older, name) for name in _COUNTED) < 0
    if older.offsets != before or not older.conserved or negative or (not before and older != Totals()):
        text = f"the retained slices and the totals differ by {older}, with {before} offsets before the slices"
        return violation_at(partition, state.origin, ViolationKind.NOT_COUNTED, state.position), text
    return None


def _older_totals(state: DeltaPartition, slices: Sequence[CommittedSlice]) -> Totals:
    """What the totals hold beyond the retained slices."""
    retained = sum((piece.totals for piece in slices), Totals())
    return Totals(**{name: getattr(state.totals, name) - getattr(retained, name) for name in _COUNTED})


def spans(slices_of: Slices, partition: Partition, state: DeltaPartition) -> tuple[CommittedSlice, ...]:
    """All of `[origin, position)`: the retained slices, and one that stands for all before them.

    If slices break the invariant, one span stands for all of them.
    """
    if state.origin is None or state.position is None:
        return ()
    slices = () if _slices_fault(slices_of, partition, state) else slices_of.get(partition, ())
    end = slices[0].start if slices else state.position
    forgotten = CommittedSlice(state.origin, end, _older_totals(state, slices), None)
    return tuple(slices) if slices and end == state.origin else (forgotten, *slices)


UNKNOWN_TOPIC = "?"
"""Stands for a topic whose name is unknown: the positions hold only its id."""

_POSITION = re.compile(r"(?P<job>.+)/(?P<topic_id>[^/#]+)/(?P<number>\d+)(?:#(?P<what>[a-z_]+))?")
_TOPIC = re.compile(r"(?P<job>.+)/(?P<topic>[^/#]+)#id")


@dataclass(frozen=True)
class TopicIncarnations:
    """The partitions of current topics, and of earlier incarnations of them."""

    current: tuple[Partition, ...]
    retired: tuple[Partition, ...] = ()
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    """Per topic, the fingerprint of the id that the current positions belong to."""
    other_ids: frozenset[str] = frozenset()
    """Ids of topics that other jobs write to the same table."""
    rows_written: int = 0
    """Rows that all jobs together have put into the table, replays included."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.current + self.retired


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
    other_ids: set[str] = set()
    rows_written = 0
    for key, number in transactions.items():
        match = _POSITION.fullmatch(key)
        if match is None:
            continue
        if match["what"] is not None:
            rows_written += number if match["what"] in ("written", "replayed") else 0
        elif match["job"] != job:
            other_ids.add(match["topic_id"])
        else:
            fingerprint = topic_fingerprint(match["topic_id"])
            partition = Partition(topic_of.get(fingerprint, UNKNOWN_TOPIC), match["topic_id"], int(match["number"]))
            (current if fingerprint in current_of else retired).append(partition)
    places = tuple(sorted(current)), tuple(sorted(retired))
    return TopicIncarnations(*places, fingerprints, frozenset(other_ids), rows_written)


_NO_EPOCHS = "the log has no leader epochs: they would show whether it was cut and grew again since it was read"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Topic ids, bounds of partitions that the table has read, and partitions that it has not."""

    topic_ids: Mapping[str, str]
    bounds: Mapping[Partition, Bounds]
    new: Sequence[Partition] = ()
    lost: Sequence[LostTail] = ()
    """Records that were read and that the log, by its leader epochs, no longer has."""
    silent: frozenset[Partition] = frozenset()
    """Partitions whose leaders show no epoch to compare that of the last record with."""


def read_log(log: Log, incarnations: TopicIncarnations, states: States | None = None) -> LogFacts:
    """Read the bounds of partitions whose topics are still the ones that the table has read.

    With `states`, leader epochs show whether the log still has the last records that were read.
    """
    fingerprints, current = incarnations.fingerprints, set(incarnations.current)
    ids = log.topic_ids(fingerprints)
    same = {topic for topic, topic_id in ids.items() if topic_fingerprint(topic_id) == fingerprints[topic]}
    whole = len(same) == len(fingerprints)
    new = tuple(partition for partition in log.partitions() if partition not in current) if whole else ()
    facts = LogFacts(ids, log.bounds(place for place in incarnations.current if place.topic in same), new)
    marks = {place: mark for place in facts.bounds if states and (mark := states[place].mark) is not None}
    if not marks:
        return facts
    silent = frozenset(partition for partition, epoch in log.leader_epochs(marks).items() if epoch is None)
    lost = log.lost_tails({partition: [mark] for partition, mark in marks.items() if partition not in silent})
    return replace(facts, lost=tuple(lost), silent=silent)


def check_log(states: States, fingerprints: Mapping[str, int], log: LogFacts) -> Check:
    """The positions lie within the log, and the log is the one that they belong to (RULES P3).

    Leader epochs, where the table keeps one, reveal a log that was truncated and grew again past a position.
    """
    texts: list[str] = []
    violations: list[Violation] = []
    warnings = [f"{partition} is not started yet" for partition in log.new]
    lag = 0
    for topic, fingerprint in sorted(fingerprints.items()):
        if topic not in log.topic_ids:
            texts.append(f"topic {topic} does not exist any more")
        elif topic_fingerprint(log.topic_ids[topic]) != fingerprint:
            texts.append(f"topic {topic} was recreated: the positions are of the old one")
    for partition, bounds in sorted(log.bounds.items()):
        position = states[partition].position or 0
        lag += max(0, bounds.end - position)
        if position > bounds.end:
            texts.append(f"{partition}: position {position} is beyond the log's end {bounds.end}")
            violations.append(violation_at(partition, bounds.end, ViolationKind.BEYOND_POSITION, position))
        elif position < bounds.first:
            warnings.append(f"{partition}: a gap is ahead, the log no longer has [{position}, {bounds.first})")
    for lost in log.lost:
        cut = LostTailError(lost.partition, lost.mark, lost.end)
        texts.append(f"{cut.primary} ({cut.detail})")
        first = (states[lost.partition].origin or 0) if lost.end is None else lost.end
        violations.append(violation_at(lost.partition, first, ViolationKind.NOT_IN_LOG, lost.mark.end))
    compared = sum(states[partition].mark is not None for partition in log.bounds) - len(log.silent)
    silent = ", ".join(str(partition) for partition in sorted(log.silent))
    within = f"{len(log.bounds)} positions lie within the log, {lag} offsets before its end"
    return Check(
        "log",
        "; ".join(texts) or f"{within}; leader epochs compared in {compared}",
        bool(texts),
        violation=earliest(violations),
        unproven=[Unproven(f"{silent}: {_NO_EPOCHS}", "brokers that keep leader epochs")] if silent else [],
        warnings=warnings,
        facts={"lag_records": lag, "epochs_compared": compared},
    )
