"""The values that a participant works with: its options, phase, errors, and the records it sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from penstock.claims.protocol.records import Record
from penstock.errors import FencedError, UserError
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Who a member is and what it claims. All members of a group need the same `heartbeat_seconds` and `unit`."""

    group: str
    client_id: str
    heartbeat_seconds: float = 10.0
    unit: Literal["partition", "topic"] = "partition"
    claims_max: int | None = None
    """The most units that this member takes; None: its fair share, however large."""


@dataclass(frozen=True, slots=True)
class Send:
    """A record for one coordination partition."""

    place: int
    record: Record


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


class ReplacedError(FencedError):
    """A newer process joined under our client id, so this one stops (RULES M3)."""

    def __init__(self, client_id: str) -> None:
        super().__init__(
            f"another process has joined as {client_id}",
            detail="this process was silent for longer than a heartbeat interval, so the other took its place",
            hint="give every process its own `claims.client_id`",
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The offset of a record that we sent, and why the fold refused it (None: accepted)."""

    offset: int
    refusal: str | None


@dataclass(slots=True)
class MemberEvents:
    """What happened to this member since the last look, for its events and logs."""

    joined: bool = False
    won: list[tuple[Partition, int]] = field(default_factory=list)
    lost: list[tuple[Partition, int]] = field(default_factory=list)
    released: list[tuple[Partition, str]] = field(default_factory=list)
