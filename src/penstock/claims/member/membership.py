"""The values that a participant works with: its options, phase and errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.claims.protocol.records import Terms, UnitKind
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
        found = "" if theirs is None else f"a heartbeat interval of {theirs.heartbeat_seconds:g} s, unit {theirs.unit}"
        super().__init__(
            f"group {group} runs with {found}; this process has {ours.heartbeat_seconds:g} s, unit {ours.unit}",
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The offset of a record that we sent, and why the fold refused it (None: accepted)."""

    offset: int
    refusal: str | None
