"""Upkeep of the group that any of its members does: balance it, end pauses, say who fell silent, forget. Pure.

All of it is harmless if several members do it at once: the first record counts. Members take turns, so that a large
group does not say everything as many times as it has members.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.claims.member.outbox import Outbox
from penstock.claims.protocol import records
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record, Who
from penstock.claims.protocol.state import MemberState
from penstock.logs.log import Partition

SETTLE = 1 / 20
"""As fractions of a heartbeat interval: how long nothing must have changed before a target is computed."""
SETTLE_MAX = 1 / 4
"""After so long it is computed in any case."""
TURN = 1 / 16
"""How much later than the one before it a member does what that one should have done."""
FORGET_INTERVALS = 30
"""A client id that is absent for so long is forgotten: randomly generated ids would fill the snapshots."""
UNWANTED_SECONDS_MAX = 7 * 24 * 3600.0
"""Free partitions that nobody wants for so long are forgotten, with their positions."""
FORGOTTEN_AT_ONCE_MAX = 1000


def forgetting(outbox: Outbox, members: Iterable[MemberState]) -> list[Record]:
    """Say that these members are gone, unless that is under way."""
    waiting = {each.client_id for each in outbox.waiting(records.ForgettingMember)}
    return [
        outbox.record_of(records.ForgettingMember, client_id=each.who.client_id, if_last=each.last)
        for each in members
        if each.who.client_id not in waiting
    ]


class Upkeep:
    """What one member does for its group."""

    def __init__(self, view: GroupView, outbox: Outbox, who: Who) -> None:
        self._view = view
        self._outbox = outbox
        self._who = who
        self._unwanted_since: dict[Partition, float] = {}
        self._looked_at = float("-inf")

    def records(self, now: float) -> list[Record]:
        """What is due now."""
        live = sorted(each.who.client_id for each in self._view.live_members(now))
        rank = live.index(self._who.client_id) if self._who.client_id in live else len(live)
        late = rank * TURN * self._view.heartbeat_seconds
        silent = self._silent(now, late)
        return self._end_pauses() + silent + ([] if silent else self._balance(now, late)) + self._forget(now, rank)

    def _end_pauses(self) -> list[Record]:
        """End pauses whose time is over by the broker's clock: any member may do so (RULES M4)."""
        waiting = {each.pause_id for each in self._outbox.waiting(records.ResumingGroup)}
        return [
            self._outbox.record_of(records.ResumingGroup, pause_id=pause_id)
            for pause_id in self._view.state.pauses
            if self._view.pause_is_over(pause_id) and pause_id not in waiting
        ]

    def _silent(self, now: float, late: float) -> list[Record]:
        """Say who is silent for two intervals, and forget who is absent for long."""
        others = (each for each in self._view.state.members.values() if each.who != self._who)
        return forgetting(self._outbox, (each for each in others if self._is_silent(each, now - late)))

    def _is_silent(self, member: MemberState, now: float) -> bool:
        patience_seconds = (2 if member.present else FORGET_INTERVALS) * self._view.heartbeat_seconds
        return self._view.silence_seconds(member.who.client_id, now) > patience_seconds

    def _balance(self, now: float, late: float) -> list[Record]:
        """Ask for a new target, once the group has settled after a change."""
        changed_at, since = self._view.changed_at, self._view.unbalanced_since
        if changed_at is None or since is None or self._outbox.waiting(records.BalancingGroup):
            return []
        interval = self._view.heartbeat_seconds
        settled = now - changed_at >= SETTLE * interval + late or now - since >= SETTLE_MAX * interval + late
        return [self._outbox.record_of(records.BalancingGroup, if_changed=self._view.state.changed)] if settled else []

    def _forget(self, now: float, rank: int) -> list[Record]:
        """Forget partitions of a topic that was recreated, and those that nobody has wanted for a week."""
        if rank > 0 or now - self._looked_at < FORGET_INTERVALS * self._view.heartbeat_seconds:
            return []
        self._looked_at = now
        ids = {(each.topic, each.topic_id) for member in self._view.state.members.values() for each in member.wants}
        topics = {topic for topic, _ in ids}
        free = [each for each, claim in self._view.claims() if not claim.held]
        self._unwanted_since = {
            each: self._unwanted_since.get(each, now) for each in free if (each.topic, each.topic_id) not in ids
        }
        long_ago = now - UNWANTED_SECONDS_MAX
        over = [each for each, since in self._unwanted_since.items() if each.topic in topics or since < long_ago]
        chosen = tuple(over[:FORGOTTEN_AT_ONCE_MAX])
        return [self._outbox.record_of(records.ForgettingPartitions, partitions=chosen)] if chosen else []
