"""Where a newly claimed partition is read from: its position in the coordination log, else where `start` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.claims.member.agent import Agent
from penstock.claims.protocol.records import Seeking
from penstock.claims.protocol.state import Claim
from penstock.errors import UserError
from penstock.job.spec import StartAt
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Bounds, Partition, start_offset

OutOfRange = Literal["fail", "earliest"]


class PositionOutOfRangeError(UserError):
    """The group's position is not in the log: records were deleted, or the topic lost its end."""

    def __init__(self, partition: Partition, position: int, bounds: Bounds) -> None:
        super().__init__(
            f"the position {position} of {partition} is outside the log, which holds [{bounds.first}, {bounds.end})",
            detail="records were deleted before they were processed"
            if position < bounds.first
            else "the log ends before it: it was truncated or restored",
            hint="set out_of_range to earliest to continue with the oldest record in the log",
        )
        self.partition = partition
        self.position = position
        self.bounds = bounds


@dataclass(frozen=True, slots=True)
class StartOffset:
    """An offset; `sought` is the reason if it must be recorded in the group before a record is delivered."""

    offset: int
    sought: str = ""


class StartOffsets:
    """Finds where each claimed partition starts, and records it in the group where it must be fixed first."""

    def __init__(self, agent: Agent, log: KafkaTopics, out_of_range: OutOfRange, at_most_once: bool) -> None:
        self._agent = agent
        self._log = log
        self._out_of_range = out_of_range
        self._at_most_once = at_most_once
        self._known: frozenset[Partition] = frozenset()

    def know(self, partitions: frozenset[Partition]) -> None:
        """The partitions that existed at start-up: any other is new, and read from its beginning (RULES P1)."""
        self._known = partitions

    def find(self, tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        """The start offsets of these claims; lost claims are left out."""
        with self._agent.looking() as participant:
            claims = {each: participant.view.claim(each) for each in tokens}
        claims = {each: claim for each, claim in claims.items() if claim.token == tokens[each]}
        bounds = self._log.bounds(claims)
        found = {each: self._start_offset(each, claim, bounds[each]) for each, claim in claims.items()}
        agreed = self._agree({each: start for each, start in found.items() if start.sought}, tokens)
        return {each: start.offset for each, start in found.items() if not start.sought or each in agreed}

    def _start_offset(self, partition: Partition, claim: Claim, bounds: Bounds) -> StartOffset:
        position = _position(claim)
        if position is None:
            start = self._log.spec.start if partition in self._known else StartAt.EARLIEST
            offset = start_offset(start, partition, bounds)
            # `latest` must not move if we crash; and losses are counted from the position.
            fixed = self._at_most_once or start is not StartAt.EARLIEST
            return StartOffset(offset, "the first position of the group" if fixed else "")
        if bounds.first <= position <= bounds.end:
            return StartOffset(position)
        if self._out_of_range == "fail":
            raise PositionOutOfRangeError(partition, position, bounds)
        return StartOffset(bounds.first, f"the position {position} is not in the log")

    def _agree(self, sought: Mapping[Partition, StartOffset], tokens: Mapping[Partition, int]) -> frozenset[Partition]:
        if not sought:
            return frozenset()
        about = [
            (each, {"if_token": tokens[each], "position": start.offset, "reason": start.sought})
            for each, start in sought.items()
        ]
        verdicts = self._agent.say_each(Seeking, about)
        return frozenset(each for each, verdict in zip(sought, verdicts, strict=True) if verdict.refusal is None)


def _position(claim: Claim) -> int | None:
    """What was claimed for processing at most once is never delivered again, not even to us."""
    if claim.claimed is None or claim.position is None:
        return claim.claimed if claim.position is None else claim.position
    return max(claim.position, claim.claimed)
