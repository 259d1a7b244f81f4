"""Membership of a process: its options and phases, and how it takes its client id, unless a living process has it.

Pure (RULES M3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.claims.member.outbox import Outbox
from penstock.claims.member.upkeep import forgetting
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Heartbeat, JoiningGroup, Presence, Record, Terms, UnitKind, Wanted, Who
from penstock.claims.protocol.state import MemberState
from penstock.errors import FencedError, UserError


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Who a member is and what it claims. All members of a group need the same `heartbeat_seconds` and `unit`."""

    group: str
    client_id: str
    heartbeat_seconds: float = 10.0
    unit: UnitKind = "partition"
    claims_max: int | None = None
    """The most units that this member takes; None: its fair share, however large."""

    @property
    def terms(self) -> Terms:
        return Terms(self.heartbeat_seconds, self.unit)


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


class DifferentTermsError(UserError):
    """The living members of the group have another heartbeat interval, or share other units."""

    def __init__(self, group: str, ours: Terms, theirs: Terms | None) -> None:
        super().__init__(
            f"group {group} runs with {theirs}, this process with {ours}",
            detail="members with different intervals would take each other for dead",
            hint="set the same `claims.heartbeat` and `claims.unit` in every process; to change them, stop all first",
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
    """Watches the client id and the terms of the group, and joins when nobody is in the way."""

    def __init__(
        self, options: MemberOptions, who: Who, view: GroupView, outbox: Outbox, former_nonces: frozenset[str]
    ) -> None:
        self._options = options
        self._who = who
        self._view = view
        self._outbox = outbox
        self._former_nonces = former_nonces
        self._begun_at = 0
        self._knocked = False

    def begin(self) -> None:
        """From here on a record of another process shows that it lives."""
        self._begun_at = self._view.state.next_offset
        self._knocked = False

    def records(self, now: float, presence: Presence, wants: tuple[Wanted, ...]) -> list[Record]:
        """What to send now to become a member; raises if a living process is in the way."""
        if self._outbox.waiting(JoiningGroup):
            return []
        state, client_id = self._view.state, self._who.client_id
        before = state.members.get(client_id)
        rivals = [before] if before is not None and before.present and not self._is_own(before) else []
        others = [each for key, each in state.members.items() if key != client_id and each.present]
        strangers = others if state.terms != self._options.terms else []
        if any(each.last >= self._begun_at for each in rivals):
            raise DuplicateClientError(client_id, self._options.group)
        if any(each.last >= self._begun_at for each in strangers):
            raise DifferentTermsError(self._options.group, self._options.terms, state.terms)
        if any(not self._silent(each, now) for each in (*rivals, *strangers)):
            return self._knock()
        if strangers:
            return forgetting(self._outbox, strangers)
        last = None if before is None else before.last
        return [
            self._outbox.record_of(
                JoiningGroup, if_last=last, terms=self._options.terms, presence=presence, wants=wants
            )
        ]

    def _is_own(self, member: MemberState) -> bool:
        """Whether it is this process, in this or a former membership."""
        return member.who == self._who or member.who.nonce in self._former_nonces

    def _silent(self, member: MemberState, now: float) -> bool:
        """Whether a process was silent for two of its intervals: its work gate is closed, by its own clock too."""
        terms = self._view.state.terms
        interval = max(self._options.heartbeat_seconds, 0.0 if terms is None else terms.heartbeat_seconds)
        return self._view.silence_seconds(member.who.client_id, now) > 2 * interval

    def _knock(self) -> list[Record]:
        """A record that changes nothing, whose append time tells how old the others are."""
        knocked, self._knocked = self._knocked, True
        return [] if knocked else [self._outbox.record_of(Heartbeat)]
