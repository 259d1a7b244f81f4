"""The generation of a log: it rises when a topic is recreated, or gets partitions (RULES K2).

Offsets order the records of a key as long as all of them are in one partition. When a topic gets partitions, keys move
to other partitions; every record before that moment is older than every record after it. So a generation begins at an
offset of each partition, and a started partition begins one if its topic already has started partitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from penstock.lake.delta.keys import position_key, topic_key
from penstock.lake.proposal import Proposal, ProposalPart, StartPart
from penstock.logs.log import Bounds, Partition

Transactions = Mapping[str, int]
BoundsOf = Callable[[Iterable[Partition]], Mapping[Partition, Bounds]]

_AT = re.compile(r"#generation@(\d+)")


def generation_key(job: str, partition: Partition, offset: int) -> str:
    """The key of the generation that begins at an offset of a partition."""
    return f"{position_key(job, partition)}#generation@{offset}"


def newest_key(job: str, topic: str) -> str:
    """The key of the newest generation of a topic."""
    return f"{job}/{topic}#generation"


def generations_of(numbers: Transactions, job: str, partition: Partition) -> tuple[tuple[int, int], ...]:
    """Pairs of a first offset and its generation, ascending."""
    head = position_key(job, partition)
    matches = ((_AT.fullmatch(key, len(head)), number) for key, number in numbers.items() if key.startswith(f"{head}#"))
    return tuple(sorted((int(match[1]), number) for match, number in matches if match is not None))


def with_generations(
    proposal: Proposal, accepted: Iterable[ProposalPart], numbers: Transactions, bounds_of: BoundsOf
) -> Proposal:
    """The proposal with the generations that its accepted starts begin; `numbers`: of the version it is based on."""
    starts = [part for part in accepted if isinstance(part, StartPart)]
    extra: dict[str, int] = {}
    for topic in sorted({part.partition.topic for part in starts}):
        fresh = [part for part in starts if part.partition.topic == topic]
        started_before = numbers.get(topic_key(proposal.job, topic)) is not None
        number = numbers.get(newest_key(proposal.job, topic), 0) + int(started_before)
        extra[newest_key(proposal.job, topic)] = number
        extra |= {generation_key(proposal.job, part.partition, part.offset): number for part in fresh}
        if started_before:
            others = _others(numbers, proposal.job, fresh)
            extra |= {
                generation_key(proposal.job, partition, bounds.end): number
                for partition, bounds in bounds_of(others).items()
            }
    return replace(proposal, extra={**proposal.extra, **extra}) if extra else proposal


def _others(numbers: Transactions, job: str, starts: list[StartPart]) -> list[Partition]:
    """The partitions of the same topics that were started before."""
    started = set()
    for topic, topic_id in {(part.partition.topic, part.partition.topic_id) for part in starts}:
        head = f"{job}/{topic_id}/"
        names = (key.removeprefix(head) for key in numbers if key.startswith(head))
        started |= {Partition(topic, topic_id, int(name)) for name in names if name.isdecimal()}
    return sorted(started - {part.partition for part in starts})
