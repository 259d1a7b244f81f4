"""What the log says next to a table: its topics, its bounds, and the last records that were read."""

from __future__ import annotations

from dataclasses import replace

from penstock.lake.delta.keys import topic_fingerprint
from penstock.logs.log import Log
from penstock.proof.invariants import LogFacts, States
from penstock.proof.offsets.incarnations import TopicIncarnations


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
