"""One reader's view of its group: the fold, and how long each member has been silent.

The fold is the same for every reader. Silence is this reader's own measure, on its monotonic clock since it read the
last record: a suspicion, never a fact (RULES M2).
"""

from __future__ import annotations

import zlib
from enum import Enum

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import ForgettingMember, Record, ReleaseGroup
from penstock.claims.protocol.snapshots import Snapshot
from penstock.claims.protocol.state import Claim, GroupState, MemberState
from penstock.logs.log import Partition

AGED_INTERVALS_MAX = 1.0
"""What append times alone make a present member older by: a broker's clock may step, also within one leader's epoch.

So a later member watches for another interval itself before it declares a member gone: two of its heartbeats.
"""


class Freshness(Enum):
    """How long a member has been silent: below one heartbeat interval, below two, or longer."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"


def freshness(silence_seconds: float, heartbeat_seconds: float) -> Freshness:
    if silence_seconds < heartbeat_seconds:
        return Freshness.FRESH
    return Freshness.UNKNOWN if silence_seconds <= 2 * heartbeat_seconds else Freshness.STALE


def coordination_partition(group: str, count: int) -> int:
    """Where the records of a group go; the same for every process."""
    return zlib.crc32(group.encode()) % count


class GroupView:
    """The state of one group, with the times at which this reader read about it."""

    def __init__(self, group: str, heartbeat_seconds: float) -> None:
        self.group = group
        self.heartbeat_seconds = heartbeat_seconds
        self.state = GroupState()
        self.broker_at = 0.0
        """The append time of the last record: the broker's clock."""
        self._passed = 0.0
        """Seconds that passed by the brokers' clocks, without the differences between the clocks of two leaders."""
        self._pause_ends: dict[str, float] = {}
        self.changed_at: float | None = None
        """When the last unbalanced change was read, and below when the first was."""
        self.unbalanced_since: float | None = None
        self._epoch: int | None = None
        self._last_read_at: dict[str, float] = {}
        self._appended: dict[str, float] = {}

    def snapshot(self, topic_id: str) -> Snapshot:
        remaining = {key: ends - self._passed for key, ends in self._pause_ends.items() if key in self.state.pauses}
        return Snapshot(topic_id, self.group, self.broker_at, self.state, self._epoch, remaining)

    def restore(self, snapshot: Snapshot, now: float) -> None:
        self.state = snapshot.state
        self.broker_at, self._epoch = snapshot.appended_at, snapshot.epoch
        for pause_id, remaining in snapshot.pauses_left.items():
            self._note_pause(pause_id, remaining)
        self._last_read_at = dict.fromkeys(self.state.members, now)
        self._appended = dict.fromkeys(self.state.members, snapshot.appended_at)
        self._note_changes(None, now)

    def read(self, offset: int, record: Record, now: float, appended_at: float, epoch: int | None = None) -> str | None:
        """Apply the record at an offset; returns why it was refused, None if it was accepted.

        `epoch` is that of the leader that appended it.
        """
        self.pass_time(appended_at, epoch)
        changed = self.state.changed
        refusal = apply(self.state, offset, record, appended_at)
        self._note_changes(changed, now)
        self._note_record(record.who.client_id, offset, now, appended_at)
        if isinstance(record, ReleaseGroup) and refusal is None:
            self._note_pause(record.pause_id, record.for_seconds)
        if isinstance(record, ForgettingMember) and refusal is None:
            self._note_record(record.client_id, offset, now, appended_at)
        return refusal

    def skip(self, offset: int, appended_at: float, epoch: int | None = None) -> None:
        """Pass over an offset that holds no record of this group."""
        self.pass_time(appended_at, epoch)
        self.state.next_offset = offset + 1

    def pass_time(self, appended_at: float, epoch: int | None) -> None:
        """Follow the broker's clock. A new leader has another one: what is older counts from its first record on.

        A clock that is set back goes on from there: otherwise no time would pass until it is where it was.
        """
        if epoch == self._epoch or self._epoch is None:
            self._passed += max(0.0, appended_at - self.broker_at)
        if epoch != self._epoch:
            self._epoch = epoch
            self._appended = dict.fromkeys(self._appended, appended_at)
        self.broker_at = appended_at

    def _note_pause(self, pause_id: str, for_seconds: float | None) -> None:
        self._pause_ends.pop(pause_id, None)
        if for_seconds is not None:
            self._pause_ends[pause_id] = self._passed + for_seconds

    def pause_is_over(self, pause_id: str) -> bool:
        """Whether the time of a pause has passed by the brokers' clocks."""
        return self._passed >= self._pause_ends.get(pause_id, float("inf"))

    def _note_changes(self, before: int | None, now: float) -> None:
        if not self.state.unbalanced:
            self.changed_at = self.unbalanced_since = None
        elif self.state.changed != before:
            self.changed_at = now
            self.unbalanced_since = now if self.unbalanced_since is None else self.unbalanced_since

    def _note_record(self, client_id: str, offset: int, now: float, appended_at: float) -> None:
        member = self.state.members.get(client_id)
        if member is None:
            self._last_read_at.pop(client_id, None)
            self._appended.pop(client_id, None)
        elif member.last == offset:
            self._last_read_at[client_id] = now
            self._appended[client_id] = appended_at

    def age_by(self, broker_now: float, now: float) -> None:
        """Learn how old records were before this reader started, from the append time of a record of its own."""
        for key, appended_at in self._appended.items():
            age = max(0.0, broker_now - appended_at)
            if self.state.members[key].present:
                age = min(age, AGED_INTERVALS_MAX * self.heartbeat_seconds)
            self._last_read_at[key] = min(self._last_read_at[key], now - age)

    def forgive(self, disconnected_seconds: float, now: float) -> None:
        """Do not count a time in which this reader read nothing, not even its own records, as the silence of others."""
        for key, read_at in self._last_read_at.items():
            self._last_read_at[key] = min(now, read_at + disconnected_seconds)

    def claim(self, partition: Partition) -> Claim:
        return self.state.claim(partition)

    def live_members(self, now: float) -> list[MemberState]:
        """Those that have not left and are not suspected."""
        members = self.state.members
        return [member for key, member in members.items() if member.present and not self.suspected(key, now)]

    def silence_seconds(self, client_id: str, now: float) -> float:
        """How long ago the last record of a member was read; 0 if none was."""
        return now - self._last_read_at.get(client_id, now)

    def suspected(self, client_id: str, now: float) -> bool:
        return freshness(self.silence_seconds(client_id, now), self.heartbeat_seconds) is Freshness.STALE
