"""The state of one coordination partition after a prefix of its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.claims.protocol.records import Presence, Who
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class Lease:
    """A range `[start, end)` of a shared partition. `lease` proves who holds it; `owner` is None once returned."""

    start: int
    end: int
    lease: int
    last: int
    owner: Who | None
    attempts: int = 1
    done: bool = False

    @property
    def given_up(self) -> bool:
        """Over without having been processed."""
        return self.done and self.owner is None


@dataclass(frozen=True, slots=True)
class Ranges:
    """A partition that several members work on: all below `next` is leased or done; `leases` holds what is not over."""

    next: int
    leases: tuple[Lease, ...] = ()
    at_most_once: bool = False

    def at(self, start: int) -> Lease | None:
        return next((each for each in self.leases if each.start == start), None)


@dataclass(frozen=True, slots=True)
class Claim:
    """One partition in one group. `last` is the offset of the last record accepted about it.

    `owner` is kept after a release, for people to read; `held` says whether it still owns the partition.
    """

    token: int = 0
    owner: Who | None = None
    held: bool = False
    last: int | None = None
    position: int | None = None
    claimed: int | None = None
    """Everything below was claimed for processing at most once."""
    ranges: Ranges | None = None
    given_up: tuple[tuple[int, int], ...] = ()
    """The loss ledger of at-most-once: offsets that were claimed and never reported as processed."""
    lag: int = 0

    @property
    def leases(self) -> tuple[Lease, ...]:
        return () if self.ranges is None else self.ranges.leases

    def held_by(self, who: Who) -> bool:
        return self.held and self.owner == who


@dataclass(frozen=True, slots=True)
class MemberState:
    """One client id: its process, and the offset of its last record. `present` is false after a clean leave."""

    who: Who
    last: int
    present: bool = True
    presence: Presence = field(default_factory=Presence)


@dataclass(frozen=True, slots=True)
class Pause:
    by: str
    until_at: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Group:
    claims: Mapping[Partition, Claim] = field(default_factory=dict)
    members: Mapping[str, MemberState] = field(default_factory=dict)
    pauses: Mapping[str, Pause] = field(default_factory=dict)

    def claim(self, partition: Partition) -> Claim:
        return self.claims.get(partition, _UNCLAIMED)


@dataclass(frozen=True, slots=True)
class LogState:
    """The fold of one coordination partition up to `next_offset`."""

    next_offset: int = 0
    groups: Mapping[str, Group] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        return self.groups.get(name, _EMPTY)


_UNCLAIMED = Claim()
_EMPTY = Group()
