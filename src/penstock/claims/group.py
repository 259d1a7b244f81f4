"""The engine's port for claims: of a job with a single process, which holds everything, and of a group of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.claims.member.agent import Agent, CoordinationOptions, default_client_id
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.session import EventListener
from penstock.claims.protocol.records import Seeking
from penstock.errors import TransientError
from penstock.job.spec import ClaimsSpec, KafkaLogSpec
from penstock.logs.log import Partition


class Claims(Protocol):
    """Which partitions this process may work on, each with the token that proves it."""

    shared: bool
    """Whether other processes work on the job too, so that a refused partition is an ordinary event."""

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        """The held partitions with their tokens; `table_tokens` is the floor under each (RULES M1).

        Called at the start of a round: no work is in progress on partitions that are not returned.
        """

    def keeps(self, partition: Partition, token: int) -> bool:
        """Whether the claim under this token is still ours; called before a commit."""

    def progress(self, positions: Mapping[Partition, int], lags: Mapping[Partition, int]) -> None:
        """Report to other processes how far this one is."""

    def heartbeat_age(self) -> float | None:
        """How many seconds ago the group last saw this process; None if there is none."""

    def working(self) -> None:
        """Report that the work makes progress: a round begins, a step is reached, a Spark task has ended.

        Claims are renewed by a thread of their own, which would renew them for a loop that hangs too: without a call
        for `claims.work_timeout` they are released. May be called from any thread, and costs nothing.
        """

    def correct(self, partition: Partition, token: int, position: int) -> int | None:
        """Lower the shown position to the table's if it is ahead of it (RULES M2); returns the old one if so."""

    def renounce(self, partition: Partition) -> None:
        """The table has a newer token than this claim: release, and claim again above it (RULES M1)."""

    def close(self) -> None:
        """Release everything."""


class StaticClaims:
    """Holds everything. Safe with one process; a second one is refused by the table's positions."""

    FIRST_TOKEN = 1
    shared = False

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return {partition: max(self.FIRST_TOKEN, table_tokens.get(partition, 0)) for partition in partitions}

    def keeps(self, partition: Partition, token: int) -> bool:
        return True

    def progress(self, positions: Mapping[Partition, int], lags: Mapping[Partition, int]) -> None:
        """There is no other process."""

    def heartbeat_age(self) -> float | None:
        return None

    def working(self) -> None:
        """No other process could take over."""

    def correct(self, partition: Partition, token: int, position: int) -> int | None:
        return None

    def renounce(self, partition: Partition) -> None:
        """The next round starts with the table's token."""

    def close(self) -> None:
        """There is nothing to release."""


class GroupClaims:
    """Divides the partitions of a job among the processes of its group."""

    shared = True

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        requested = tuple(partitions)
        self.agent.request(requested, table_tokens)
        held = self.agent.held()
        tokens = {item: held[item] for item in requested if item in held}
        self.agent.using(tokens)
        return tokens

    def keeps(self, partition: Partition, token: int) -> bool:
        return self.agent.confirmed(partition, token)

    def progress(self, positions: Mapping[Partition, int], lags: Mapping[Partition, int]) -> None:
        for partition, position in positions.items():
            self.agent.progress(partition, position, lags.get(partition, 0))

    def heartbeat_age(self) -> float | None:
        return self.agent.heartbeat_age()

    def working(self) -> None:
        self.agent.working()

    def correct(self, partition: Partition, token: int, position: int) -> int | None:
        with self.agent.looking() as participant:
            shown = participant.view.claim(partition).position
        if shown is None or shown <= position:
            return None
        # Heartbeats must not carry the old position any more: they would undo the move.
        self.agent.progress(partition, position)
        result = self.agent.send(
            Seeking, partition, if_token=token, position=position, reason="the position shown is ahead of the table"
        )
        if result.refusal is not None:
            raise TransientError(f"{partition} has another owner: {result.refusal}")
        return shown

    def renounce(self, partition: Partition) -> None:
        self.agent.renounce(partition, "the table has a newer token")

    def close(self) -> None:
        self.agent.close()


def open_group(spec: KafkaLogSpec, claims: ClaimsSpec, listener: EventListener) -> GroupClaims:
    """Start an agent for a job."""
    member = MemberOptions(
        group=spec.group,
        client_id=claims.client_id or default_client_id(),
        heartbeat_seconds=claims.heartbeat_seconds,
    )
    coordination = CoordinationOptions(claims.topic, claims.partitions, tables_remember=True)
    agent = Agent(spec, member, coordination, listener, work_timeout_seconds=claims.work_timeout_seconds)
    agent.start()
    return GroupClaims(agent)
