"""What members of a group say to each other in the coordination log: every record a frozen value.

A record proposes; the fold (`fold.py`) accepts or refuses it, and every reader comes to the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.offsets import Partition


@dataclass(frozen=True, slots=True, order=True)
class Who:
    """One life of a member: the client id outlives a restart, the nonce does not (RULES M3)."""

    client_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Presence:
    """What a member tells of itself: the most claims that it takes (None: no bound), and how many records it lags."""

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
    """One renewed range: `lease` is the place in the log of the record that leased it."""

    partition: Partition
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What every record begins with. `seq` counts the records of one life: it finds a record again in the log."""

    group: str
    who: Who
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningGroup(_Said):
    """I am `client_id` now; compare and swap on the last record of whoever had that id before (RULES M3)."""

    if_last: int | None
    presence: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingGroup(_Said):
    """I go, and hold nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingMember(_Said):
    """A client id has been silent for long; compare and swap, so that a living one is never forgotten."""

    client_id: str
    if_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_Said):
    """All that one member holds in one coordination partition; `presence` goes to its home partition only."""

    presence: Presence | None = None
    beats: tuple[Beat, ...] = ()
    ranges: tuple[RangeBeat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutPartition(_Said):
    partition: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingPartition(_AboutPartition):
    """I want this partition, if nothing changed since I looked; `floor` is the token that its table has (RULES M1)."""

    if_token: int
    if_last: int | None
    floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasingPartition(_AboutPartition):
    """I let go of this partition; `position` is where the next owner begins."""

    token: int
    position: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingMessages(_AboutPartition):
    """I am about to process everything below `end`, at most once: nobody will do it again."""

    token: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeking(_AboutPartition):
    """Set the position, also backwards: the only record that may lower it. By the owner, or of a free partition."""

    if_token: int
    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGroup(_Said):
    """Pause a group: nobody claims, everybody releases. `until_at` is advice (RULES M4)."""

    pause_id: str
    until_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumingGroup(_Said):
    """End the pause of that id; only this record ends it."""

    pause_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningRanges(_AboutPartition):
    """The owner lets others work on its partition, range by range from `start` on, under the owner's token."""

    token: int
    start: int
    at_most_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingRange(_AboutPartition):
    """I want the offsets `[start, end)`: the next unclaimed ones, or a range that I take over (`if_last` names it)."""

    token: int
    start: int
    end: int
    if_last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishingRange(_AboutPartition):
    """The range that `lease` gave me is done."""

    token: int
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningRange(_AboutPartition):
    """I let go of the range that `lease` gave me; it is the first to be claimed again."""

    token: int
    start: int
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingUpRange(_AboutPartition):
    """Nobody shall do this range again: its owner is gone, and it was at most once, or it killed too many."""

    token: int
    start: int
    if_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRanges(_AboutPartition):
    """The owner works alone again; accepted once no range is leased."""

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
