"""Infers from the records of a truncated log what must have been true before its first record. Pure.

Only an accepted claim creates a token, and its owner uses it only after reading that claim back. So a record that
names a token above the known one, or the same token with another owner, proves that the known state is outdated.
For reading history only: members never guess (RULES M7).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from penstock.claims.protocol.records import (
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
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
)
from penstock.claims.protocol.state import Claim, Group, LogState, MemberState, Pause, Ranges
from penstock.logs.log import Partition


def infer_earlier_state(state: LogState, record: Record) -> LogState:
    """The state before a record, with whatever the record proves about it."""
    group = state.group(record.group)
    better = _infer(group, record)
    return state if better is group else replace(state, groups={**state.groups, record.group: better})


def _infer(group: Group, record: Record) -> Group:
    match record:
        case JoiningGroup() | LeavingGroup() | ForgettingMember():
            return _of_member(group, record)
        case Heartbeat():
            return _of_beats(group, record)
        case ReleaseGroup():
            return group
        case ResumingGroup():
            if record.pause_id in group.pauses:
                return group
            return replace(group, pauses={**group.pauses, record.pause_id: Pause("", None, "")})
        case _:
            return _of_partition(group, record)


def _of_member(group: Group, record: JoiningGroup | LeavingGroup | ForgettingMember) -> Group:
    client_id = record.client_id if isinstance(record, ForgettingMember) else record.who.client_id
    if client_id in group.members:
        return group
    last = 0 if isinstance(record, LeavingGroup) else record.if_last
    if last is None:
        return group
    who = record.who if isinstance(record, LeavingGroup) else Who(client_id, "")
    return replace(group, members={**group.members, client_id: MemberState(who, last)})


def _of_beats(group: Group, record: Heartbeat) -> Group:
    claims = dict(group.claims)
    for beat in record.beats:
        known = claims.get(beat.partition, Claim())
        if _proves(known, beat.token, record.who):
            claims[beat.partition] = _owned(known, beat.token, record.who, beat.position)
    members = dict(group.members)
    if record.presence is not None and record.who.client_id not in members:
        members[record.who.client_id] = MemberState(record.who, 0, True, record.presence)
    changed = len(members) != len(group.members) or claims != group.claims
    return replace(group, claims=claims, members=members) if changed else group


def _of_partition(group: Group, record: PartitionRecord) -> Group:
    known = group.claim(record.partition)
    match record:
        case ClaimingPartition():
            if record.if_token > known.token or (known.last is None and record.if_last is not None):
                return _with(group, record.partition, Claim(record.if_token, last=record.if_last))
        case Seeking():
            if record.if_token > known.token:
                return _with(group, record.partition, Claim(record.if_token))
        case ReleasingPartition() | ClaimingMessages() | OpeningRanges():
            if _proves(known, record.token, record.who):
                return _with(group, record.partition, _owned(known, record.token, record.who))
        case ClosingRanges():
            if _proves(known, record.token, record.who):
                owned = replace(_owned(known, record.token, record.who), ranges=Ranges(0))
                return _with(group, record.partition, owned)
        case ClaimingRange():
            return _of_range(group, known, record)
        case FinishingRange() | ReturningRange() | GivingUpRange():
            # The end of the range and its holder are in the part of the log that is gone.
            return group
        case _:
            assert_never(record)
    return group


def _of_range(group: Group, known: Claim, record: ClaimingRange) -> Group:
    """A new range is leased: so the partition is shared, and all before it is leased or done."""
    if record.if_last is not None or record.token < known.token:
        return group
    if record.token == known.token and known.ranges is not None:
        return group
    owner = known.owner if record.token == known.token else None
    shared = Claim(record.token, owner, True, known.last, known.position, ranges=Ranges(record.start))
    return _with(group, record.partition, shared)


def _proves(known: Claim, token: int, who: Who) -> bool:
    return token > known.token or (token == known.token and known.held and known.owner != who)


def _owned(known: Claim, token: int, who: Who, position: int | None = None) -> Claim:
    if token == known.token:
        return replace(known, owner=who, held=True)
    return Claim(token, who, True, None, position)


def _with(group: Group, partition: Partition, claim: Claim) -> Group:
    return replace(group, claims={**group.claims, partition: claim})
