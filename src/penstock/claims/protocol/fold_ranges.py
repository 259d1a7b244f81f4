"""The fold of ranges: several members work on one partition, under the token that its owner lends (RULES M5)."""

from __future__ import annotations

from itertools import takewhile
from typing import assert_never

from msgspec.structs import replace

from penstock.claims.protocol.records import ClaimingRange, FinishingRange, GivingUpRange, RangeRecord, ReturningRange
from penstock.claims.protocol.state import Claim, Lease, Ranges, Span

LOSSES_LISTED_MAX = 1000
"""Of one partition: older ones are only counted."""


class RefusedError(Exception):
    """The record changes nothing, for this reason. Not an error: the loser of a race reads it."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise RefusedError(reason)


def about_range(claim: Claim, offset: int, record: RangeRecord) -> Claim:
    """The claim after a record about one of its ranges: valid under the token that opened them."""
    require(record.token == claim.token and claim.held, "the partition has another owner")
    ranges = claim.ranges
    if ranges is None:
        raise RefusedError("the partition is not shared")
    match record:
        case ClaimingRange():
            return replace(claim, ranges=_leased(ranges, offset, record))
        case FinishingRange():
            lease = _held_lease(ranges, record)
            return _advanced(claim, _with(ranges, replace(lease, done=True)))
        case ReturningRange():
            lease = _held_lease(ranges, record)
            return replace(claim, ranges=_with(ranges, replace(lease, owner=None)))
        case GivingUpRange():
            lease = _abandoned_lease(ranges, record.start, record.if_lease)
            return _advanced(claim, _with(ranges, replace(lease, done=True, owner=None)))
        case _:
            assert_never(record)


def unshared(claim: Claim) -> Claim:
    """The claim without its ranges: the next owner does them again, except those that may be done only once."""
    ranges = claim.ranges
    if ranges is None:
        return claim
    if not ranges.at_most_once:
        return replace(claim, ranges=None)
    lost = tuple((each.start, each.end) for each in ranges.leases if each.given_up or not each.done)
    return losing(replace(claim, position=further(claim.position, ranges.next), ranges=None), *lost)


def losing(claim: Claim, *lost: Span, count_max: int = LOSSES_LISTED_MAX) -> Claim:
    """The claim with these losses listed too: neighbours as one, and of those too old to be listed only the count."""
    merged: list[Span] = []
    for start, end in claim.given_up + lost:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    old = merged[: max(0, len(merged) - count_max)]
    dropped = sum(end - start for start, end in old)
    return replace(claim, given_up=tuple(merged[len(old) :]), given_up_before=claim.given_up_before + dropped)


def further(one: int | None, other: int | None) -> int | None:
    """The later of two positions; None means no position, unlike 0."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def _leased(ranges: Ranges, offset: int, record: ClaimingRange) -> Ranges:
    if record.if_lease is None:
        require(record.start == ranges.next, "the range was claimed by another member")
        require(record.end > record.start, "the range is empty")
        lease = Lease(record.start, record.end, offset, record.who)
        return replace(ranges, next=record.end, leases=(*ranges.leases, lease))
    before = _abandoned_lease(ranges, record.start, record.if_lease)
    require(before.end == record.end, "a range is taken over as a whole")
    require(not ranges.at_most_once, "a range of at-most-once work is not done again")
    return _with(ranges, Lease(before.start, before.end, offset, record.who, before.attempts + 1))


def _abandoned_lease(ranges: Ranges, start: int, if_lease: int) -> Lease:
    lease = ranges.at(start)
    if lease is None or lease.done or lease.owner is not None or lease.lease != if_lease:
        raise RefusedError("another member holds the range, or it is over")
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
    over = list(takewhile(lambda each: each.done, ranges.leases))
    position = further(claim.position, over[-1].end if over else None)
    claim = replace(claim, position=position, ranges=replace(ranges, leases=ranges.leases[len(over) :]))
    return losing(claim, *((each.start, each.end) for each in over if each.given_up))
