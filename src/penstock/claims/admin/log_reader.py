"""The coordination log for a reader that is not a member: read it within a limit, append to it and read that back."""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Self

from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.outbox import Outbox
from penstock.claims.member.session import POLL_SECONDS, catch_up, start_of
from penstock.claims.member.topics import DEFAULT_TOPIC, find_topic
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import TEXT_CHARACTERS_MAX, MemberId, Record
from penstock.claims.protocol.snapshots import RECREATED, LostHistoryError
from penstock.errors import OutcomeUnknownError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.topics import KafkaTopics

APPEND_SECONDS_MAX = 15.0
READER_HEARTBEAT_SECONDS = 1.0
"""Until the group's own is known."""


@dataclass(frozen=True, slots=True)
class CoordinatedGroup:
    """One group of one coordination topic."""

    spec: KafkaLogSpec
    group: str
    topic: str = DEFAULT_TOPIC


class LogReader:
    """Reads the coordination log of a group; a context manager. Members do not notice it unless it appends."""

    def __init__(self, of: CoordinatedGroup) -> None:
        self.of = of
        with closing(KafkaTopics(of.spec)) as topics:
            self.topic = find_topic(topics, of.topic)
        self.view = GroupView(of.group, READER_HEARTBEAT_SECONDS)
        """By append times: how long a member was silent is the broker's clock, not ours."""
        self._read_at = time.monotonic()
        self.journal = Journal(of.spec, self.topic, of.group, READER_HEARTBEAT_SECONDS, APPEND_SECONDS_MAX, False)
        self._whole = False
        self._who = MemberId(f"admin:{_user()}@{socket.gethostname()}"[:TEXT_CHARACTERS_MAX], uuid.uuid4().hex[:12])
        self.outbox = Outbox(self._who)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.journal.close()

    # reading

    @property
    def heartbeat_seconds(self) -> float:
        return self.view.state.heartbeat_seconds or READER_HEARTBEAT_SECONDS

    @property
    def exists(self) -> bool:
        """Whether the log has ever held a record of the group."""
        state = self.view.state
        return bool(state.members or state.claims or state.pauses or state.heartbeat_seconds)

    def catch_up(self) -> None:
        """Fold the log from its snapshot to its current end; LostHistoryError if history is lost, as for members."""
        start = start_of(self.journal)
        if start.fault and start.fault != RECREATED:
            raise LostHistoryError(self.topic.name, self.of.group, start.fault)
        self._whole = not start.fault
        if start.snapshot is not None:
            self.view.restore(start.snapshot, start.snapshot.appended_at)
        catch_up(self.journal, self._take_all, start.offset)

    def follow(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Read on until a condition holds, or for so long."""
        deadline = time.monotonic() + seconds
        while not holds():
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                return False
            self._take_all(self.journal.poll(min(remaining_seconds, POLL_SECONDS)))
        return True

    def _take_all(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            self._read_at = time.monotonic()
            if entry.record is None:
                self.view.skip(entry.offset, entry.appended_at, entry.epoch)
                continue
            refusal = self.view.read(entry.offset, entry.record, entry.appended_at, entry.appended_at, entry.epoch)
            if entry.record.who == self._who:
                self.outbox.read_back(entry.offset, entry.record, refusal)

    def broker_now(self) -> float:
        """The broker's time now: that of its newest record, of any group, plus the time since it was read."""
        return self.view.broker_at + (time.monotonic() - self._read_at)

    # appending

    def append(self, *records: Record) -> list[str | None]:
        """Append records in this order, and read back why each was refused; a snapshot outlives the log's retention.

        OutcomeUnknownError if that takes too long.
        """
        lost: list[Record] = []
        verdicts = self.outbox.ask(records)
        for record in records:
            self.journal.append(record, lost.append)
        if not self.follow(APPEND_SECONDS_MAX, lambda: all(verdict.done() for verdict in verdicts)):
            unread = sum(not verdict.done() for verdict in verdicts)
            raise OutcomeUnknownError(
                f"{unread} of {len(records)} records to {self.topic.name} were not read back in time",
                detail=f"{len(lost)} were not delivered; the others may be in the log or not",
                hint="check with `penstock claims list`, then try again",
            )
        if self._whole:
            # Members write the first snapshot of a recreated topic: until then readers see that its history is lost.
            self.journal.keep(self.view.snapshot(self.topic.topic_id))
            self.journal.flush(APPEND_SECONDS_MAX)
        return [verdict.result().refusal for verdict in verdicts]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have an id and no name.
        return "unknown"
