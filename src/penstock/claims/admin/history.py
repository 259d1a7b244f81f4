"""The history of a group: its records, each with the verdict of the fold, and who held which partition. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import ClaimingPartition, Heartbeat, Record
from penstock.claims.protocol.snapshots import Snapshot
from penstock.claims.protocol.state import GroupState
from penstock.logs.log import Partition


class RecordVerdict(StrEnum):
    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No snapshot holds the state before the record any more."""
    FOREIGN = "foreign"
    """Not a record of Penstock."""


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """What the log holds at an offset; `at` is the broker's append time, `reason` is why it is not applied."""

    offset: int
    at: float
    record: Record | None
    verdict: RecordVerdict
    reason: str = ""


TENURES_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Tenure:
    """A time in which a member held a partition under a token."""

    partition: Partition
    owner: str
    token: int
    start_at: float | None
    """None: it began before the records that were read."""
    end_at: float | None = None
    """None: it is held at the end of the history."""


class History:
    """Judges the offsets of a coordination partition in order, without heartbeats that change nothing."""

    def __init__(self, start: int, snapshots: Iterable[Snapshot] = ()) -> None:
        """`start` is the first offset to be read: unless it is 0, verdicts begin with the oldest snapshot after it."""
        self.start = start
        self.records: list[JudgedRecord] = []
        self.count = 0
        """How many offsets were read."""
        self.exists = False
        """Whether any record is of the group."""
        self._ended: deque[Tenure] = deque(maxlen=TENURES_MAX)
        self._open: dict[Partition, Tenure] = {}
        self._group = GroupState() if start == 0 else None
        later = [snapshot.state for snapshot in snapshots if snapshot.state.next_offset >= start]
        self._oldest = min(later, key=lambda state: state.next_offset, default=None)

    def read(self, offset: int, appended_at: float, record: Record | None, fault: str = "") -> None:
        """Read one offset; `fault` is why it holds no record of Penstock."""
        self.count += 1
        if self._group is None and self._oldest is not None and offset >= self._oldest.next_offset:
            self._group = self._oldest.copy()
            self._follow(None)
        if record is None:
            if fault:
                self.records.append(JudgedRecord(offset, appended_at, None, RecordVerdict.FOREIGN, fault))
            return
        self.exists = True
        verdict, reason = self._judge(offset, appended_at, record)
        if not isinstance(record, Heartbeat) or verdict is RecordVerdict.REFUSED:
            self._follow(appended_at)
            self.records.append(JudgedRecord(offset, appended_at, record, verdict, reason))

    @property
    def tenures(self) -> list[Tenure]:
        """The newest tenures, as far as verdicts were possible; those that go on come last."""
        return [*self._ended, *self._open.values()]

    def _follow(self, at: float | None) -> None:
        """Compare the claims with the tenures before."""
        for partition, claim in () if self._group is None else self._group.claims.items():
            owner = claim.owner.client_id if claim.held and claim.owner is not None else None
            before = self._open.get(partition)
            if before is not None and (before.owner, before.token) != (owner, claim.token):
                self._ended.append(replace(self._open.pop(partition), end_at=at))
            if owner is not None and partition not in self._open:
                self._open[partition] = Tenure(partition, owner, claim.token, at)

    def _judge(self, offset: int, appended_at: float, record: Record) -> tuple[RecordVerdict, str]:
        if self._group is None:
            return RecordVerdict.UNKNOWN, "no snapshot is old enough"
        refusal = apply(self._group, offset, record, appended_at)
        if refusal is not None:
            return RecordVerdict.REFUSED, refusal
        if isinstance(record, ClaimingPartition):
            lost = [
                request.partition for request in record.requests if self._group.claim(request.partition).last != offset
            ]
            return RecordVerdict.APPLIED, f"not granted: {', '.join(map(str, lost))}" if lost else ""
        return RecordVerdict.APPLIED, ""
