"""The history of a group: who owned what, from when to when, at which positions, and why ownership changed. Pure.

Nearly every line is a difference between the states before and after a record: heartbeats make none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from msgspec import structs

from penstock.claims.protocol import records
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import Record, Who, partitions_of
from penstock.claims.protocol.state import Claim, Group, MemberState, Span
from penstock.logs.log import Partition


class Change(StrEnum):
    """What a line of the history reports."""

    JOINED = "joined"
    LEFT = "left"
    SILENT = "silent"
    """Silent for so long that all it held is free."""
    FORGOTTEN = "forgotten"
    HELD_BEFORE = "held before"
    """Already owned in the first records that were read; the claim itself is no longer in the log."""
    CLAIMED = "claimed"
    RELEASED = "released"
    REFUSED = "refused"
    SOUGHT = "sought"
    PAUSED = "paused"
    RESUMED = "resumed"
    SHARED = "shared"
    UNSHARED = "unshared"
    RANGE_CLAIMED = "range claimed"
    RANGE_FINISHED = "range finished"
    RANGE_RETURNED = "range returned"
    RANGE_GIVEN_UP = "range given up"
    BALANCED = "balanced"
    FOREIGN = "foreign"


_OF_RANGES = {
    records.ClaimingRange: Change.RANGE_CLAIMED,
    records.FinishingRange: Change.RANGE_FINISHED,
    records.GivingUpRange: Change.RANGE_GIVEN_UP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One change. Instants are append times of the broker, in seconds since 1970; None and "" mean: does not apply."""

    change: Change = Change.REFUSED
    at: float
    offset: int
    who: str = ""
    """Who sent the record."""
    partition: Partition | None = None
    token: int | None = None
    position: int | None = None
    """Where the owner starts, or where it stops."""
    before: str = ""
    """The owner so far, or the holder of the range."""
    silent_seconds: float | None = None
    """How long it had been silent."""
    reason: str = ""
    record: str = ""
    """The kind of a refused record."""
    start: int | None = None
    end: int | None = None
    attempts: int | None = None
    given_up: tuple[Span, ...] = ()
    """Offsets that this change gave up for good: claimed at most once and never reported as processed."""
    pause_id: str = ""
    until_at: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Lines in the order of the log; `records` is how many were read, from the offset `start` on."""

    lines: tuple[Line, ...]
    start: int = 0
    records: int = 0


class HistoryReader:
    """Turns the records of one group, read in the order of its coordination partition, into lines."""

    def __init__(self, start: int = 0) -> None:
        """`start` is the first offset to be read; what came before it is inferred."""
        self.lines: list[Line] = []
        self.records = 0
        self.heard_at: dict[Who, float] = {}
        """When each process of the group sent its last record."""
        self._start = start
        self._group = Group()
        self._ignored: set[Who] = set()

    def read(self, offset: int, appended_at: float, record: Record | None, fault: str = "") -> None:
        """Read one offset of the log; `fault` says why it holds no record of Penstock."""
        self.records += 1
        if record is not None:
            self.lines += self._read(Line(at=appended_at, offset=offset, who=record.who.client_id), record)
            self.heard_at[record.who] = appended_at
        elif fault:
            self.lines.append(Line(change=Change.FOREIGN, at=appended_at, offset=offset, reason=fault))

    def _read(self, line: Line, record: Record) -> Iterator[Line]:
        group = self._group
        if self._start:
            for partition, claim in _infer_earlier_state(group, record):
                told = replace(line, change=Change.HELD_BEFORE, partition=partition)
                yield replace(told, token=claim.token, position=claim.position)
        # All that a process held may be free after a record about it.
        of_process = isinstance(record, records.JoiningGroup | records.LeavingGroup | records.ForgettingMember)
        touched = sorted(group.claims) if of_process else partitions_of(record)
        before = {each: group.claim(each) for each in touched}
        forgotten = record.client_id if isinstance(record, records.ForgettingMember) else None
        member = group.members.get(line.who if forgotten is None else forgotten)
        refusal = apply(group, line.offset, record, line.at)
        if refusal is not None:
            yield from self._refused(line, record, refusal, member)
            return
        if forgotten is not None and member is not None and member.who in self.heard_at:
            line = replace(line, silent_seconds=max(0.0, line.at - self.heard_at[member.who]))
        yield from self._of_group(line, record, member)
        for partition, claim in before.items():
            after = group.claim(partition)
            if after is not claim:
                yield from _of_claim(replace(line, partition=partition), record, claim, after)
            elif isinstance(record, records.ClaimingPartition):
                told = replace(line, record=type(record).__name__, partition=partition)
                yield replace(told, reason="the partition changed meanwhile")

    def _of_group(self, line: Line, record: Record, member: MemberState | None) -> Iterator[Line]:
        present = member is not None and member.present
        match record:
            case records.JoiningGroup():
                yield replace(line, change=Change.JOINED, reason="again, in a new process" if present else "")
            case records.LeavingGroup():
                yield replace(line, change=Change.LEFT)
            case records.ForgettingMember():
                yield replace(line, change=Change.SILENT if present else Change.FORGOTTEN, before=record.client_id)
            case records.BalancingGroup():
                target = self._group.target
                shared = f"{sum(map(len, target.values()))} partitions for {len(target)} members"
                # What members want may be known only from records that are gone.
                yield replace(line, change=Change.BALANCED, reason="" if self._start else shared)
            case records.ReleaseGroup():
                until_at = self._group.pauses[record.pause_id].until_at
                told = replace(line, change=Change.PAUSED, pause_id=record.pause_id, until_at=until_at)
                yield replace(told, reason=record.reason)
            case records.ResumingGroup():
                yield replace(line, change=Change.RESUMED, pause_id=record.pause_id)

    def _refused(self, line: Line, record: Record, reason: str, member: MemberState | None) -> Iterator[Line]:
        line = replace(line, record=type(record).__name__, reason=reason)
        match record:
            case records.ForgettingMember() | records.BalancingGroup() | records.ResumingGroup():
                # Several members send it at once: one is accepted, and nothing is lost.
                return
            case records.ForgettingPartitions():
                return
            case records.Heartbeat():
                # One line for each process that was taken for dead; one that has never joined only asks for the time.
                if member is not None and member.who == record.who and record.who not in self._ignored:
                    self._ignored.add(record.who)
                    yield line
            case _ if self._start and isinstance(record, records.RangeRecord | records.ClosingRanges):
                # The ranges may have been opened by a record that is gone: then the verdict is unknown.
                return
            case _:
                line = replace(line, start=getattr(record, "start", None), end=getattr(record, "end", None))
                for partition in partitions_of(record) or (None,):
                    yield replace(line, partition=partition)


def _of_claim(line: Line, record: Record, before: Claim, after: Claim) -> Iterator[Line]:
    """What a record changed about one claim."""
    owner = "" if before.owner is None else before.owner.client_id
    given_up = _given_up(before, after)
    line = replace(line, token=after.token, position=after.position, reason=_reason(record))
    if not after.held and (before.held or after.token > before.token):
        yield replace(line, change=Change.RELEASED, before=owner if before.held else "", given_up=given_up)
        given_up = ()
    if after.held and after.token > before.token:
        yield replace(line, change=Change.CLAIMED, before=owner, given_up=given_up)
    if after.seeks > before.seeks:
        yield replace(line, change=Change.SOUGHT, start=before.position, given_up=given_up)
    if before.ranges is None and after.ranges is not None:
        once = "at most once" if after.ranges.at_most_once else ""
        yield replace(line, change=Change.SHARED, start=after.ranges.next, reason=once)
    elif before.ranges is not None and after.ranges is None and after.held:
        yield replace(line, change=Change.UNSHARED)
    elif after.ranges is not None:
        yield from _of_ranges(replace(line, given_up=given_up), record, before, after)


def _of_ranges(line: Line, record: Record, before: Claim, after: Claim) -> Iterator[Line]:
    was, now = ({each.start: each for each in claim.leases} for claim in (before, after))
    for start, lease in (was | now).items():
        former = was.get(start)
        if former == now.get(start) or (former is not None and former.done):
            continue
        owner = "" if former is None or former.owner is None else former.owner.client_id
        change = _OF_RANGES.get(type(record), Change.RANGE_RETURNED)
        yield replace(line, change=change, before=owner, start=start, end=lease.end, attempts=lease.attempts)


def _given_up(before: Claim, after: Claim) -> tuple[Span, ...]:
    """The losses that are new; the first of them may be listed together with the last one before."""
    known = before.given_up[-1][1] if before.given_up else 0
    return tuple((max(start, known), end) for start, end in after.given_up if end > known)


def _reason(record: Record) -> str:
    match record:
        case records.LeavingGroup():
            return "the process ended"
        case records.JoiningGroup():
            return "restarted"
        case records.ForgettingMember():
            return "silent"
        case _:
            return getattr(record, "reason", "")


# a truncated log: what must have been true before its first record


def _infer_earlier_state(group: Group, record: Record) -> list[tuple[Partition, Claim]]:
    """Add to the state before a record what the record proves about it; returns the claims that its sender held.

    Only an accepted claim creates a token, and its owner uses it only after reading that claim back. So a record that
    names a token above the known one, or the same token with another owner, proves that the known state is outdated.
    For reading history only: members never guess (RULES M7).
    """
    _of_members(group, record)
    held = []
    for partition, seen in _claims_seen(record):
        known = group.claim(partition)
        other = seen.held and (known.held or known.owner is None) and known.owner != seen.owner
        if seen.token > known.token or (seen.token == known.token and other):
            proved = seen if seen.token > known.token else structs.replace(known, owner=seen.owner, held=True)
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
