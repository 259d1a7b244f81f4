"""The state of one group after a prefix of its records.

Groups change in place, record by record: a copy of all claims for each record would cost more than everything else.
What they hold are frozen values, so `copy` is cheap, and holding a part of the state cannot change it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.claims.protocol.records import MemberId, RequestedTopic
from penstock.logs.log import Partition

Span = tuple[int, int]


class Claim(Struct, frozen=True):
    """One partition. `last` is the offset of the last record accepted about it; heartbeats do not count.

    `owner` is kept after a release, for people to read; `held` is whether it still owns the partition.
    """

    token: int = 0
    owner: MemberId | None = None
    held: bool = False
    last: int | None = None
    position: int | None = None
    claimed: int | None = None
    """Everything below was claimed for processing at most once."""
    given_up: tuple[Span, ...] = ()
    """The loss ledger of at-most-once: offsets that were claimed and never reported as processed."""
    given_up_before: int = 0
    """How many offsets were given up in losses that are too old to be listed."""
    lag: int = 0
    seeks: int = 0
    freed_from: str | None = None
    """The member that an administrator took it from: the target prefers any other."""

    def held_by(self, who: MemberId, token: int | None = None) -> bool:
        """Whether a process holds it, under that token if one is given."""
        return self.held and self.owner == who and token in (None, self.token)


class MemberState(Struct, frozen=True):
    """One client id: its process, and the offset of its last record. `present` is false once it left or fell silent."""

    who: MemberId
    last: int
    present: bool = True
    wants: tuple[RequestedTopic, ...] = ()


class Pause(Struct, frozen=True):
    by: str
    until_at: float | None
    """By the broker's clock; advice for the members, one of which ends the pause then."""
    reason: str


class GroupState(Struct):
    """The fold of one group up to `next_offset`."""

    next_offset: int = 0
    claims: dict[Partition, Claim] = {}
    members: dict[str, MemberState] = {}
    pauses: dict[str, Pause] = {}
    heartbeat_seconds: float | None = None
    """Of all its members."""
    target: dict[str, tuple[Partition, ...]] = {}
    """Which partitions each client id should hold, as of the record at `balanced`."""
    changed: int | None = None
    """The offset of the last record after which another target may be better."""
    balanced: int | None = None

    def claim(self, partition: Partition) -> Claim:
        return self.claims.get(partition, _UNCLAIMED)

    def present(self, who: MemberId) -> bool:
        """Whether this process is a member."""
        member = self.members.get(who.client_id)
        return member is not None and member.present and member.who == who

    @property
    def unbalanced(self) -> bool:
        return self.changed is not None and (self.balanced is None or self.changed > self.balanced)

    def copy(self) -> GroupState:
        claims, members, pauses = dict(self.claims), dict(self.members), dict(self.pauses)
        return replace(self, claims=claims, members=members, pauses=pauses, target=dict(self.target))


_UNCLAIMED = Claim()
