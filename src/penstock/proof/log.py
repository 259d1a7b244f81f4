"""What the log says now, next to a table's positions: its topics, its bounds, and its leader epochs (RULES P3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Bounds, Log, LostTail, Partition
from penstock.plan import LostTailError
from penstock.proof.findings import Check, PartitionFacts, Unproven, Violation, ViolationKind, conclude, violation_at
from penstock.proof.incarnations import TopicIncarnations
from penstock.proof.invariants import States

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
    facts = LogFacts(ids, log.bounds(each for each in incarnations.current if each.topic in same), new)
    marks = {each: mark for each in facts.bounds if states and (mark := states[each].mark) is not None}
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
    return conclude(
        "log",
        detail,
        bool(texts),
        violations=violations,
        unproven=[Unproven(_NO_EPOCHS, "brokers that keep leader epochs", log.silent)] if log.silent else [],
        warnings=warnings,
        facts={"lag_records": lag, "epochs_compared": compared},
        partitions=log.bounds,
    )


def _identity_fault(topic: str, known: int, log: LogFacts) -> str:
    now = log.topic_ids.get(topic)
    if now is None:
        return f"topic {topic} is gone"
    return "" if topic_fingerprint(now) == known else f"topic {topic} was recreated: the positions are of the old one"


def partition_facts(states: States, log: LogFacts) -> tuple[PartitionFacts, ...]:
    bounds = {partition: (held.first, held.end) for partition, held in log.bounds.items()}
    return tuple(
        PartitionFacts(each, state.origin or 0, state.position or 0, state.totals, *bounds.get(each, (None, None)))
        for each, state in sorted(states.items())
    )
