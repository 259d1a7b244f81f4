"""One membership's access to the coordination log: catch up, apply, send, write snapshots, watch the topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.claims.member.fair_shares import favourite
from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.membership import Phase, Send
from penstock.claims.member.participant import Participant
from penstock.claims.member.topics import CoordinationTopic, MissingTopicError, describe_surely
from penstock.claims.protocol.fold import skip
from penstock.claims.protocol.snapshots import SNAPSHOT_EVERY_RECORDS, SNAPSHOT_EVERY_SECONDS, Snapshot
from penstock.errors import TransientError, UserError
from penstock.events import Event, ForeignRecord
from penstock.logs.kafka.admin import BoundedAdmin

POLL_SECONDS = 0.1
IDENTITY_CHECK_INTERVALS = 2
"""How often the coordination topic is checked: it may have been deleted and recreated."""
UNHEARD_INTERVALS_MAX = 6
_CATCH_UP_SILENCE_SECONDS_MAX = 30.0

Tell = Callable[[Event], None]


@dataclass(slots=True)
class Clock:
    """Monotonic time for leases, wall time for pauses; passed in so that tests control them."""

    now: Callable[[], float] = time.monotonic
    wall_now: Callable[[], float] = time.time


@dataclass(slots=True)
class _Unkept:
    """What was read of one coordination partition and is in no snapshot known to this member."""

    since: float
    records: int = 0

    def due(self, now: float) -> bool:
        return self.records >= SNAPSHOT_EVERY_RECORDS or now - self.since >= SNAPSHOT_EVERY_SECONDS


@dataclass(slots=True)
class Session:
    """The log as one participant reads it, through one journal."""

    journal: Journal
    topic: CoordinationTopic
    admin: BoundedAdmin
    participant: Participant
    clock: Clock
    tell: Tell
    appended_at: dict[int, float] = field(default_factory=dict)
    unkept: dict[int, _Unkept] = field(default_factory=dict)
    identity_checked_at: float = 0.0
    turned_at: float = 0.0
    awake_since: float = 0.0

    def catch_up(self, restart: bool) -> int:
        """Read the snapshots and the log after them up to its current end; returns the number of records."""
        view, now = self.participant.view, self.clock.now()
        snapshots = self.journal.snapshots()
        for place, snapshot in snapshots.items():
            view.restore(place, snapshot.state, now, snapshot.appended_at)
        bounds = self.journal.seek({place: each.state.next_offset for place, each in snapshots.items()}, restart)
        moved_at = self.clock.now()
        count = 0
        # By position, not by the record before the end: that place may hold a marker or nothing at all.
        positions = {place: start for place, (start, _) in bounds.items()}
        while any(positions[place] < end for place, (_, end) in bounds.items()):
            entries = self.journal.poll(POLL_SECONDS)
            count += len(entries)
            self.take(entries)
            before, now = positions, self.clock.now()
            positions = {place: max(known, before[place]) for place, known in self.journal.positions().items()}
            moved_at = now if positions != before else moved_at
            if now - moved_at > _CATCH_UP_SILENCE_SECONDS_MAX:
                raise TransientError(f"coordination topic {self.topic.name} does not give its records up to its end")
        self.identity_checked_at = self.clock.now()
        return count

    def take(self, entries: Iterable[JournalEntry]) -> None:
        participant, now = self.participant, self.clock.now()
        for entry in entries:
            self.appended_at[entry.place] = entry.appended_at
            self.unkept.setdefault(entry.place, _Unkept(now)).records += 1
            if entry.record is None:
                participant.view.folds[entry.place] = skip(participant.view.folds[entry.place], entry.offset)
                self.tell(ForeignRecord(place=entry.place, offset=entry.offset, reason=entry.fault))
                continue
            participant.read(entry.place, entry.offset, entry.record, now, entry.appended_at)

    def send(self, sends: Iterable[Send]) -> None:
        for send in sends:
            self.journal.append(send.place, send.record, self.participant.outbox.failed)

    def keep_snapshots(self) -> None:
        """Write the snapshots that are due and ours to write; the other members write theirs."""
        now = self.clock.now()
        due = [place for place, unkept in self.unkept.items() if unkept.due(now)]
        if not due or self.participant.phase is not Phase.MEMBER:
            return
        client_ids = self._live_client_ids(now)
        for place in due:
            if favourite(f"snapshot of {place}", client_ids) == self.participant.who.client_id:
                self._keep(place)
            else:
                del self.unkept[place]

    def keep_last_snapshots(self, farewell: Iterable[Send], seconds: float) -> None:
        """Write what no snapshot holds if no member is left: the log may be deleted before the next one joins."""
        deadline = self.clock.now() + seconds
        waiting = {send.record.seq for send in farewell}
        if not waiting or set(self._live_client_ids(self.clock.now())) - {self.participant.who.client_id}:
            return
        while waiting and self.clock.now() < deadline:
            entries = self.journal.poll(POLL_SECONDS)
            self.take(entries)
            waiting -= {each.record.seq for each in entries if each.record and each.record.who == self.participant.who}
        for place in list(self.unkept):
            self._keep(place)

    def _keep(self, place: int) -> None:
        del self.unkept[place]
        state = self.participant.view.folds[place]
        self.journal.keep(Snapshot(self.topic.topic_id, place, self.appended_at[place], state))

    def _live_client_ids(self, now: float) -> list[str]:
        return [each.who.client_id for each in self.participant.view.live_members(now)]

    def check_heard(self) -> None:
        """Begin anew if not even our own records come back: a client may not recover from a restart of its broker."""
        now, interval = self.clock.now(), self.participant.options.heartbeat_seconds
        if now - self.turned_at > interval:
            # The process itself slept: what waits to be read is read first.
            self.awake_since = now
        self.turned_at = now
        unheard_seconds = now - max(self.awake_since, self.participant.heard_self_at)
        if unheard_seconds > UNHEARD_INTERVALS_MAX * interval:
            raise TransientError(f"nothing that this member wrote came back for {unheard_seconds:.0f} s")

    def check_identity(self) -> None:
        """A recreated topic is another log: everything known about the old one is void."""
        now = self.clock.now()
        if now - self.identity_checked_at < IDENTITY_CHECK_INTERVALS * self.participant.options.heartbeat_seconds:
            return
        self.identity_checked_at = now
        try:
            found = describe_surely(self.admin, self.topic.name)
        except MissingTopicError:
            raise
        except TransientError:
            # The broker is unavailable: missing heartbeats show that soon enough.
            return
        if found.topic_id != self.topic.topic_id:
            raise TransientError(f"coordination topic {self.topic.name} was recreated")
        before = self.topic.partitions
        if found.partitions != before:
            raise UserError(
                f"coordination topic {self.topic.name} grew from {before} to {found.partitions} partitions",
                detail="claims are placed by that number, so it must never change",
                hint="stop every process, delete the topic and its snapshots, and start again",
            )
