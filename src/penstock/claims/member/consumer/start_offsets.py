"""Where a newly claimed partition is read from: its position in the coordination log, else the configured `start`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from penstock.claims.member.agent import Agent
from penstock.claims.member.session import EventListener
from penstock.claims.protocol.fold import further
from penstock.claims.protocol.records import Seeking
from penstock.claims.protocol.state import Claim
from penstock.errors import TransientError, UserError
from penstock.events import ReadingInterrupted
from penstock.job.spec import StartAt
from penstock.logs.log import Bounds, Partition, start_offset

REPEATS_MIN = 4
"""How often the broker must repeat its answer, each time to another client."""
LASTING_INTERVALS = 3
"""For how many heartbeat intervals, at least."""
LASTING_SECONDS_MIN = 3.0
IN_FLIGHT_MAX = 1000

Delivery = Literal["at_least_once", "at_most_once"]


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """How records reach the application; `in_flight_max` limits those of one partition after its position.

    `start` is where a group begins. UserError for an invalid value.
    """

    delivery: Delivery = "at_least_once"
    in_flight_max: int = IN_FLIGHT_MAX
    start: StartAt | Mapping[str, Mapping[int, int]] = "earliest"

    def __post_init__(self) -> None:
        if self.delivery not in get_args(Delivery):
            raise UserError(f"delivery is {self.delivery!r}, must be one of {', '.join(get_args(Delivery))}")
        if self.in_flight_max < 1:
            raise UserError(f"in_flight_max is {self.in_flight_max}, must be at least 1")

    @property
    def at_most_once(self) -> bool:
        return self.delivery == "at_most_once"

    @property
    def start_moves(self) -> bool:
        """Whether `start` means another offset at another time: it is recorded before the first record is read."""
        return self.start != "earliest"


class PositionOutOfRangeError(UserError):
    """The group's position is not in the log: records were deleted, or the topic lost its end."""

    def __init__(self, partition: Partition, position: int, bounds: Bounds) -> None:
        super().__init__(
            f"the position {position} of {partition} is outside the log, which holds [{bounds.first}, {bounds.end})",
            detail="records were deleted before they were processed"
            if position < bounds.first
            else "the log ends before it: it was truncated or restored",
            hint=f"choose where to go on: `penstock claims release {partition} --seek OFFSET`, then start again",
        )
        self.partition = partition
        self.position = position
        self.bounds = bounds


class Topics(Protocol):
    """What is asked of the log: its partitions, and what each holds now."""

    def partitions(self) -> tuple[Partition, ...]: ...

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _UnexpectedAnswer:
    """A position that is outside the log as the broker reports it; trusted once it has reported that for a while.

    A broker that has just restarted may briefly report an end that its log has long passed. To trust one such answer
    would stop the member.
    """

    token: int
    position: int
    asked_at: float
    repeats: int = 0


class StartOffsetFinder:
    """Finds where each claimed partition starts, and records it in the group where it must be fixed first."""

    def __init__(
        self, agent: Agent, log: Topics, reopen: Callable[[], Topics], options: DeliveryOptions, report: EventListener
    ) -> None:
        """`reopen` opens another client, to check an unexpected answer."""
        self._agent = agent
        self._log = log
        self._reopen = reopen
        self._options = options
        self._report = report
        self._lasting_seconds = max(LASTING_SECONDS_MIN, LASTING_INTERVALS * agent.member.heartbeat_seconds)
        self._unexpected: dict[Partition, _UnexpectedAnswer] = {}
        self._at_start: frozenset[Partition] = frozenset()
        self._begun: frozenset[str] | None = None

    def know(self, partitions: frozenset[Partition]) -> None:
        """The partitions that existed at start-up: any other is new, and read from its beginning (RULES P1)."""
        self._at_start = partitions

    def see_begun(self) -> None:
        """Note once, on joining, on which topics the group has positions: a partition without one is newer.

        As early as possible: later this member might take another's first steps for the past.
        """
        if self._begun is not None:
            return
        with suppress(TransientError), self._agent.looking() as participant:
            claims = participant.view.state.claims.items()
            self._begun = frozenset(partition.topic_id for partition, claim in claims if position_of(claim) is not None)

    def find(self, tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        """The start offsets of these claims; lost claims, and those whose position is being checked, are omitted."""
        self.see_begun()
        now = self._agent.now()
        with self._agent.looking() as participant:
            claims = {
                partition: participant.view.claim(partition) for partition in tokens if not self._waits(partition, now)
            }
        claims = {partition: claim for partition, claim in claims.items() if claim.token == tokens[partition]}
        bounds = self._bounds(claims)
        first_time = {partition: claim for partition, claim in claims.items() if position_of(claim) is None}
        first_starts = self._first_starts(first_time, bounds)
        for partition in [partition for partition in claims if partition not in first_time]:
            offset = self._offset(partition, claims[partition], bounds[partition])
            if offset is not None:
                first_starts[partition] = offset
        return first_starts

    def _waits(self, partition: Partition, now: float) -> bool:
        """Whether the position is being checked, and it is too early to ask again."""
        unexpected = self._unexpected.get(partition)
        return unexpected is not None and now - unexpected.asked_at < self._lasting_seconds / REPEATS_MIN

    def _bounds(self, claims: Mapping[Partition, Claim]) -> Mapping[Partition, Bounds]:
        if not any(partition in self._unexpected for partition in claims):
            return self._log.bounds(claims)
        # Another client asks the present leaders of the partitions.
        with closing(self._reopen()) as log:
            return log.bounds(claims)

    # without a position

    def _first_starts(
        self, claims: Mapping[Partition, Claim], bounds: Mapping[Partition, Bounds]
    ) -> dict[Partition, int]:
        starts = {partition: self._first_offset(partition, bounds[partition]) for partition in claims}
        recorded = [
            partition
            for partition in claims
            if self._options.at_most_once or (self._options.start_moves and self._started(partition))
        ]
        if self._options.start_moves:
            # Before ours: a member that sees a position of a topic takes a partition without one for a new one.
            self._start_others({partition.topic_id for partition in recorded})
        agreed = self._agree({partition: starts[partition] for partition in recorded}, claims)
        return {
            partition: offset
            for partition, offset in starts.items()
            if partition not in recorded or partition in agreed
        }

    def _started(self, partition: Partition) -> bool:
        """Whether `start` applies: the partition was there when the group came to its topic."""
        return partition in self._at_start and partition.topic_id not in (self._begun or ())

    def _first_offset(self, partition: Partition, bounds: Bounds) -> int:
        return start_offset(self._options.start if self._started(partition) else "earliest", partition, bounds)

    def _start_others(self, topics: set[str]) -> None:
        """Record where the unowned partitions of these topics start: their holders record the others."""
        with self._agent.looking() as participant:
            claims = {
                partition: participant.view.claim(partition)
                for partition in sorted(self._at_start)
                if partition.topic_id in topics
            }
        unowned = {key: claim for key, claim in claims.items() if not claim.held and position_of(claim) is None}
        bounds = self._log.bounds(unowned)
        starts = {partition: self._first_offset(partition, bounds[partition]) for partition in unowned}
        self._agree(starts, unowned)

    def _agree(self, starts: Mapping[Partition, int], claims: Mapping[Partition, Claim]) -> set[Partition]:
        """Record positions in the group; returns where they were accepted."""
        if not starts:
            return set()
        reason = "the first position of the group"
        about = [
            (partition, {"if_token": claims[partition].token, "position": offset, "reason": reason})
            for partition, offset in starts.items()
        ]
        verdicts = self._agent.send_all(Seeking, about)
        return {partition for partition, verdict in zip(starts, verdicts, strict=True) if verdict.refusal is None}

    # with a position

    def _offset(self, partition: Partition, claim: Claim, bounds: Bounds) -> int | None:
        position = position_of(claim) or 0
        if self._options.at_most_once and position > (claim.position or 0):
            # Claimed under this very token, and no stream is left that could do it: the next claim lists it as lost.
            self._agent.renounce(partition, "claimed messages were never processed")
            return None
        if bounds.first <= position <= bounds.end:
            self._unexpected.pop(partition, None)
            return position
        error = PositionOutOfRangeError(partition, position, bounds)
        now, unexpected = self._agent.now(), self._unexpected.get(partition)
        if unexpected is None or (unexpected.token, unexpected.position) != (claim.token, position):
            self._unexpected[partition] = _UnexpectedAnswer(claim.token, position, now)
            self._report(ReadingInterrupted(reason=error.primary, detail="the broker is asked again first"))
            return None
        unexpected.asked_at = now
        unexpected.repeats += 1
        if unexpected.repeats >= REPEATS_MIN:
            raise error
        return None


def position_of(claim: Claim) -> int | None:
    """What was claimed for processing at most once is never delivered again, not even to us."""
    return further(claim.position, claim.claimed)
