"""One membership's access to the coordination log: catch up, apply, send, write snapshots, watch the topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.membership import Phase
from penstock.claims.member.participant import Participant
from penstock.claims.member.topics import GrownTopicError, MissingTopicError, describe_topic
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import BalancingGroup, Record
from penstock.claims.protocol.snapshots import RECREATED, LostHistoryError, ReadingStart, reading_start
from penstock.errors import TransientError
from penstock.events import CoordinationInterrupted, Event, ForeignRecord, SnapshotTooLarge
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.topics import KafkaTopics

POLL_SECONDS = 0.1
REST_INTERVALS = 1 / 20
REST_SECONDS_MAX = 0.5
"""How long a member of a quiet group sleeps before it looks at the log again."""
HURRYING_MEMBERS_MAX = 10
IDENTITY_CHECK_INTERVALS = 6
"""How often the coordination topic is checked: it may have been deleted and recreated."""
UNREAD_INTERVALS_MAX = 6
SNAPSHOT_EVERY_RECORDS = 500
SNAPSHOT_EVERY_SECONDS = 600.0
"""After so many records, or so long after the first of them, one of the members writes a snapshot."""
LOSS_ASKED_TIMES = 3
"""A broker that has just restarted may give a wrong end once: only a loss that lasts is believed."""
LOSS_ASKED_SECONDS = 0.5
_CATCH_UP_SILENCE_SECONDS_MAX = 30.0

EventListener = Callable[[Event], None]

logger = logging.getLogger("penstock.claims")


def unfailing(listener: EventListener) -> EventListener:
    """Log the errors of a listener: one that fails must not end a thread that claims depend on."""

    def report(event: Event) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception("the listener failed at %s", event.name)

    return report


def start_of(journal: Journal) -> ReadingStart:
    """Where to start reading; a loss is looked at several times."""
    for attempts_left in reversed(range(LOSS_ASKED_TIMES)):
        bounds = journal.bounds()
        result = reading_start(journal.snapshots(), journal.topic.topic_id, bounds, journal.holds)
        if not result.fault or not attempts_left:
            return result
        time.sleep(LOSS_ASKED_SECONDS)
    raise AssertionError("the last look returns")


def catch_up(journal: Journal, take: Callable[[list[JournalEntry]], None], start: int) -> int:
    """Read the log from an offset up to its current end; returns the number of records."""
    end = journal.bounds()[1]
    journal.seek(start)
    count, position, moved_at = 0, start, time.monotonic()
    # By position, not by the record before the end: that place may hold a marker or nothing at all.
    while position < end:
        entries = journal.poll(POLL_SECONDS)
        count += len(entries)
        take(entries)
        before, position = position, max(position, journal.position())
        moved_at = time.monotonic() if position != before else moved_at
        if time.monotonic() - moved_at > _CATCH_UP_SILENCE_SECONDS_MAX:
            raise TransientError(f"coordination topic {journal.topic.name} could not be read to its end")
    return count


class Session:
    """The log as one participant reads it, through one journal."""

    def __init__(self, journal: Journal, spec: KafkaLogSpec, now: Callable[[], float]) -> None:
        self.journal = journal
        self.events: list[Event] = []
        """What the log and its snapshots gave to report."""
        self._spec = spec
        self._now = now
        self._unkept_since: float | None = None
        self._unkept = 0
        self._due = False
        self._busy_at = now()
        self._identity_checked_at = now()
        self._turned_at = 0.0
        self._awake_since = 0.0

    def begin(self, view: GroupView, tables_remember: bool) -> int:
        """Restore the snapshot that fits the log; returns the offset to read on from.

        LostHistoryError if there is none; a recreated topic is not a loss where tables remember tokens and positions.
        """
        start = start_of(self.journal)
        if start.fault and not (tables_remember and start.fault == RECREATED):
            raise LostHistoryError(self.journal.topic.name, self.journal.group, start.fault)
        if start.snapshot is None and not start.fault:
            # Before the log is read: questions to the broker would wait for the fetches of an assigned consumer.
            self.journal.check_new()
        self._due = bool(start.fault)
        if start.snapshot is not None:
            view.restore(start.snapshot, self._now())
        return start.offset

    def take(self, participant: Participant, entries: Iterable[JournalEntry]) -> None:
        now = self._now()
        for entry in entries:
            if entry.record is None:
                participant.view.skip(entry.offset, entry.appended_at, entry.epoch)
                if entry.fault:
                    self.events.append(ForeignRecord(self.journal.place, entry.offset, entry.fault))
                continue
            self._unkept += 1
            self._unkept_since = now if self._unkept_since is None else self._unkept_since
            refusal = participant.read(entry.offset, entry.record, now, entry.appended_at, entry.epoch)
            if isinstance(entry.record, BalancingGroup) and entry.record.who == participant.who and refusal is None:
                # A group that has ever shared anything has a snapshot: one without is new, however old the log is.
                self._due = True

    def send(self, participant: Participant, records: Iterable[Record]) -> None:
        for record in records:
            self.journal.append(record, participant.outbox.failed)

    def keep_pace(self, participant: Participant, awaited: bool) -> None:
        """Read slowly once nothing changes, in a large group at once, as every member reads every record.

        Not where the work waits for its own records to come back (`awaited`): each would cost it a whole fetch.
        """
        many = len(participant.view.state.members) > HURRYING_MEMBERS_MAX
        hurries = awaited or (self.journal.hurries and participant.busy and not many)
        if hurries != self.journal.hurries:
            self.journal.keep_pace(hurries)

    def poll(self, participant: Participant, sleep: Callable[[float], object]) -> list[JournalEntry]:
        """What was appended since. A member at rest sleeps by itself: a waiting client wakes up every 0.2 s."""
        interval, now = participant.options.heartbeat_seconds, self._now()
        if self.journal.hurries or participant.busy:
            self._busy_at = now
        if now - self._busy_at < interval:
            return self.journal.poll(POLL_SECONDS)
        sleep(min(interval * REST_INTERVALS, REST_SECONDS_MAX))
        return self.journal.poll(0)

    def keep_snapshots(self, participant: Participant) -> None:
        """Write the snapshot if it is due and ours to write; the other members start counting again."""
        now = self._now()
        if participant.phase is not Phase.MEMBER or self._unkept_since is None:
            return
        due = self._unkept >= SNAPSHOT_EVERY_RECORDS or now - self._unkept_since >= SNAPSHOT_EVERY_SECONDS
        if not due and not self._due:
            return
        live = [member.who.client_id for member in participant.view.live_members(now)]
        if self._due or min(live, default="") == participant.who.client_id:
            self._keep(participant)
        self._unkept, self._unkept_since = 0, None

    def keep_last_snapshot(self, participant: Participant, last_records: list[Record], seconds: float) -> None:
        """Write what no snapshot holds if no member is left: the log may be deleted before the next one joins."""
        deadline = self._now() + seconds
        others = [member for member in participant.view.live_members(self._now()) if member.who != participant.who]
        if not last_records or others:
            return
        while participant.view.state.present(participant.who) and self._now() < deadline:
            self.take(participant, self.journal.poll(POLL_SECONDS))
        self._keep(participant)

    def _keep(self, participant: Participant) -> None:
        self._due = False
        too_large = self.journal.keep(participant.view.snapshot(self.journal.topic.topic_id))
        if too_large is not None:
            self.events.append(SnapshotTooLarge(self.journal.group, too_large))

    def check_read_back(self, participant: Participant) -> None:
        """Replace the Kafka clients if not even our own records come back; the membership goes on, with its claims."""
        now, interval = self._now(), participant.options.heartbeat_seconds
        if now - self._turned_at > interval:
            # The process itself slept: what waits to be read is read first.
            self._awake_since = now
        self._turned_at = now
        unread_seconds = now - max(self._awake_since, participant.read_back_at)
        if unread_seconds > UNREAD_INTERVALS_MAX * interval:
            self._awake_since = now
            reason = f"nothing that this member wrote came back for {unread_seconds:.0f} s"
            self.events.append(CoordinationInterrupted(reason=reason, detail="it goes on with new Kafka clients"))
            self.journal.reopen()

    def check_identity(self, interval: float) -> None:
        """A recreated topic is another log: everything known about the old one is void."""
        now, topic = self._now(), self.journal.topic
        if now - self._identity_checked_at < IDENTITY_CHECK_INTERVALS * interval:
            return
        self._identity_checked_at = now
        try:
            # A client for each look: hundreds of idle ones would cost more than all else at rest.
            with closing(KafkaTopics(self._spec, max(1.0, interval / 2))) as topics:
                result = describe_topic(topics, topic.name)
        except MissingTopicError:
            raise
        except TransientError:
            # The broker is unavailable: missing heartbeats show that soon enough.
            return
        if result.topic_id != topic.topic_id:
            raise TransientError(f"coordination topic {topic.name} was recreated")
        if result.partitions != topic.partitions:
            raise GrownTopicError(topic.name, f"it had {topic.partitions}, now it has {result.partitions}")
