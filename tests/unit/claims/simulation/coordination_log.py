"""The coordination partition of a simulated group: brokers with clocks, snapshots, retention and losses."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.claims.protocol.codec import decode, encode
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot, snapshots_of
from penstock.claims.protocol.state import GroupState
from tests.support.coordination import GROUP

PLACES = 8
BEGAN_AT = 1e6
SNAPSHOTS_KEPT = 5
"""Compaction is lazy: some older ones are read, too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the log. `behind` is the state that every reader must have after it."""

    record: Record
    appended_at: float
    epoch: int
    visible_at: float
    behind: GroupState


@dataclass(slots=True)
class CoordinationLog:
    """The records of the log, and the state of its broker."""

    snapshot_bytes_max: int
    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    """What is below retention has taken."""
    incarnation: int = 1
    """A topic that was recreated has another id; one that was cut has other records at the same places."""
    topic_number: int = 1
    epoch: int = 1
    skew: float = 0.0
    stepped_at: float = float("-inf")
    """When a broker's clock last stepped while it was the leader."""
    outage_until: float = 0.0
    kept: list[bytes] = field(default_factory=list)
    too_large: int = 0

    @property
    def topic_id(self) -> str:
        return f"id-{self.topic_number}"

    @property
    def state(self) -> GroupState:
        """The view of a reader that has read everything."""
        return self.entries[-1].behind if self.entries else GroupState()

    def end(self, now: float) -> int:
        """Where the log ends for readers: what is not yet with every replica is not visible."""
        end = len(self.entries)
        while end > self.first and self.entries[end - 1].visible_at > now:
            end -= 1
        return end

    def append(self, record: Record, now: float, visible_at: float) -> tuple[Entry, str | None]:
        """Append what a record looks like after its way through the codec; returns why the fold refused it, too."""
        content = decode(encode(record, GROUP, PLACES), GROUP)[0]
        after = self.state.copy()
        appended_at = BEGAN_AT + now + self.skew
        refusal = apply(after, len(self.entries), content, appended_at)
        entry = Entry(content, appended_at, self.epoch, visible_at, after)
        self.entries.append(entry)
        return entry, refusal

    # snapshots

    def keep(self, snapshot: Snapshot) -> int | None:
        """Write a snapshot; its size if it is too large."""
        content = encode_snapshot(snapshot)
        if len(content) >= self.snapshot_bytes_max:
            self.too_large += 1
            return len(content)
        self.kept = [*self.kept[1 - SNAPSHOTS_KEPT :], content]
        return None

    def snapshots(self) -> list[Snapshot]:
        return snapshots_of(GROUP, self.kept)

    # faults

    def elect(self, skew: float) -> None:
        """Another broker leads, and its clock is quite another."""
        self.epoch += 1
        self.skew = skew

    def step_clock(self, seconds: float, now: float) -> None:
        """The leader's clock is set, forward or back."""
        self.skew += seconds
        self.stepped_at = now

    def retire(self) -> None:
        """Retention takes what the newest snapshot holds."""
        if self.kept:
            newest = decode_snapshot(self.kept[-1], GROUP)
            if newest.topic_id == self.topic_id and newest.state.next_offset <= len(self.entries):
                self.first = max(self.first, newest.state.next_offset)

    def recreate(self) -> bool:
        """The topic is deleted and created again; whether a snapshot of the old one is left."""
        if not self.kept:
            return False
        self.entries, self.first = [], 0
        self.incarnation += 1
        self.topic_number += 1
        self.epoch = 1
        return True

    def cut(self) -> bool:
        """A disk is lost: the log ends before its newest snapshot; whether there is one."""
        ours = [snapshot for snapshot in self.snapshots() if snapshot.topic_id == self.topic_id]
        if not ours or self.first > 0 or ours[-1].state.next_offset < 2:
            return False
        self.entries = self.entries[: ours[-1].state.next_offset // 2]
        self.incarnation += 1
        self.epoch += 1
        return True

    def begin_new_topic(self) -> None:
        """Follow the hint of the error about a lost history: another topic, without a snapshot."""
        self.kept = self.kept or [b""]
        self.recreate()
        self.kept = []
