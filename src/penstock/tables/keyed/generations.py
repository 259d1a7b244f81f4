"""The generation of a log: it rises when a topic is recreated, or gets partitions (RULES K2).

Records of one key have the order of their offsets as long as all of them are in one partition. With new partitions keys
move; what is in the old partitions by then is older than anything in the new ones. So a generation begins at an offset
of each partition, and every start of partitions of a topic that is known already begins one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from penstock.lake.delta.keys import position_key, topic_key
from penstock.lake.proposal import Part, Proposal, StartPart
from penstock.logs.log import Bounds, Partition

Transactions = Mapping[str, int]
BoundsOf = Callable[[Iterable[Partition]], Mapping[Partition, Bounds]]

_AT = re.compile(r"#generation@(\d+)")


def generation_key(job: str, partition: Partition, offset: int) -> str:
    """Names the generation that begins at an offset of a partition."""
    return f"{position_key(job, partition)}#generation@{offset}"


def newest_key(job: str, topic: str) -> str:
    """Names the newest generation of a topic."""
    return f"{job}/{topic}#generation"


def generations_of(known: Transactions, job: str, partition: Partition) -> tuple[tuple[int, int], ...]:
    """From which offset on a partition is in which generation, ascending."""
    head = position_key(job, partition)
    found = ((_AT.fullmatch(key, len(head)), number) for key, number in known.items() if key.startswith(f"{head}#"))
    return tuple(sorted((int(match[1]), number) for match, number in found if match is not None))


def with_generations(
    proposal: Proposal, accepted: Iterable[Part], known: Transactions, bounds_of: BoundsOf
) -> Proposal:
    """The proposal with the generations that its accepted starts begin, as of a version with these numbers."""
    starts = [part for part in accepted if isinstance(part, StartPart)]
    extra: dict[str, int] = {}
    for topic in sorted({part.partition.topic for part in starts}):
        mine = [part for part in starts if part.partition.topic == topic]
        started_before = known.get(topic_key(proposal.job, topic)) is not None
        number = known.get(newest_key(proposal.job, topic), 0) + int(started_before)
        extra[newest_key(proposal.job, topic)] = number
        extra |= {generation_key(proposal.job, part.partition, part.offset): number for part in mine}
        if started_before:
            others = _others(known, proposal.job, mine)
            extra |= {generation_key(proposal.job, each, held.end): number for each, held in bounds_of(others).items()}
    return replace(proposal, extra={**proposal.extra, **extra}) if extra else proposal


def _others(known: Transactions, job: str, starts: list[StartPart]) -> list[Partition]:
    """The partitions of the same topics that were started before."""
    fresh = {part.partition for part in starts}
    found = set()
    for part in starts:
        topic, topic_id = part.partition.topic, part.partition.topic_id
        head = f"{job}/{topic_id}/"
        numbers = (key.removeprefix(head) for key in known if key.startswith(head))
        found |= {Partition(topic, topic_id, int(number)) for number in numbers if number.isdecimal()}
    return sorted(found - fresh)
