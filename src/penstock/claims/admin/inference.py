"""Infers from the records of a truncated log what must have been true before its first record. Pure.

Only an accepted claim creates a token, and its owner uses it only after reading that claim back. So a record that
names a token above the known one, or the same token with another owner, proves that the known state is outdated.
For reading history only: members never guess (RULES M7).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.claims.protocol import records
from penstock.claims.protocol.records import Record, Who
from penstock.claims.protocol.state import Claim, Group, MemberState
from penstock.logs.log import Partition


def infer_earlier_state(group: Group, record: Record) -> list[tuple[Partition, Claim]]:
    """Add to the state before a record what the record proves about it; returns the claims that its sender held."""
    _of_members(group, record)
    held = []
    for partition, seen in _claims_seen(record):
        known = group.claim(partition)
        other = seen.held and (known.held or known.owner is None) and known.owner != seen.owner
        if seen.token > known.token or (seen.token == known.token and other):
            proved = seen if seen.token > known.token else replace(known, owner=seen.owner, held=True)
            group.claims[partition] = proved
            if proved.held:
                held.append((partition, proved))
    return held


def _of_members(group: Group, record: Record) -> None:
    client_id = record.who.client_id
    match record:
        case records.JoiningGroup():
            group.terms = group.terms or record.terms
            if record.if_last is not None:
                group.members.setdefault(client_id, MemberState(Who(client_id, ""), record.if_last))
        case records.ForgettingMember():
            group.members.setdefault(record.client_id, MemberState(Who(record.client_id, ""), record.if_last))
        case records.ReleaseGroup() | records.ResumingGroup() | records.FreeingPartition():
            # An administrator is no member.
            return
        case _:
            group.members.setdefault(client_id, MemberState(record.who, -1))
            if isinstance(record, records.BalancingGroup) and group.changed is None:
                group.changed = record.if_changed


def _claims_seen(record: Record) -> Iterator[tuple[Partition, Claim]]:
    """The claims that a record names, as its sender knew them."""
    match record:
        case records.Heartbeat() | records.ReleasingPartition() | records.LeavingGroup():
            for beat in record.beats:
                yield beat.partition, Claim(beat.token, record.who, True, position=beat.position, seeks=beat.seeks)
        case records.ClaimingPartition():
            for wish in record.wishes:
                yield wish.partition, Claim(wish.if_token)
        case records.Seeking():
            yield record.partition, Claim(record.if_token, seeks=record.if_seeks)
        case records.FreeingPartition():
            yield record.partition, Claim(record.if_token)
        case records.ClaimingMessages():
            yield record.partition, Claim(record.token, record.who, True, seeks=record.if_seeks)
        case records.OpeningRanges() | records.ClosingRanges():
            yield record.partition, Claim(record.token, record.who, True)
