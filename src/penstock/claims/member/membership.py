"""Who is in a group: how a process takes its client id, and the upkeep that any member does for all. Pure (RULES M3).

Upkeep is harmless if several members do it at once: the first record counts. They take turns, so that a large group
does not send every record once per member.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.claims.member.outbox import Outbox
from penstock.claims.protocol import records
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import MemberId, Record, RequestedTopic
from penstock.claims.protocol.state import MemberState
from penstock.errors import FencedError, UserError
from penstock.logs.log import Partition

QUIET = 1 / 20
"""As fractions of a heartbeat interval: how long nothing must have changed before a target is computed."""
QUIET_MAX = 1 / 4
"""After so long it is computed in any case."""
TURN = 1 / 16
"""How much later than the one before it a member does what that one should have done."""
FORGET_INTERVALS = 30
"""A client id that is absent for so long is forgotten: randomly generated ids would fill the snapshots."""
UNREQUESTED_SECONDS_MAX = 7 * 24 * 3600.0
"""Free partitions that no member requests for so long are forgotten, with their positions."""
FORGOTTEN_AT_ONCE_MAX = 1000


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Who a member is. All members of a group need the same `heartbeat_seconds`."""

    group: str
    client_id: str
    heartbeat_seconds: float = 10.0


class Phase(Enum):
    """A member reads first, then watches its client id, joins, works, leaves."""

    READING = "reading"
    WATCHING = "watching"
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"


class DuplicateClientError(UserError):
    """A live process already has this client id (RULES M3)."""

    def __init__(self, client_id: str, group: str) -> None:
        super().__init__(
            f"client id {client_id} is in use by a live process of group {group}",
            detail="it kept sending heartbeats while this process watched",
            hint="give every process its own `claims.client_id`, or stop the other process first",
        )
        self.client_id = client_id


class DifferentHeartbeatError(UserError):
    """The live members of the group have another heartbeat interval."""

    def __init__(self, group: str, ours: float, theirs: float | None) -> None:
        super().__init__(
            f"group {group} runs with a heartbeat interval of {theirs} s, this process with {ours} s",
            detail="members with different intervals would declare each other gone",
            hint="set the same `claims.heartbeat` in every process; to change it, stop all first",
        )


class ReplacedError(FencedError):
    """A newer process joined under our client id, so this one stops (RULES M3)."""

    def __init__(self, client_id: str) -> None:
        super().__init__(
            f"another process has joined as {client_id}",
            detail="this process was silent for longer than two heartbeat intervals, so the other took its place",
            hint="give every process its own `claims.client_id`",
        )


class Joining:
    """Watches the client id and the heartbeat interval of the group, and joins when no live process is in the way."""

    def __init__(
        self, options: MemberOptions, who: MemberId, view: GroupView, outbox: Outbox, former_nonces: frozenset[str]
    ) -> None:
        self._options = options
        self._who = who
        self._view = view
        self._outbox = outbox
        self._former_nonces = former_nonces
        self._begun_at = 0
        self._probed = False

    def begin(self) -> None:
        """From here on a record of another process shows that it is alive."""
        self._begun_at = self._view.state.next_offset
        self._probed = False

    def records(self, now: float, wants: tuple[RequestedTopic, ...]) -> list[Record]:
        """What to send now to become a member; raises if a live process is in the way."""
        if self._outbox.waiting(records.JoiningGroup):
            return []
        state, client_id = self._view.state, self._who.client_id
        before = state.members.get(client_id)
        is_own = before is not None and (before.who == self._who or before.who.nonce in self._former_nonces)
        rivals = [before] if before is not None and before.present and not is_own else []
        others = [member for key, member in state.members.items() if key != client_id and member.present]
        interval = self._options.heartbeat_seconds
        differing = others if state.heartbeat_seconds != interval else []
        if any(rival.last >= self._begun_at for rival in rivals):
            raise DuplicateClientError(client_id, self._options.group)
        if any(other.last >= self._begun_at for other in differing):
            raise DifferentHeartbeatError(self._options.group, interval, state.heartbeat_seconds)
        if any(not self._silent(member, now) for member in (*rivals, *differing)):
            return self._probe()
        if differing:
            return forgetting(self._outbox, differing)
        last = None if before is None else before.last
        return [self._outbox.record_of(records.JoiningGroup, if_last=last, heartbeat_seconds=interval, wants=wants)]

    def _silent(self, member: MemberState, now: float) -> bool:
        """Whether a process was silent for two of its intervals: its work gate is closed, by its own clock too."""
        interval = max(self._options.heartbeat_seconds, self._view.state.heartbeat_seconds or 0.0)
        return self._view.silence_seconds(member.who.client_id, now) > 2 * interval

    def _probe(self) -> list[Record]:
        """A heartbeat that changes nothing; its append time shows how old the other records are."""
        probed, self._probed = self._probed, True
        return [] if probed else [self._outbox.record_of(records.Heartbeat)]


def forgetting(outbox: Outbox, members: Iterable[MemberState]) -> list[Record]:
    """Records that declare these members gone, except those already in flight."""
    waiting = {record.client_id for record in outbox.waiting(records.ForgettingMember)}
    return [
        outbox.record_of(records.ForgettingMember, client_id=member.who.client_id, if_last=member.last)
        for member in members
        if member.who.client_id not in waiting
    ]


class Upkeep:
    """What one member does for its group."""

    def __init__(self, view: GroupView, outbox: Outbox, who: MemberId) -> None:
        self._view = view
        self._outbox = outbox
        self._who = who
        self._unrequested_since: dict[Partition, float] = {}
        self._looked_at = float("-inf")

    def records(self, now: float) -> list[Record]:
        """What is due now."""
        live = sorted(member.who.client_id for member in self._view.live_members(now))
        rank = live.index(self._who.client_id) if self._who.client_id in live else len(live)
        late = rank * TURN * self._view.heartbeat_seconds
        silent = self._silent(now, late)
        return self._end_pauses() + silent + ([] if silent else self._balance(now, late)) + self._forget(now, rank)

    def _end_pauses(self) -> list[Record]:
        """End pauses whose time is over by the broker's clock: any member may do so (RULES M4)."""
        waiting = {record.pause_id for record in self._outbox.waiting(records.ResumingGroup)}
        return [
            self._outbox.record_of(records.ResumingGroup, pause_id=pause_id)
            for pause_id in self._view.state.pauses
            if self._view.pause_is_over(pause_id) and pause_id not in waiting
        ]

    def _silent(self, now: float, late: float) -> list[Record]:
        """Declare members gone that are silent for two intervals, and forget those that are absent for long."""
        others = (member for member in self._view.state.members.values() if member.who != self._who)
        return forgetting(self._outbox, (other for other in others if self._is_silent(other, now - late)))

    def _is_silent(self, member: MemberState, now: float) -> bool:
        patience_seconds = (2 if member.present else FORGET_INTERVALS) * self._view.heartbeat_seconds
        return self._view.silence_seconds(member.who.client_id, now) > patience_seconds

    def _balance(self, now: float, late: float) -> list[Record]:
        """Ask for a new target, once nothing has changed for a moment."""
        changed_at, since = self._view.changed_at, self._view.unbalanced_since
        if changed_at is None or since is None or self._outbox.waiting(records.BalancingGroup):
            return []
        interval = self._view.heartbeat_seconds
        due = now - changed_at >= QUIET * interval + late or now - since >= QUIET_MAX * interval + late
        return [self._outbox.record_of(records.BalancingGroup, if_changed=self._view.state.changed)] if due else []

    def _forget(self, now: float, rank: int) -> list[Record]:
        """Forget partitions of a topic that was recreated, and those that no member has requested for a week."""
        if rank > 0 or now - self._looked_at < FORGET_INTERVALS * self._view.heartbeat_seconds:
            return []
        self._looked_at = now
        ids = {(topic.topic, topic.topic_id) for member in self._view.state.members.values() for topic in member.wants}
        topics = {topic for topic, _ in ids}
        free = [partition for partition, claim in self._view.state.claims.items() if not claim.held]
        self._unrequested_since = {
            key: self._unrequested_since.get(key, now) for key in free if (key.topic, key.topic_id) not in ids
        }
        long_ago = now - UNREQUESTED_SECONDS_MAX
        over = [key for key, since in self._unrequested_since.items() if key.topic in topics or since < long_ago]
        chosen = tuple(over[:FORGOTTEN_AT_ONCE_MAX])
        return [self._outbox.record_of(records.ForgettingPartitions, partitions=chosen)] if chosen else []
