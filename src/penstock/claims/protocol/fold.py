"""The fold: what a record at an offset does to its group. No clock and no randomness, so every reader agrees.

A claim is compare and swap: it names what the claimant saw, and is refused if anything changed since. A member that
seems dead only makes others append a record that declares it gone, refused if the member sent any record meanwhile.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from penstock.claims.protocol import records
from penstock.claims.protocol.records import Beat, ClaimRequest, MemberId, Record
from penstock.claims.protocol.state import Claim, GroupState, MemberState, Pause, Span
from penstock.claims.protocol.target import balance

FOLD_VERSION = 5
"""Raised when the same log would fold to another state: readers stop at snapshots of another version."""
LOSSES_LISTED_MAX = 1000
"""Of one partition: older ones are only counted."""


class RefusedRecordError(Exception):
    """The record changes nothing, for this reason. Not an error: the loser of a race reads it."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise RefusedRecordError(reason)


def apply(group: GroupState, offset: int, record: Record, appended_at: float) -> str | None:
    """Apply a record; returns why it was refused (None: it was accepted). Any record shows that its sender is alive."""
    group.next_offset = offset + 1
    try:
        if group.present(record.who):
            client_id = record.who.client_id
            group.members[client_id] = replace(group.members[client_id], last=offset)
        else:
            require(isinstance(record, records.AnybodysRecord), "the sender is not a member")
        _apply(group, offset, record, appended_at)
    except RefusedRecordError as refusal:
        return str(refusal)
    return None


def _apply(group: GroupState, offset: int, record: Record, appended_at: float) -> None:
    match record:
        case records.Heartbeat():
            _renew(group, offset, record)
        case records.ClaimingPartition():
            require(not group.pauses, "the group is paused")
            won = [request for request in record.requests if _free(group.claim(request.partition), request)]
            require(bool(won), "the partitions changed meanwhile")
            for request in won:
                group.claims[request.partition] = _claimed(group.claim(request.partition), offset, record.who, request)
        case records.ReleasingPartition():
            held = _owned(group, record)
            require(bool(held), "the sender does not hold the partitions")
            _release(group, offset, held)
        case records.JoiningGroup():
            _join(group, offset, record)
        case records.LeavingGroup():
            _release(group, offset, _owned(group, record))
            _absent(group, offset, record.who)
        case records.ForgettingMember():
            _forget(group, offset, record)
        case records.BalancingGroup():
            require(group.unbalanced and record.if_changed == group.changed, "the group is balanced, or has changed")
            group.target, group.balanced = balance(group), offset
        case records.ReleaseGroup():
            until_at = None if record.for_seconds is None else appended_at + record.for_seconds
            group.pauses[record.pause_id] = Pause(record.who.client_id, until_at, record.reason)
        case records.ResumingGroup():
            require(record.pause_id in group.pauses, "there is no such pause")
            del group.pauses[record.pause_id]
        case records.ForgettingPartitions():
            free = [key for key in record.partitions if key in group.claims and not group.claims[key].held]
            require(bool(free), "the partitions are held, or forgotten already")
            for partition in free:
                del group.claims[partition]
        case _:
            group.claims[record.partition] = _about_partition(group, offset, record)


# members


def _join(group: GroupState, offset: int, record: records.JoiningGroup) -> None:
    client_id = record.who.client_id
    before = group.members.get(client_id)
    require(not group.present(record.who), "the sender has joined already")
    last = None if before is None else before.last
    require(record.if_last == last, "the client id was used by another process meanwhile")
    others = any(member.present for key, member in group.members.items() if key != client_id)
    interval = group.heartbeat_seconds
    require(not others or interval == record.heartbeat_seconds, f"the heartbeat interval of the group is {interval} s")
    if before is not None and before.present and before.who != record.who:
        _free_all(group, offset, before.who)
    group.heartbeat_seconds = record.heartbeat_seconds
    if before is None or not before.present or before.wants != record.wants:
        group.changed = offset
    group.members[client_id] = MemberState(record.who, offset, True, record.wants)


def _renew(group: GroupState, offset: int, record: records.Heartbeat) -> None:
    """Take over the topics that the sender requests, and the positions of what it still holds."""
    member = group.members[record.who.client_id]
    if record.wants is not None and record.wants != member.wants:
        group.members[record.who.client_id] = replace(member, wants=record.wants)
        group.changed = offset
    for beat in _owned(group, record):
        group.claims[beat.partition] = _moved(group.claim(beat.partition), beat)


def _forget(group: GroupState, offset: int, record: records.ForgettingMember) -> None:
    member = group.members.get(record.client_id)
    if member is None or member.last != record.if_last:
        raise RefusedRecordError("the member is alive, or forgotten already")
    if member.present:
        _absent(group, offset, member.who)
    else:
        del group.members[record.client_id]


def _absent(group: GroupState, offset: int, who: MemberId) -> None:
    _free_all(group, offset, who)
    group.members[who.client_id] = MemberState(who, offset, present=False)
    group.changed = offset


def _free_all(group: GroupState, offset: int, who: MemberId) -> None:
    """A process has ended: its partitions are free."""
    for partition, claim in group.claims.items():
        if claim.held_by(who):
            group.claims[partition] = _freed(claim, offset)


# partitions


def _free(claim: Claim, request: ClaimRequest) -> bool:
    return not claim.held and claim.token == request.if_token


def _owned(
    group: GroupState, record: records.Heartbeat | records.ReleasingPartition | records.LeavingGroup
) -> list[Beat]:
    """The part of a record that is about what its sender still holds."""
    return [beat for beat in record.beats if group.claim(beat.partition).held_by(record.who, beat.token)]


def _claimed(claim: Claim, offset: int, who: MemberId, request: ClaimRequest) -> Claim:
    token = max(claim.token, request.floor) + 1
    position = further(claim.position, claim.claimed)
    claim = losing(claim, *_lost(claim))
    return replace(claim, token=token, owner=who, held=True, last=offset, position=position, freed_from=None)


def _moved(claim: Claim, beat: Beat) -> Claim:
    """The claim at the position of a heartbeat, unless a seek that its sender had not read came in between."""
    position = further(claim.position, beat.position) if beat.seeks == claim.seeks else claim.position
    return replace(claim, position=position, lag=beat.lag)


def _release(group: GroupState, offset: int, beats: list[Beat]) -> None:
    for beat in beats:
        group.claims[beat.partition] = _freed(_moved(group.claim(beat.partition), beat), offset)


def _freed(claim: Claim, offset: int) -> Claim:
    return replace(claim, held=False, last=offset, lag=0)


def _about_partition(group: GroupState, offset: int, record: records.PartitionRecord) -> Claim:
    claim = group.claim(record.partition)
    match record:
        case records.Seeking():
            require(record.if_token == claim.token, "the partition has a newer token")
            require(record.if_seeks == claim.seeks, "the position was set meanwhile")
            require(not claim.held or claim.held_by(record.who), "another member holds the partition")
            return _sought(claim, offset, record.position)
        case records.FreeingPartition():
            return _fenced(group, claim, offset, record)
        case records.ClaimingMessages():
            require(claim.held_by(record.who, record.token), "the sender does not hold the partition")
            require(record.if_seeks == claim.seeks, "the position was set meanwhile")
            require(record.end > max(claim.claimed or 0, claim.position or 0), "these messages were claimed before")
            return replace(claim, last=offset, claimed=record.end)
        case _:
            assert_never(record)


def _fenced(group: GroupState, claim: Claim, offset: int, record: records.FreeingPartition) -> Claim:
    """Free a partition under a token that no member has; the target gives it to another member, if there is one."""
    require(not group.pauses, "the group is paused")
    require(record.if_token == claim.token, "the partition has a newer token")
    freed_from = claim.owner.client_id if claim.held and claim.owner is not None else claim.freed_from
    freed = replace(_freed(claim, offset), token=claim.token + 1, owner=record.who, freed_from=freed_from)
    group.changed = offset if claim.held else group.changed
    return freed if record.position is None else _sought(freed, offset, record.position)


def _sought(claim: Claim, offset: int, position: int) -> Claim:
    """Move the position; offsets after it are processed again, so not given up."""
    past = tuple((start, min(end, position)) for start, end in claim.given_up + _lost(claim) if start < position)
    claim = replace(claim, last=offset, position=position, claimed=None, given_up=past, seeks=claim.seeks + 1)
    return losing(claim)


def _lost(claim: Claim) -> tuple[Span, ...]:
    """What the previous owner had claimed to process at most once and never reported as done."""
    if claim.claimed is None or claim.claimed <= (claim.position or 0):
        return ()
    return ((claim.position or 0, claim.claimed),)


def losing(claim: Claim, *lost: Span) -> Claim:
    """The claim with these losses listed too: neighbours as one, and of those too old to be listed only the count."""
    merged: list[Span] = []
    for start, end in claim.given_up + lost:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    old = merged[: max(0, len(merged) - LOSSES_LISTED_MAX)]
    dropped = sum(end - start for start, end in old)
    return replace(claim, given_up=tuple(merged[len(old) :]), given_up_before=claim.given_up_before + dropped)


def further(one: int | None, other: int | None) -> int | None:
    """The later of two positions; None means no position, unlike 0."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
