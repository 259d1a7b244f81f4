"""Range claims: several members work on one hot partition, each on its own offsets, under one token (RULES M5)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.claims.member.agent import Agent
from penstock.claims.protocol import records
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
        said = self._agent.say(records.OpeningRanges, partition, token=token, start=start, at_most_once=at_most_once)
        return said.refusal is None

    def close(self, partition: Partition, token: int) -> bool:
        """Stop sharing a partition; refused while ranges are being worked on."""
        return self._agent.say(records.ClosingRanges, partition, token=token).refusal is None

    def claim(self, partition: Partition, size: int, end: int | None = None) -> HeldRange | None:
        """The next range for this member: the lowest one whose owner is gone, or the next `size` offsets.

        `end` limits a new range, as the log's end does; without it a range may extend past the data.
        None if there is nothing to claim, or if another member was faster.
        """
        with self._agent.looking() as participant:
            claim = participant.view.claim(partition)
            ranges = claim.ranges if claim.held and not participant.view.state.pauses else None
        if ranges is None:
            return None
        lease = next((each for each in ranges.leases if not each.done and each.owner is None), None)
        if lease is None:
            start, if_lease = ranges.next, None
            stop = start + size if end is None else min(start + size, end)
            if stop <= start or len(ranges.leases) >= OPEN_RANGES_MAX:
                return None
        elif ranges.at_most_once or (self._attempts_max is not None and lease.attempts >= self._attempts_max):
            self._agent.say(
                records.GivingUpRange, partition, token=claim.token, start=lease.start, if_lease=lease.lease
            )
            return None
        else:
            start, stop, if_lease = lease.start, lease.end, lease.lease
        said = self._agent.say(
            records.ClaimingRange, partition, token=claim.token, start=start, end=stop, if_lease=if_lease
        )
        return HeldRange(partition, start, stop, claim.token, said.offset) if said.refusal is None else None

    def finish(self, held: HeldRange) -> bool:
        """The range is done; False if it was taken over meanwhile."""
        return self._say_of(records.FinishingRange, held)

    def give_back(self, held: HeldRange) -> bool:
        """Let others have the range at once."""
        return self._say_of(records.ReturningRange, held)

    def _say_of(self, kind: type[records.FinishingRange] | type[records.ReturningRange], held: HeldRange) -> bool:
        said = self._agent.say(kind, held.partition, token=held.token, start=held.start, lease=held.lease)
        return said.refusal is None
