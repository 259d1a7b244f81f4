"""The fold: what a record at an offset does to the state. No clock and no randomness, so every reader agrees.

A claim is compare and swap: it names what the claimant saw, and is refused if anything changed since. A member
that seems dead only makes others try; that alone changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    PartitionRecord,
    RangeBeat,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
)
from penstock.claims.protocol.state import Claim, Group, Lease, LogState, MemberState, Pause, Ranges

FOLD_VERSION = 1
"""Raised when the same log would fold to another state: snapshots of another version are not used."""


class RefusedError(Exception):
    """The record changes nothing, for this reason. Not an error: the loser of a race reads it."""


def apply(state: LogState, offset: int, record: Record) -> tuple[LogState, str | None]:
    """The state after a record, and why it was refused (None: it was accepted)."""
    group = state.group(record.group)
    try:
        changed = _in_group(group, offset, record)
    except RefusedError as refusal:
        return replace(state, next_offset=offset + 1), str(refusal)
    return LogState(offset + 1, {**state.groups, record.group: changed}), None


def skip(state: LogState, offset: int) -> LogState:
    """The state after an offset that holds no record of Penstock."""
    return replace(state, next_offset=offset + 1)


def _in_group(group: Group, offset: int, record: Record) -> Group:
    match record:
        case JoiningGroup() | LeavingGroup() | ForgettingMember():
            return _in_members(group, offset, record)
        case Heartbeat():
            return _renewed_by(group, offset, record)
        case ReleaseGroup():
            pause = Pause(record.who.client_id, record.until_at, record.reason)
            return replace(group, pauses={**group.pauses, record.pause_id: pause})
        case ResumingGroup():
            _require(record.pause_id in group.pauses, "there is no such pause")
            return replace(group, pauses={key: each for key, each in group.pauses.items() if key != record.pause_id})
        case _:
            claim = _about_partition(group, group.claim(record.partition), offset, record)
            return replace(group, claims={**group.claims, record.partition: claim})


# members


def _in_members(group: Group, offset: int, record: JoiningGroup | LeavingGroup | ForgettingMember) -> Group:
    members = dict(group.members)
    match record:
        case JoiningGroup():
            before = members.get(record.who.client_id)
            last = None if before is None else before.last
            _require(record.if_last == last, "the client id was used by another process meanwhile")
            members[record.who.client_id] = MemberState(record.who, offset, True, record.presence)
        case LeavingGroup():
            here = members.get(record.who.client_id)
            _require(here is not None and here.who == record.who, "another process has this client id now")
            members[record.who.client_id] = MemberState(record.who, offset, present=False)
        case ForgettingMember():
            here = members.get(record.client_id)
            _require(here is not None and here.last == record.if_last, "the member is alive")
            del members[record.client_id]
        case _:
            assert_never(record)
    return replace(group, members=members)


def _renewed_by(group: Group, offset: int, record: Heartbeat) -> Group:
    """Renew what the sender still holds, skip what it has lost. Refused only if nothing is renewed."""
    renewed = group
    here = group.members.get(record.who.client_id)
    if record.presence is not None and here is not None and here.present and here.who == record.who:
        member = MemberState(record.who, offset, True, record.presence)
        renewed = replace(renewed, members={**group.members, record.who.client_id: member})
    changes = {beat.partition: _renewed(group.claim(beat.partition), offset, record, beat) for beat in record.beats}
    claims = {**group.claims, **{key: claim for key, claim in changes.items() if claim is not None}}
    for beat in record.ranges:
        claim = _range_renewed(claims.get(beat.partition), offset, record, beat)
        if claim is not None:
            claims[beat.partition] = claim
    if claims != group.claims:
        renewed = replace(renewed, claims=claims)
    _require(renewed is not group, "the sender holds nothing of this any more")
    return renewed


def _renewed(claim: Claim, offset: int, record: Heartbeat, beat: Beat) -> Claim | None:
    if beat.token != claim.token or not claim.held_by(record.who):
        return None
    return replace(claim, last=offset, position=_further(claim.position, beat.position), lag=beat.lag)


def _range_renewed(claim: Claim | None, offset: int, record: Heartbeat, beat: RangeBeat) -> Claim | None:
    if claim is None or claim.ranges is None:
        return None
    lease = claim.ranges.at(beat.start)
    if lease is None or lease.lease != beat.lease or lease.owner != record.who:
        return None
    return replace(claim, ranges=_with(claim.ranges, replace(lease, last=offset)))


# partitions


def _about_partition(group: Group, claim: Claim, offset: int, record: PartitionRecord) -> Claim:
    match record:
        case ClaimingPartition():
            return _claimed(group, claim, offset, record)
        case Seeking():
            _require(record.if_token == claim.token, "the partition has a newer token")
            _require(not claim.held or claim.held_by(record.who), "another member holds the partition")
            return _sought(claim, offset, record.position)
        case ReleasingPartition():
            _owned(claim, record)
            left = _unshared(claim)
            return replace(left, held=False, last=offset, position=_further(left.position, record.position), lag=0)
        case ClaimingMessages():
            _owned(claim, record)
            _require(claim.ranges is None, "the partition is shared: its ranges are claimed")
            _require(record.end > max(claim.claimed or 0, claim.position or 0), "these messages were claimed before")
            return replace(claim, last=offset, claimed=record.end)
        case OpeningRanges():
            _owned(claim, record)
            _require(claim.ranges is None, "the partition is shared already")
            _require((claim.claimed or 0) <= (claim.position or 0), "claimed messages are still being worked on")
            _require(record.start >= (claim.position or 0), "the ranges begin before the position")
            return replace(claim, last=offset, ranges=Ranges(record.start, (), record.at_most_once))
        case ClosingRanges():
            _owned(claim, record)
            _require(claim.ranges is not None and not claim.ranges.leases, "ranges are still being worked on")
            return replace(claim, last=offset, ranges=None)
        case ClaimingRange() | FinishingRange() | ReturningRange() | GivingUpRange():
            return _about_range(group, claim, offset, record)
        case _:
            assert_never(record)


def _claimed(group: Group, claim: Claim, offset: int, record: ClaimingPartition) -> Claim:
    _require(not group.pauses, "the group is paused")
    _require(record.if_token == claim.token and record.if_last == claim.last, "the partition changed meanwhile")
    left = _unshared(claim)
    return Claim(
        token=max(claim.token, record.floor) + 1,
        owner=record.who,
        held=True,
        last=offset,
        position=_further(left.position, left.claimed),
        claimed=left.claimed,
        given_up=left.given_up + _lost(left),
    )


def _sought(claim: Claim, offset: int, position: int) -> Claim:
    """Move the position. Work on ranges is void; offsets after the position are processed again, so not given up."""
    kept = tuple((start, min(end, position)) for start, end in claim.given_up if start < position)
    return replace(claim, last=offset, position=position, claimed=None, ranges=None, given_up=kept)


def _unshared(claim: Claim) -> Claim:
    """The claim without its ranges: the next owner does them again, except those that may be done only once."""
    ranges = claim.ranges
    if ranges is None or not ranges.at_most_once:
        return replace(claim, ranges=None)
    lost = tuple((each.start, each.end) for each in ranges.leases if each.given_up or not each.done)
    position = _further(claim.position, ranges.next)
    return replace(claim, position=position, ranges=None, given_up=claim.given_up + lost)


def _lost(claim: Claim) -> tuple[tuple[int, int], ...]:
    """What the previous owner had claimed to process at most once and never reported as done."""
    if claim.claimed is None or claim.claimed <= (claim.position or 0):
        return ()
    return ((claim.position or 0, claim.claimed),)


def _owned(claim: Claim, record: ReleasingPartition | ClaimingMessages | OpeningRanges | ClosingRanges) -> None:
    _require(record.token == claim.token and claim.held_by(record.who), "the sender does not hold the partition")


# ranges


def _about_range(
    group: Group, claim: Claim, offset: int, record: ClaimingRange | FinishingRange | ReturningRange | GivingUpRange
) -> Claim:
    """Ranges are valid under the token that opened them: a new owner makes them void (RULES M5)."""
    _require(record.token == claim.token and claim.held, "the partition has another owner")
    ranges = claim.ranges
    if ranges is None:
        raise RefusedError("the partition is not shared")
    match record:
        case ClaimingRange():
            _require(not group.pauses, "the group is paused")
            return replace(claim, ranges=_leased(ranges, offset, record))
        case FinishingRange():
            lease = _held_lease(ranges, record)
            return _advanced(claim, _with(ranges, replace(lease, done=True, owner=record.who, last=offset)))
        case ReturningRange():
            lease = _held_lease(ranges, record)
            return replace(claim, ranges=_with(ranges, replace(lease, owner=None, last=offset)))
        case GivingUpRange():
            lease = _unchanged_lease(ranges, record.start, record.if_last)
            return _advanced(claim, _with(ranges, replace(lease, done=True, owner=None, last=offset)))
        case _:
            assert_never(record)


def _leased(ranges: Ranges, offset: int, record: ClaimingRange) -> Ranges:
    if record.if_last is None:
        _require(record.start == ranges.next, "the range was claimed by another member")
        _require(record.end > record.start, "the range is empty")
        lease = Lease(record.start, record.end, offset, offset, record.who)
        return replace(ranges, next=record.end, leases=(*ranges.leases, lease))
    before = _unchanged_lease(ranges, record.start, record.if_last)
    _require(before.end == record.end, "a range is taken over as a whole")
    _require(not ranges.at_most_once, "a range of at-most-once work is not done again")
    again = Lease(before.start, before.end, offset, offset, record.who, before.attempts + 1)
    return _with(ranges, again)


def _unchanged_lease(ranges: Ranges, start: int, if_last: int) -> Lease:
    lease = ranges.at(start)
    if lease is None or lease.done or lease.last != if_last:
        raise RefusedError("the range changed meanwhile")
    return lease


def _held_lease(ranges: Ranges, record: FinishingRange | ReturningRange) -> Lease:
    lease = ranges.at(record.start)
    if lease is None or lease.done or lease.lease != record.lease or lease.owner != record.who:
        raise RefusedError("the sender does not hold the range")
    return lease


def _with(ranges: Ranges, changed: Lease) -> Ranges:
    return replace(ranges, leases=tuple(changed if each.start == changed.start else each for each in ranges.leases))


def _advanced(claim: Claim, ranges: Ranges) -> Claim:
    """Move the position over the finished prefix. Only there is a loss final: later ranges may become void."""
    leases = list(ranges.leases)
    position, given_up = claim.position, claim.given_up
    while leases and leases[0].done:
        over = leases.pop(0)
        position = _further(position, over.end)
        given_up += ((over.start, over.end),) if over.given_up else ()
    return replace(claim, position=position, given_up=given_up, ranges=replace(ranges, leases=tuple(leases)))


def _further(one: int | None, other: int | None) -> int | None:
    """The later of two positions; None means no position, unlike 0."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise RefusedError(reason)
