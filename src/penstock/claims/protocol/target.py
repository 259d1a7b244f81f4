"""The target: which partitions each member should hold. Balanced, sticky, and the same for every reader. Pure.

It is part of the fold, computed at a record, so members do not race: each claims only what the target gives it and
releases what the target takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from operator import attrgetter

from penstock.claims.protocol.records import RequestedTopic
from penstock.claims.protocol.state import GroupState, MemberState
from penstock.logs.log import Partition

TOPICS_KEPT_MAX = 10_000
_PLACE = attrgetter("topic", "topic_id", "number")


def balance(group: GroupState) -> dict[str, tuple[Partition, ...]]:
    """The partitions of each present member: as few as possible move, and loads differ by one at most.

    Partitions are shared among the members that request them, those with the fewest such members first. One that an
    administrator freed goes to another member than before, if there is one, even above its share.
    """
    members = {client_id: member for client_id, member in sorted(group.members.items()) if member.present}
    target: dict[str, list[Partition]] = {client_id: [] for client_id in members}
    former = _former(group)
    for requesting, partitions in sorted(_classes(members).items(), key=lambda item: (len(item[0]), item)):
        loads = {client_id: len(target[client_id]) for client_id in requesting}
        for partition, client_id in _share(group, partitions, loads, former):
            target[client_id].append(partition)
    return {client_id: tuple(sorted(given, key=_PLACE)) for client_id, given in target.items() if given}


def _former(group: GroupState) -> dict[Partition, str]:
    """The member that had each partition in the last target, else the one that holds it."""
    former = {key: claim.owner.client_id for key, claim in group.claims.items() if claim.held and claim.owner}
    for client_id, partitions in group.target.items():
        if client_id in group.members and group.members[client_id].present:
            former |= dict.fromkeys(partitions, client_id)
    return former


def _classes(members: Mapping[str, MemberState]) -> dict[tuple[str, ...], list[Partition]]:
    """The partitions in a fixed order, by the members that request them. Most often all members request the same."""
    profiles: dict[tuple[RequestedTopic, ...], list[str]] = {}
    for client_id, member in members.items():
        profiles.setdefault(member.wants, []).append(client_id)
    if len(profiles) == 1:
        [(topics, client_ids)] = profiles.items()
        return {tuple(client_ids): [*_partitions(topics)]}
    requesting: dict[Partition, list[str]] = {}
    for topics, client_ids in profiles.items():
        for partition in _partitions(topics):
            requesting.setdefault(partition, []).extend(client_ids)
    classes: dict[tuple[str, ...], list[Partition]] = {}
    for partition in sorted(requesting, key=_PLACE):
        classes.setdefault(tuple(sorted(requesting[partition])), []).append(partition)
    return classes


def _partitions(topics: Iterable[RequestedTopic]) -> Iterator[Partition]:
    for topic in topics:
        yield from _partitions_of_topic(topic)


@lru_cache(maxsize=TOPICS_KEPT_MAX)
def _partitions_of_topic(topic: RequestedTopic) -> tuple[Partition, ...]:
    return tuple(
        Partition(topic.topic, topic.topic_id, number) for start, end in topic.spans for number in range(start, end)
    )


def _share(
    group: GroupState, partitions: Sequence[Partition], loads: Mapping[str, int], former: Mapping[Partition, str]
) -> Iterator[tuple[Partition, str]]:
    """The member that gets each partition of one class, given what members already have of other classes."""
    quota = _quotas(loads, Counter(former.get(partition) for partition in partitions), len(partitions))
    moving: list[Partition] = []
    freed: list[tuple[Partition, str]] = []
    for partition in partitions:
        keeper, freed_from = former.get(partition), group.claim(partition).freed_from
        if freed_from in quota and len(quota) > 1:
            freed.append((partition, freed_from))
        elif keeper is not None and quota.get(keeper, 0) > 0:
            quota[keeper] -= 1
            yield partition, keeper
        else:
            moving.append(partition)
    for partition, freed_from in freed:
        others = (client_id for client_id in quota if client_id != freed_from)
        taker = max(others, key=lambda client_id: (quota[client_id], -loads[client_id], client_id))
        quota[taker] -= 1
        yield partition, taker
    yield from zip(moving, (client_id for client_id, count in quota.items() for _ in range(count)), strict=False)


def _quotas(loads: Mapping[str, int], kept: Counter[str | None], count: int) -> dict[str, int]:
    """How many of `count` partitions each member gets on top of its load: always one more to the lowest.

    Among equals to the one that would have to give something up, so that nothing moves without need.
    """
    quota = dict.fromkeys(loads, 0)
    lowest = [(load, -kept[client_id], client_id) for client_id, load in loads.items()]
    heapify(lowest)
    for _ in range(count):
        load, surplus, client_id = lowest[0]
        quota[client_id] += 1
        heapreplace(lowest, (load + 1, surplus + 1, client_id))
    return quota
