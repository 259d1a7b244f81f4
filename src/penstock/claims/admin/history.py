"""The history of a group: who owned what, from when to when, at which positions, and why ownership changed. Pure.

Heartbeats and claimed messages are merged into the line of the claim that they belong to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, assert_never

from penstock.claims.admin.inference import infer_earlier_state
from penstock.claims.admin.lines import Change, History, HistoryStart, Line
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    BalancingGroup,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    ForgettingPartitions,
    FreeingPartition,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    RangeRecord,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
    partitions_of,
)
from penstock.claims.protocol.state import Claim, Group, MemberState, Span
from penstock.logs.log import Partition

LEFT_REASON = "the process ended"


@dataclass(frozen=True, slots=True)
class _Abandoned:
    """What a dead process held: who that was, and how long it had been silent."""

    client_id: str
    silent_seconds: float | None


@dataclass(slots=True)
class _Tenure:
    """The line of a claim, and how many heartbeats its owner had sent when it began."""

    line: int
    who: Who
    heartbeats: int


class HistoryReader:
    """Turns the records of one group, read in the order of its coordination partition, into lines."""

    def __init__(self, place: int = 0, start: int = 0) -> None:
        self._place = place
        self._start = start
        self._group = Group()
        self._lines: list[Line] = []
        self._tenures: dict[Partition, _Tenure] = {}
        self._refused_heartbeat_lines: dict[Who, int] = {}
        self._pause_lines: dict[str, int] = {}
        self._heartbeats: Counter[Who] = Counter()
        self._heard_at: dict[Who, float] = {}
        self._abandoned: dict[tuple[Partition, int | None], _Abandoned] = {}
        self._shared: set[Partition] = set()
        self._records = 0

    @property
    def heard(self) -> bool:
        """Whether anything of the group was read."""
        return bool(self._heard_at)

    def read(self, offset: int, appended_at: float, record: Record | None, fault: str = "") -> None:
        """Read one offset of the log; `fault` says why it holds no record of Penstock."""
        self._records += 1
        if record is None:
            if fault:
                self._add(self._line(appended_at, offset), Change.FOREIGN, reason=fault)
            return
        if self._start:
            infer_earlier_state(self._group, record)
        before = {each: self._group.claim(each) for each in partitions_of(record)}
        if isinstance(record, JoiningGroup | LeavingGroup | ForgettingMember):
            # All that a process held may be free after it.
            before = dict(self._group.claims)
        client_id = record.client_id if isinstance(record, ForgettingMember) else record.who.client_id
        member = self._group.members.get(client_id)
        refusal = apply(self._group, offset, record, appended_at)
        line = self._line(appended_at, offset, record.who.client_id)
        if refusal is None:
            self._accepted(line, record, before, member)
        else:
            self._refused(line, record, refusal)
        self._heard_at[record.who] = appended_at

    def history(self, limit: int | None = None) -> History:
        """The lines so far; with a limit the newest ones."""
        for partition in self._tenures:
            self._update_tenure(partition)
        starts = (HistoryStart(self._place, self._start),) if self._start else ()
        chosen = self._lines if limit is None else self._lines[max(0, len(self._lines) - limit) :]
        return History(tuple(chosen), starts, self._records)

    def _line(self, at: float, offset: int, who: str = "") -> Line:
        """What every line says; what it reports is said when it is added."""
        return Line(change=Change.REFUSED, at=at, place=self._place, offset=offset, who=who)

    # accepted records

    def _accepted(self, line: Line, record: Record, before: dict[Partition, Claim], member: MemberState | None) -> None:
        match record:
            case Heartbeat():
                self._heartbeats[record.who] += 1
                self._held_before(line, record)
            case JoiningGroup():
                again = member is not None and member.present
                self._add(line, Change.JOINED, reason="again, in a new process" if again else "")
                self._freed(line, before, "restarted")
            case LeavingGroup():
                for partition, claim in before.items():
                    if claim.held_by(record.who):
                        self._released(line, partition, claim, LEFT_REASON)
                self._add(line, Change.LEFT)
            case ForgettingMember():
                silent = None if member is None else self._since(member.who, line.at)
                change = Change.SILENT if record.client_id in self._group.members else Change.FORGOTTEN
                self._add(line, change, before=record.client_id, silent_seconds=silent)
                self._freed(line, before, f"{record.client_id} fell silent", silent)
            case BalancingGroup():
                target = self._group.target
                reason = f"{sum(map(len, target.values()))} partitions for {len(target)} members"
                self._add(line, Change.BALANCED, reason=reason)
            case ReleaseGroup():
                until_at = self._group.pauses[record.pause_id].until_at
                at = self._add(line, Change.PAUSED, pause_id=record.pause_id, reason=record.reason, until_at=until_at)
                self._pause_lines[record.pause_id] = at
            case ResumingGroup():
                self._add(line, Change.RESUMED, pause_id=record.pause_id)
                paused = self._pause_lines.get(record.pause_id)
                if paused is not None:
                    self._end(paused, Change.RESUMED, line.at)
            case ClaimingPartition():
                for partition, claim in before.items():
                    if self._group.claim(partition).last == line.offset:
                        self._claimed(line, partition, claim, record.who)
                    else:
                        self._refuse(line, record, "the partition changed meanwhile", partition=partition)
            case ReleasingPartition():
                for partition, claim in before.items():
                    if self._group.claim(partition).last == line.offset:
                        self._released(line, partition, claim, record.reason)
            case ForgettingPartitions():
                return
            case ClaimingRange() | FinishingRange() | ReturningRange() | GivingUpRange():
                self._about_range(line, record, before[record.partition])
            case _:
                self._about_partition(line, record, before[record.partition])

    def _about_partition(
        self,
        line: Line,
        record: Seeking | FreeingPartition | ClaimingMessages | OpeningRanges | ClosingRanges,
        before: Claim,
    ) -> None:
        after = self._group.claim(record.partition)
        line = replace(line, partition=record.partition, token=after.token)
        match record:
            case ClaimingMessages():
                tenure = self._tenures.get(record.partition)
                if tenure is not None:
                    self._change(tenure.line, claimed_end=record.end)
            case Seeking():
                lost = () if record.lost_from is None else ((record.lost_from, record.position),)
                self._sought(line, record, before, lost)
            case FreeingPartition():
                self._released(line, record.partition, before, record.reason)
                if record.position is not None:
                    self._sought(line, record, before)
            case OpeningRanges():
                self._shared.add(record.partition)
                self._add(line, Change.SHARED, start=record.start, reason="at most once" if record.at_most_once else "")
            case ClosingRanges():
                self._add(line, Change.UNSHARED, position=after.position)
            case _:
                assert_never(record)

    def _sought(
        self, line: Line, record: Seeking | FreeingPartition, before: Claim, lost: tuple[Span, ...] = ()
    ) -> None:
        line = replace(line, start=before.position, position=record.position, reason=record.reason)
        self._add(line, Change.SOUGHT, given_up=lost)

    def _claimed(self, line: Line, partition: Partition, before: Claim, who: Who) -> None:
        after = self._group.claim(partition)
        lost = after.given_up[len(before.given_up) :]
        line = replace(line, partition=partition, token=after.token, position=after.position, given_up=lost)
        abandoned = self._abandoned.pop((partition, None), None)
        if abandoned is None:
            # Nothing is known of a previous owner whose records are no longer in the log.
            at = self._add(line, Change.CLAIMED, before="" if before.owner is None else before.owner.client_id)
        else:
            change = Change.RESTARTED if abandoned.client_id == who.client_id else Change.TAKEN_OVER
            at = self._add(line, change, before=abandoned.client_id, silent_seconds=abandoned.silent_seconds)
        self._tenures[partition] = _Tenure(at, who, self._heartbeats[who])

    def _released(self, line: Line, partition: Partition, before: Claim, reason: str) -> None:
        after = self._group.claim(partition)
        lost = after.given_up[len(before.given_up) :]
        line = replace(line, partition=partition, token=after.token, position=after.position)
        self._add(line, Change.RELEASED, reason=reason, given_up=lost)
        self._end_tenure(partition, f"released: {reason}" if reason else "released", line.at)

    def _freed(self, line: Line, before: dict[Partition, Claim], how: str, silent: float | None = None) -> None:
        """All that a process held is nobody's now."""
        for partition, claim in before.items():
            after = self._group.claim(partition)
            if claim.held and not after.held and claim.owner is not None:
                self._end_tenure(partition, how, line.at)
                silent = self._since(claim.owner, line.at) if silent is None else silent
                self._abandoned[partition, None] = _Abandoned(claim.owner.client_id, silent)
            for was, lease in zip(claim.leases, after.leases, strict=False):
                if was.owner is not None and lease.owner is None:
                    self._abandoned[partition, lease.start] = _Abandoned(was.owner.client_id, silent)

    def _since(self, who: Who, at: float) -> float | None:
        return None if who not in self._heard_at else max(0.0, at - self._heard_at[who])

    def _about_range(self, line: Line, record: RangeRecord, before: Claim) -> None:
        after = self._group.claim(record.partition)
        lease = None if before.ranges is None else before.ranges.at(record.start)
        line = replace(line, partition=record.partition, token=after.token, position=after.position)
        line = replace(line, start=record.start, end=None if lease is None else lease.end)
        unknown = _Abandoned("", None)
        match record:
            case ClaimingRange():
                abandoned = self._abandoned.pop((record.partition, record.start), unknown)
                change = Change.RANGE_CLAIMED if abandoned is unknown else Change.RANGE_TAKEN_OVER
                line = replace(line, end=record.end, attempts=1 if lease is None else lease.attempts + 1)
                self._add(line, change, before=abandoned.client_id, silent_seconds=abandoned.silent_seconds)
            case FinishingRange():
                self._add(line, Change.RANGE_FINISHED)
            case ReturningRange():
                self._add(line, Change.RANGE_RETURNED)
            case GivingUpRange():
                abandoned = self._abandoned.pop((record.partition, record.start), unknown)
                line = replace(line, given_up=() if lease is None else ((lease.start, lease.end),))
                line = replace(line, before=abandoned.client_id, silent_seconds=abandoned.silent_seconds)
                self._add(line, Change.RANGE_GIVEN_UP)
            case _:
                assert_never(record)

    def _held_before(self, line: Line, record: Heartbeat) -> None:
        """A heartbeat about a claim whose beginning is not in the log."""
        for beat in record.beats:
            tenure = self._tenures.get(beat.partition)
            if not self._group.claim(beat.partition).held_by(record.who):
                continue
            if tenure is not None and self._lines[tenure.line].token != beat.token:
                # Inferred from the first records of a truncated log, and disproved by this heartbeat.
                self._end_tenure(beat.partition, "it had lost it already", line.at)
                tenure = None
            if tenure is None:
                line = replace(line, partition=beat.partition, token=beat.token, position=beat.position)
                at = self._add(line, Change.HELD_BEFORE)
                self._tenures[beat.partition] = _Tenure(at, record.who, self._heartbeats[record.who] - 1)

    # refused records

    def _refused(self, line: Line, record: Record, reason: str) -> None:
        match record:
            case Heartbeat():
                self._refused_heartbeat(line, record, reason)
            case ResumingGroup() | ForgettingMember() | BalancingGroup() | ForgettingPartitions():
                # Several members send it at once: one is accepted, and nothing is lost.
                return
            case JoiningGroup() | LeavingGroup() | ReleaseGroup():
                self._refuse(line, record, reason)
            case FinishingRange() | ReturningRange() | GivingUpRange():
                # The lease may be in the part of the log that is gone: then the verdict is unknown.
                if not self._start or record.partition in self._shared:
                    self._refuse(line, record, reason, partition=record.partition, start=record.start)
            case ClaimingRange():
                self._refuse(line, record, reason, partition=record.partition, start=record.start, end=record.end)
            case _:
                for partition in partitions_of(record):
                    self._refuse(line, record, reason, partition=partition)

    def _refused_heartbeat(self, line: Line, record: Heartbeat, reason: str) -> None:
        """All refused heartbeats of one process are one line; a first one without content asks for the time."""
        if self._start or record.who not in self._heard_at:
            return
        at = self._refused_heartbeat_lines.get(record.who)
        if at is None:
            at = self._refused_heartbeat_lines[record.who] = self._refuse(line, record, reason)
        self._change(at, heartbeats=self._lines[at].heartbeats + 1, last_at=line.at)

    def _refuse(self, line: Line, record: Record, reason: str, **more: Any) -> int:
        return self._add(line, Change.REFUSED, record=type(record).__name__, reason=reason, **more)

    # lines

    def _add(self, line: Line, change: Change, **more: Any) -> int:
        """Add a line that says more than the present one; returns its place."""
        self._lines.append(replace(line, change=change, **more))
        return len(self._lines) - 1

    def _change(self, at: int, **more: Any) -> None:
        self._lines[at] = replace(self._lines[at], **more)

    def _update_tenure(self, partition: Partition) -> None:
        """Heartbeats are counted once for all claims of their sender, and written down when somebody looks."""
        tenure = self._tenures[partition]
        count = self._heartbeats[tenure.who] - tenure.heartbeats
        if count:
            last_at, position = self._heard_at.get(tenure.who), self._group.claim(partition).position
            self._change(tenure.line, heartbeats=count, last_at=last_at, last_position=position)

    def _end_tenure(self, partition: Partition, how: str, at: float) -> None:
        if partition in self._tenures:
            self._update_tenure(partition)
            self._end(self._tenures.pop(partition).line, how, at)

    def _end(self, line: int, how: str, at: float) -> None:
        self._change(line, ended=how, ended_at=at)
