"""The ownership handshake: raise the token over the table, and commit where a partition begins.

Both commits have no rows and precede planning: only after them is the table's position final (RULES C5, P1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.claims import Claims
from penstock.environment import new_batch_id
from penstock.errors import UserError
from penstock.events import Listener, PartitionStarted, PositionCorrected
from penstock.failpoints import AtStep
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.proposal import AcceptedPart, FencePart, Proposal, ProposalPart, StartPart
from penstock.lake.state import DeltaState
from penstock.logs.log import Bounds, Log, Partition

if TYPE_CHECKING:
    from penstock.tables.kind import Table

ROUNDS_MAX = 2
"""A partition that another process started first is fenced in the second round."""

Tokens: TypeAlias = Mapping[Partition, int]
"""Claimed partitions with the tokens of their claims."""
LogBounds: TypeAlias = Mapping[Partition, Bounds]


class TopicRecreatedError(UserError):
    """The topic was deleted and created again; the table's positions belong to the old one."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic} was recreated",
            detail="the table's positions belong to the earlier topic of this name",
            hint="set `on.recreated: restart` to read the new topic from its beginning, or write to a new table; "
            "an export needs a new job with a `cluster` of its own",
        )
        self.topic = topic


@dataclass(slots=True)
class Starter:
    """Makes a process the owner of its partitions, as the table sees it."""

    job: JobSpec
    log: Log
    table: Table[Any]
    claims: Claims
    listener: Listener
    at_step: AtStep
    nothing_matched: bool = False
    """The pattern of the job once matched no topic: topics that appear later are read from their beginning."""

    def begin(
        self, tokens: Tokens, partitions: Sequence[Partition], bounds: LogBounds
    ) -> tuple[dict[Partition, int], DeltaState]:
        """The partitions that this process owns by the table's state, with their tokens, and that state.

        `partitions` are all of the job, also those of other processes.
        """
        state = self.table.state(partitions)
        for _ in range(ROUNDS_MAX):
            parts = self._handshake(tokens, partitions, state, bounds)
            if not parts:
                break
            outcome = self.table.commit(Proposal(self.job.name, new_batch_id(), tuple(parts)))
            self._report(outcome.accepted)
            state = self.table.state(partitions)
            for part in outcome.accepted:
                if part.partition in tokens:
                    self._correct(part.partition, part.token, state)
        return {partition: token for partition, token in tokens.items() if self._owns(partition, token, state)}, state

    def _owns(self, partition: Partition, token: int, state: DeltaState) -> bool:
        """Whether the table has the claim's token; a lower one, as after a new coordination topic, voids the claim."""
        if token < state.of(partition).token:
            self.claims.renounce(partition)
            return False
        return state.of(partition).position is not None

    def _handshake(
        self, tokens: Tokens, partitions: Sequence[Partition], state: DeltaState, bounds: LogBounds
    ) -> list[ProposalPart]:
        new = self._unstarted(tokens, partitions, state)
        offsets = first_offsets(self.job, self.log, new, state, bounds, self.nothing_matched) if new else {}
        parts: list[ProposalPart] = [
            StartPart(partition, offsets[partition], tokens.get(partition, 0)) for partition in new
        ]
        for partition, token in tokens.items():
            if state.of(partition).position is not None and token > state.of(partition).token:
                parts.append(FencePart(partition, token))
        return parts

    def _unstarted(self, tokens: Tokens, partitions: Sequence[Partition], state: DeltaState) -> list[Partition]:
        """The partitions to start: the claimed ones, and all those of a topic that no process has started.

        Otherwise another process would treat the others as partitions added later, and ignore `start` (RULES P1).
        """
        claimed = [partition for partition in tokens if state.of(partition).position is None]
        topics = {partition.topic for partition in claimed if state.fingerprints.get(partition.topic) is None}
        others = [
            partition
            for partition in partitions
            if partition.topic in topics and partition not in tokens and state.of(partition).position is None
        ]
        return claimed + others

    def _correct(self, partition: Partition, token: int, state: DeltaState) -> None:
        position = state.of(partition).position
        if position is None or state.of(partition).token != token:
            return
        shown = self.claims.correct(partition, token, position)
        if shown is not None:
            self.listener.event(PositionCorrected(partition=str(partition), position=position, shown=shown))

    def _report(self, accepted: Sequence[AcceptedPart]) -> None:
        for part in accepted:
            if isinstance(part, StartPart):
                self.listener.event(PartitionStarted(partition=str(part.partition), offset=part.offset))
        kinds = {type(part) for part in accepted}
        for kind, step in ((StartPart, "started"), (FencePart, "fenced")):
            if kind in kinds:
                self.at_step(step)


def first_offsets(
    job: JobSpec,
    log: Log,
    new: Sequence[Partition],
    state: DeltaState,
    bounds: LogBounds,
    nothing_matched: bool = False,
) -> dict[Partition, int]:
    """A topic that the job has not read starts at the job's `start`; later partitions start at their beginning."""
    began = any(fingerprint is not None for fingerprint in state.fingerprints.values()) or nothing_matched
    fresh = []
    for partition in new:
        stored = state.fingerprints.get(partition.topic)
        if stored is not None and stored != topic_fingerprint(partition.topic_id):
            if job.on.recreated == "fail":
                raise TopicRecreatedError(partition.topic)
        elif stored is None and not (began and job.log.topic_pattern):
            fresh.append(partition)
    missing = [partition for partition in new if partition not in bounds]
    bounds = {**bounds, **log.bounds(missing)} if missing else bounds
    starts = log.start_offsets(fresh, {partition: bounds[partition] for partition in fresh}) if fresh else {}
    return {partition: starts.get(partition, bounds[partition].first) for partition in new}
