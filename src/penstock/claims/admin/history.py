"""The history of a group: who owned what, from when to when, at which positions, and why ownership changed. Pure.

Heartbeats and claimed messages are merged into the line of the claim that they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from penstock.claims.admin.inference import infer_earlier_state
from penstock.claims.protocol.fold import apply
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
from penstock.claims.protocol.state import Claim, Group, LogState
from penstock.logs.log import Partition

Span = tuple[int, int]


class Change(StrEnum):
    """What a line of the history reports."""

    JOINED = "joined"
    LEFT = "left"
    FORGOTTEN = "forgotten"
    HELD_BEFORE = "held before"
    """Already owned in the first records that were read; the claim itself is no longer in the log."""
    CLAIMED = "claimed"
    TAKEN_OVER = "taken over"
    RESTARTED = "restarted"
    """A new process with the same client id took its claim back."""
    RELEASED = "released"
    REFUSED = "refused"
    SOUGHT = "sought"
    PAUSED = "paused"
    RESUMED = "resumed"
    SHARED = "shared"
    UNSHARED = "unshared"
    RANGE_CLAIMED = "range claimed"
    RANGE_TAKEN_OVER = "range taken over"
    RANGE_FINISHED = "range finished"
    RANGE_RETURNED = "range returned"
    RANGE_GIVEN_UP = "range given up"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One change. Instants are append times of the broker, in seconds since 1970; None and "" mean: does not apply."""

    change: Change
    at: float
    place: int
    offset: int
    who: str = ""
    partition: Partition | None = None
    token: int | None = None
    position: int | None = None
    """Where the owner starts, or where it stops."""
    before: str = ""
    """The previous owner, or previous holder of the range."""
    silent_seconds: float | None = None
    """How long the previous one had been silent."""
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
    places: int = 0
    """How many coordination partitions carry a pause or resume."""
    heartbeats: int = 0
    last_at: float | None = None
    last_position: int | None = None
    claimed_end: int | None = None
    """Everything below was claimed for processing at most once."""
    ended: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """Where the history of one coordination partition starts, if not at its first record."""

    place: int
    offset: int


@dataclass(frozen=True, slots=True)
class History:
    """Lines in the order of their append times; `records` is how many were read."""

    lines: tuple[Line, ...]
    starts: tuple[HistoryStart, ...] = ()
    records: int = 0


class HistoryReader:
    """Turns the records of one group, read in the order of each coordination partition, into lines."""

    def __init__(self, group: str, starts: dict[int, int] | None = None) -> None:
        self._group = group
        self._starts = {place: offset for place, offset in (starts or {}).items() if offset > 0}
        self._folds: dict[int, LogState] = {}
        self._lines: list[Line] = []
        self._claim_lines: dict[Partition, int] = {}
        self._refused_heartbeat_lines: dict[tuple[int, Who], int] = {}
        self._pause_lines: dict[tuple[Change, str], int] = {}
        self._last_at: dict[tuple[Partition, int | None], float] = {}
        self._shared: set[Partition] = set()
        self._records = 0

    def read(self, place: int, offset: int, appended_at: float, record: Record | None, fault: str = "") -> None:
        """Read one offset of the log; `fault` says why it holds no record of Penstock."""
        self._records += 1
        if record is None:
            self._add(Line(change=Change.FOREIGN, at=appended_at, place=place, offset=offset, reason=fault))
            return
        if record.group != self._group:
            return
        before = self._folds.get(place, LogState())
        if place in self._starts:
            before = infer_earlier_state(before, record)
        self._folds[place], refusal = apply(before, offset, record)
        line = Line(change=Change.REFUSED, at=appended_at, place=place, offset=offset, who=record.who.client_id)
        if refusal is None:
            self._accepted(line, record, before.group(self._group), self._folds[place].group(self._group))
        else:
            self._refused(line, record, refusal)

    def history(self, limit: int | None = None) -> History:
        """The lines so far; with a limit the newest ones."""
        lines = sorted(self._lines, key=lambda each: (each.at, each.place, each.offset))
        starts = tuple(HistoryStart(place, offset) for place, offset in sorted(self._starts.items()))
        chosen = lines if limit is None else lines[max(0, len(lines) - limit) :]
        return History(tuple(chosen), starts, self._records)

    # accepted records

    def _accepted(self, line: Line, record: Record, before: Group, after: Group) -> None:
        match record:
            case Heartbeat():
                self._renewed(line, record, after)
            case JoiningGroup():
                known = before.members.get(line.who)
                again = known is not None and known.present
                reason = "again, in a new process" if again else ""
                self._add(replace(line, change=Change.JOINED, reason=reason))
            case LeavingGroup():
                self._add(replace(line, change=Change.LEFT))
            case ForgettingMember():
                self._add(replace(line, change=Change.FORGOTTEN, before=record.client_id))
            case ReleaseGroup():
                changed = replace(line, change=Change.PAUSED, pause_id=record.pause_id, reason=record.reason)
                self._add_once(replace(changed, until_at=record.until_at))
            case ResumingGroup():
                self._add_once(replace(line, change=Change.RESUMED, pause_id=record.pause_id))
                paused = self._pause_lines.get((Change.PAUSED, record.pause_id))
                if paused is not None:
                    self._end(paused, Change.RESUMED, line.at)
            case _:
                changed = replace(line, partition=record.partition, token=after.claim(record.partition).token)
                self._about_partition(changed, record, before.claim(record.partition), after.claim(record.partition))

    def _about_partition(self, line: Line, record: PartitionRecord, before: Claim, after: Claim) -> None:
        partition = record.partition
        silent = self._silent(partition, None, line.at)
        match record:
            case ClaimingPartition():
                self._claimed(line, record, before, after, silent)
            case ReleasingPartition():
                lost = after.given_up[len(before.given_up) :]
                changed = replace(line, change=Change.RELEASED, position=after.position, reason=record.reason)
                self._add(replace(changed, given_up=lost))
                self._end_claim(partition, f"released: {record.reason}" if record.reason else "released", line.at)
            case ClaimingMessages():
                self._update_claim(partition, claimed_end=record.end)
            case Seeking():
                changed = replace(line, change=Change.SOUGHT, position=record.position, reason=record.reason)
                self._add(replace(changed, start=before.position))
            case OpeningRanges():
                self._shared.add(partition)
                reason = "at most once" if record.at_most_once else ""
                self._add(replace(line, change=Change.SHARED, start=record.start, reason=reason))
            case ClosingRanges():
                self._add(replace(line, change=Change.UNSHARED, position=after.position))
            case ClaimingRange() | FinishingRange() | ReturningRange() | GivingUpRange():
                self._about_range(line, record, before, after)
                return
            case _:
                assert_never(record)
        self._last_at[partition, None] = line.at

    def _claimed(
        self, line: Line, record: ClaimingPartition, before: Claim, after: Claim, silent: float | None
    ) -> None:
        lost = after.given_up[len(before.given_up) :]
        line = replace(line, position=after.position, given_up=lost)
        if before.held and before.owner is not None:
            same = before.owner.client_id == record.who.client_id
            change = Change.RESTARTED if same else Change.TAKEN_OVER
            self._end_claim(record.partition, "restarted" if same else f"taken over by {line.who}", line.at)
            line = replace(line, change=change, before=before.owner.client_id, silent_seconds=silent)
        else:
            # Nothing is known of a previous owner whose records are no longer in the log.
            owner = "" if before.owner is None else before.owner.client_id
            line = replace(line, change=Change.CLAIMED, before=owner)
        self._claim_lines[record.partition] = self._add(line)

    def _about_range(
        self,
        line: Line,
        record: ClaimingRange | FinishingRange | ReturningRange | GivingUpRange,
        before: Claim,
        after: Claim,
    ) -> None:
        lease = None if before.ranges is None else before.ranges.at(record.start)
        holder = "" if lease is None or lease.owner is None else lease.owner.client_id
        line = replace(line, start=record.start, end=None if lease is None else lease.end, position=after.position)
        silent = self._silent(record.partition, record.start, line.at)
        match record:
            case ClaimingRange():
                attempts = 1 if lease is None else lease.attempts + 1
                change = Change.RANGE_CLAIMED if record.if_last is None or not holder else Change.RANGE_TAKEN_OVER
                taken = {"before": holder, "silent_seconds": silent} if change is Change.RANGE_TAKEN_OVER else {}
                self._add(replace(line, change=change, end=record.end, attempts=attempts, **taken))  # type: ignore[arg-type]
            case FinishingRange():
                self._add(replace(line, change=Change.RANGE_FINISHED))
            case ReturningRange():
                self._add(replace(line, change=Change.RANGE_RETURNED))
            case GivingUpRange():
                lost = () if lease is None else ((lease.start, lease.end),)
                changed = replace(line, change=Change.RANGE_GIVEN_UP, before=holder, given_up=lost)
                self._add(replace(changed, silent_seconds=silent if holder else None))
            case _:
                assert_never(record)
        self._last_at[record.partition, record.start] = line.at

    def _renewed(self, line: Line, record: Heartbeat, after: Group) -> None:
        for beat in record.beats:
            claim = after.claim(beat.partition)
            if claim.last != line.offset:
                continue
            self._last_at[beat.partition, None] = line.at
            at = self._claim_lines.get(beat.partition)
            if at is not None and self._lines[at].token != beat.token:
                # Inferred from the first records of a truncated log, and disproved by this heartbeat.
                self._end_claim(beat.partition, "it had lost it already", line.at)
                at = None
            if at is None:
                changed = replace(line, change=Change.HELD_BEFORE, partition=beat.partition, token=beat.token)
                self._claim_lines[beat.partition] = self._add(replace(changed, position=beat.position))
            known = self._lines[self._claim_lines[beat.partition]]
            self._update_claim(
                beat.partition, heartbeats=known.heartbeats + 1, last_at=line.at, last_position=claim.position
            )
        for renewed in record.ranges:
            if any(lease.last == line.offset for lease in after.claim(renewed.partition).leases):
                self._last_at[renewed.partition, renewed.start] = line.at

    # refused records

    def _refused(self, line: Line, record: Record, reason: str) -> None:
        line = replace(line, record=type(record).__name__, reason=reason)
        match record:
            case Heartbeat():
                self._refused_heartbeat(line, record)
            case ResumingGroup() | ForgettingMember():
                # Several members send it at once: one is accepted, and nothing is lost.
                return
            case JoiningGroup() | LeavingGroup() | ReleaseGroup():
                self._add(line)
            case FinishingRange() | ReturningRange() | GivingUpRange():
                # The lease may be in the part of the log that is gone: then the verdict is unknown.
                if line.place not in self._starts or record.partition in self._shared:
                    self._add(replace(line, partition=record.partition, start=record.start))
            case ClaimingRange():
                self._add(replace(line, partition=record.partition, start=record.start, end=record.end))
            case _:
                self._add(replace(line, partition=record.partition))

    def _refused_heartbeat(self, line: Line, record: Heartbeat) -> None:
        """All refused heartbeats of one process are one line."""
        if line.place in self._starts and not record.beats:
            return
        at = self._refused_heartbeat_lines.get((line.place, record.who))
        if at is None:
            partition = record.beats[0].partition if len(record.beats) == 1 else None
            at = self._refused_heartbeat_lines[line.place, record.who] = self._add(replace(line, partition=partition))
        self._lines[at] = replace(self._lines[at], heartbeats=self._lines[at].heartbeats + 1, last_at=line.at)

    # lines

    def _add(self, line: Line) -> int:
        self._lines.append(line)
        return len(self._lines) - 1

    def _add_once(self, line: Line) -> None:
        """A pause is in every coordination partition and is one line, at its first append time."""
        at = self._pause_lines.get((line.change, line.pause_id))
        if at is None:
            self._pause_lines[line.change, line.pause_id] = self._add(replace(line, places=1))
            return
        known = self._lines[at]
        first = line if line.at < known.at else known
        self._lines[at] = replace(known, at=first.at, place=first.place, offset=first.offset, places=known.places + 1)

    def _update_claim(self, partition: Partition, **content: int | float | None) -> None:
        at = self._claim_lines.get(partition)
        if at is not None:
            self._lines[at] = replace(self._lines[at], **content)  # type: ignore[arg-type]

    def _end_claim(self, partition: Partition, how: str, at: float) -> None:
        line = self._claim_lines.pop(partition, None)
        if line is not None:
            self._end(line, how, at)

    def _end(self, line: int, how: str, at: float) -> None:
        self._lines[line] = replace(self._lines[line], ended=how, ended_at=at)

    def _silent(self, partition: Partition, start: int | None, at: float) -> float | None:
        last_at = self._last_at.get((partition, start))
        return None if last_at is None else max(0.0, at - last_at)
