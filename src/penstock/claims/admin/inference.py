"""Infers from the records of a truncated log what must have been true before its first record. Pure.

Only an accepted claim creates a token, and its owner uses it only after reading that claim back. So a record that
names a token above the known one, or the same token with another owner, proves that the known state is outdated.
For reading history only: members never guess (RULES M7).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from penstock.claims.protocol.records import (
    BalancingGroup,
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    ForgettingMember,
    FreeingPartition,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    Seeking,
    Who,
)
from penstock.claims.protocol.state import Claim, Group, MemberState, Pause, Ranges
from penstock.logs.log import Partition


def infer_earlier_state(group: Group, record: Record) -> None:
    """Add to the state before a record whatever the record proves about it."""
    _of_sender(group, record)
    match record:
        case JoiningGroup():
            _of_join(group, record)
        case ForgettingMember():
            known = group.members.get(record.client_id)
            who = Who(record.client_id, "") if known is None else known.who
            if known is None or known.last < 0:
                group.members[record.client_id] = MemberState(who, record.if_last)
        case BalancingGroup():
            group.changed = record.if_changed if group.changed is None else group.changed
        case ResumingGroup():
            group.pauses.setdefault(record.pause_id, Pause("", None, ""))
        case Heartbeat() | ReleasingPartition() | LeavingGroup():
            _of_beats(group, record.who, record.beats)
        case ClaimingPartition():
            for wish in record.wishes:
                _of_token(group, wish.partition, wish.if_token)
        case Seeking() | FreeingPartition():
            _of_token(group, record.partition, record.if_token)
        case ClaimingMessages() | OpeningRanges():
            _of_beats(group, record.who, [Beat(record.partition, record.token)])
        case ClosingRanges():
            if _proves(group.claim(record.partition), record.token, record.who):
                _of_beats(group, record.who, [Beat(record.partition, record.token)])
                group.claims[record.partition] = replace(group.claims[record.partition], ranges=Ranges(0))
        case ClaimingRange():
            _of_range(group, record)
        case _:
            # The end of the range and its holder are in the part of the log that is gone.
            return


def _of_sender(group: Group, record: Record) -> None:
    """Whoever speaks without joining has joined before; `last` below 0 says that nobody has read when."""
    outsider = isinstance(record, JoiningGroup | ForgettingMember | ReleaseGroup | ResumingGroup | FreeingPartition)
    if not outsider and record.who.client_id not in group.members:
        group.members[record.who.client_id] = MemberState(record.who, -1)


def _of_join(group: Group, record: JoiningGroup) -> None:
    group.terms = record.terms if group.terms is None else group.terms
    known = group.members.get(record.who.client_id)
    if record.if_last is not None and known is None:
        group.members[record.who.client_id] = MemberState(Who(record.who.client_id, ""), record.if_last)


def _of_beats(group: Group, who: Who, beats: Iterable[Beat]) -> None:
    for beat in beats:
        known = group.claim(beat.partition)
        if beat.token == known.token and _proves(known, beat.token, who):
            group.claims[beat.partition] = replace(known, owner=who, held=True)
        elif _proves(known, beat.token, who):
            group.claims[beat.partition] = Claim(beat.token, who, True, None, beat.position, seeks=beat.seeks)


def _of_token(group: Group, partition: Partition, token: int) -> None:
    if token > group.claim(partition).token:
        group.claims[partition] = Claim(token)


def _of_range(group: Group, record: ClaimingRange) -> None:
    """A new range is leased: so the partition is shared, and all before it is leased or done."""
    known = group.claim(record.partition)
    if record.if_lease is not None or record.token < known.token:
        return
    if record.token == known.token and known.ranges is not None:
        return
    owner = known.owner if record.token == known.token else None
    shared = Claim(record.token, owner, True, known.last, known.position, ranges=Ranges(record.start))
    group.claims[record.partition] = shared


def _proves(known: Claim, token: int, who: Who) -> bool:
    return token > known.token or (token == known.token and known.held and known.owner != who)
