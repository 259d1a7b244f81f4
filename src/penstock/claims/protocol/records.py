"""The records that members of a group append to the coordination log, each a frozen value.

A record proposes; the fold (`fold.py`) accepts or refuses it, and every reader reaches the same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True, order=True)
class Who:
    """One process of a member: the client id survives a restart, the nonce does not (RULES M3)."""

    client_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Presence:
    """What a member reports of itself: the most claims it takes (None: no limit), and its lag in records."""

    claims_max: int | None = None
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """One renewed claim in a heartbeat. `position` is the next offset to process; None where none is known yet."""

    partition: Partition
    token: int
    position: int | None = None
    lag: int = 0


@dataclass(frozen=True, slots=True)
class RangeBeat:
    """One renewed range: `lease` is the offset of the record that leased it."""

    partition: Partition
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The fields of every record. `seq` counts the records of one process, so that it recognises them in the log."""

    group: str
    who: Who
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningGroup(_Header):
    """Take `client_id`: a compare and swap on the last record of the process that had it before (RULES M3)."""

    if_last: int | None
    presence: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingGroup(_Header):
    """The sender leaves the group and gives up everything it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingMember(_Header):
    """Remove a client id that has long been silent; a compare and swap, so that a live one is never removed."""

    client_id: str
    if_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_Header):
    """Renew all that a member holds in one coordination partition; only its home partition gets `presence`."""

    presence: Presence | None = None
    beats: tuple[Beat, ...] = ()
    ranges: tuple[RangeBeat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutPartition(_Header):
    partition: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingPartition(_AboutPartition):
    """Claim a partition, if nothing changed since the sender looked; `floor` is its table's token (RULES M1)."""

    if_token: int
    if_last: int | None
    floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasingPartition(_AboutPartition):
    """Release a partition; `position` is where the next owner starts."""

    token: int
    position: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingMessages(_AboutPartition):
    """Claim every message below `end` for processing at most once: nobody will process them again."""

    token: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeking(_AboutPartition):
    """Set the position, the only record that may lower it; sent by the owner, or for a free partition."""

    if_token: int
    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGroup(_Header):
    """Pause a group: members release everything and claim nothing. `until_at` is advice (RULES M4)."""

    pause_id: str
    until_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumingGroup(_Header):
    """End the pause with that id; nothing else ends it."""

    pause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningRanges(_AboutPartition):
    """Let other members work on the owner's partition, by ranges from `start` on, under the owner's token."""

    token: int
    start: int
    at_most_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingRange(_AboutPartition):
    """Claim the offsets `[start, end)`: the next unclaimed ones, or a range to take over (`if_last` names it)."""

    token: int
    start: int
    end: int
    if_last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishingRange(_AboutPartition):
    """The range leased by `lease` is finished."""

    token: int
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningRange(_AboutPartition):
    """Return the range leased by `lease`; it is the first to be claimed again."""

    token: int
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingUpRange(_AboutPartition):
    """Skip a range for good: its owner is gone, and it was at most once or has failed too many owners."""

    token: int
    start: int
    if_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRanges(_AboutPartition):
    """Stop sharing the partition; accepted once no range is leased."""

    token: int


PartitionRecord = (
    ClaimingPartition
    | ReleasingPartition
    | ClaimingMessages
    | Seeking
    | OpeningRanges
    | ClaimingRange
    | FinishingRange
    | ReturningRange
    | GivingUpRange
    | ClosingRanges
)
MemberRecord = JoiningGroup | LeavingGroup | ForgettingMember
GroupRecord = ReleaseGroup | ResumingGroup
Record = PartitionRecord | MemberRecord | GroupRecord | Heartbeat
