"""Range claims: several members work on one hot partition, each on its own offsets, under one token (RULES M5)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.claims.member.agent import Agent
from penstock.claims.member.participant import Participant
from penstock.claims.protocol.records import (
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    GivingUpRange,
    OpeningRanges,
    ReturningRange,
)
from penstock.claims.protocol.state import Lease
from penstock.logs.log import Partition

ATTEMPTS_MAX = 5
"""A range whose owner died this often is given up instead of reassigned: it may be what kills them."""
OPEN_RANGES_MAX = 64
"""Of one partition: finished ranges after an unfinished one wait, and their work with them."""


@dataclass(frozen=True, slots=True)
class HeldRange:
    """The right to the offsets `[start, end)` of a partition; `token` is the owner's, `lease` our proof of it."""

    partition: Partition
    start: int
    end: int
    token: int
    lease: int


class RangeClient:
    """Opens partitions to others, and claims, finishes and returns ranges, for one member."""

    def __init__(self, agent: Agent, attempts_max: int | None = ATTEMPTS_MAX) -> None:
        """`attempts_max` None never gives a range up: a table would wait for that range for ever."""
        self._agent = agent
        self._attempts_max = attempts_max

    def shared(self) -> dict[Partition, int]:
        """The partitions of the group that any member shares now, with the token that opened them."""
        with self._agent.looking() as participant:
            return {
                partition: claim.token
                for partition, claim in participant.view.claims()
                if claim.held and claim.ranges is not None
            }

    def open(self, partition: Partition, token: int, start: int, at_most_once: bool = False) -> bool:
        """Share a partition that this member holds, from `start` on."""
        said = self._agent.say(OpeningRanges, partition, token=token, start=start, at_most_once=at_most_once)
        return said.refusal is None

    def close(self, partition: Partition, token: int) -> bool:
        """Stop sharing a partition; refused while ranges are being worked on."""
        return self._agent.say(ClosingRanges, partition, token=token).refusal is None

    def claim(self, partition: Partition, size: int, end: int | None = None) -> HeldRange | None:
        """The next range for this member: the lowest one whose owner is gone, or the next `size` offsets.

        `end` limits a new range, as the log's end does; without it a range may extend past the data.
        None if there is nothing to claim, or if another member was faster.
        """
        with self._agent.looking() as participant:
            wanted = _wanted(participant, partition, _Terms(size, end, self._attempts_max), self._agent.now())
        if wanted is None:
            return None
        said = self._agent.say(wanted.kind, partition, **wanted.content)
        if said.refusal is not None or wanted.kind is GivingUpRange:
            return None
        return HeldRange(partition, wanted.start, wanted.end, wanted.token, said.offset)

    def finish(self, held: HeldRange) -> bool:
        """The range is done; False if it was taken over meanwhile."""
        return self._say_of(FinishingRange, held)

    def give_back(self, held: HeldRange) -> bool:
        """Let others have the range at once."""
        return self._say_of(ReturningRange, held)

    def _say_of(self, kind: type[FinishingRange] | type[ReturningRange], held: HeldRange) -> bool:
        said = self._agent.say(kind, held.partition, token=held.token, start=held.start, lease=held.lease)
        return said.refusal is None


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: type[ClaimingRange] | type[GivingUpRange]
    start: int
    end: int
    token: int
    content: dict[str, object]


@dataclass(frozen=True, slots=True)
class _Terms:
    """How large a new range is, where the last one ends, and how often a range is tried."""

    size: int
    end: int | None
    attempts_max: int | None

    def too_often(self, attempts: int) -> bool:
        return self.attempts_max is not None and attempts >= self.attempts_max


def _wanted(participant: Participant, partition: Partition, terms: _Terms, now: float) -> _Wanted | None:
    view = participant.view
    claim = view.claim(partition)
    if not claim.held or claim.ranges is None or view.pauses():
        return None
    for lease in claim.ranges.leases:
        if _abandoned(lease, view.lease_suspected(partition, lease, now)):
            over = claim.ranges.at_most_once or terms.too_often(lease.attempts)
            return _again(lease, claim.token, GivingUpRange if over else ClaimingRange)
    start = claim.ranges.next
    stop = start + terms.size if terms.end is None else min(start + terms.size, terms.end)
    if stop <= start or len(claim.ranges.leases) >= OPEN_RANGES_MAX:
        return None
    content: dict[str, object] = {"token": claim.token, "start": start, "end": stop, "if_last": None}
    return _Wanted(ClaimingRange, start, stop, claim.token, content)


def _abandoned(lease: Lease, suspected: bool) -> bool:
    return not lease.done and (lease.owner is None or suspected)


def _again(lease: Lease, token: int, kind: type[ClaimingRange] | type[GivingUpRange]) -> _Wanted:
    content: dict[str, object] = {"token": token, "start": lease.start, "if_last": lease.last}
    if kind is ClaimingRange:
        content["end"] = lease.end
    return _Wanted(kind, lease.start, lease.end, token, content)
