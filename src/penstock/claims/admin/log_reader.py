"""The coordination log for a reader that is not a member: read it within a limit, append to it and read that back."""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.membership import Verdict
from penstock.claims.member.outbox import Outbox
from penstock.claims.member.topics import DEFAULT_TOPIC, find_topic
from penstock.claims.protocol.codec import TEXT_CHARACTERS_MAX
from penstock.claims.protocol.fold import skip
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record, Who
from penstock.errors import OutcomeUnknownError, TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.admin import BoundedAdmin

READ_SECONDS_MAX = 120.0
SAY_SECONDS_MAX = 15.0
POLL_SECONDS = 0.1
TIMES_READ_BACK = 1000
"""Records before a snapshot, per coordination partition, that are read for the times at which they were appended."""


@dataclass(frozen=True, slots=True)
class CoordinatedGroup:
    """One group of one coordination topic. `heartbeat_seconds` is that of its members: the log does not hold it."""

    spec: KafkaLogSpec
    group: str
    topic: str = DEFAULT_TOPIC
    heartbeat_seconds: float = 10.0


class LogReader:
    """Reads the coordination topic of a group; a context manager. Members do not notice it unless it appends."""

    def __init__(self, of: CoordinatedGroup) -> None:
        admin = BoundedAdmin(of.spec)
        try:
            topic = find_topic(admin, of.topic)
        finally:
            admin.close()
        self.of = of
        self.topic = topic
        self.view = GroupView(of.group, topic.partitions, of.heartbeat_seconds)
        self.newest_at = 0.0
        """The latest append time seen, of any group: the broker's own clock."""
        self._newest_read_at = time.monotonic()
        self._journal = Journal(of.spec, topic, SAY_SECONDS_MAX)
        self._times: dict[tuple[int, int], float] = {}
        self._first_at: dict[int, float] = {}
        self._who = Who(f"admin:{_user()}@{socket.gethostname()}"[:TEXT_CHARACTERS_MAX], uuid.uuid4().hex[:12])
        self.outbox = Outbox(of.group, self._who)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()

    # reading

    def catch_up(self) -> None:
        """Fold the log from its snapshots to its current end; LostHistoryError if history is lost, as for members."""
        snapshots = self._journal.snapshots()
        known = {place: each.state.next_offset for place, each in snapshots.items()}
        self._journal.seek(known)
        for place, snapshot in snapshots.items():
            self.view.restore(place, snapshot.state, snapshot.appended_at, snapshot.appended_at)
        starts = {place: max(0, offset - TIMES_READ_BACK) for place, offset in known.items()}
        ends = self._ends(self._journal.seek(starts, restart=True))
        for entry in self._until(ends):
            self.take(entry)

    def entries(
        self, records_max: int, places: Iterable[int] | None = None
    ) -> tuple[dict[int, int], Iterator[JournalEntry]]:
        """Where each coordination partition is read from, and what it holds from there to its current end.

        At most about `records_max` records are read, the newest ones.
        """
        bounds = self._journal.seek({}, restart=True)
        wanted = set(bounds) if places is None else set(places)
        each_max = max(1, records_max // len(wanted))
        starts = {
            place: max(first, end - each_max) if place in wanted else end for place, (first, end) in bounds.items()
        }
        again = self._journal.seek(starts, restart=True)
        begun = {place: start for place, (start, _) in again.items() if place in wanted}
        return begun, self._until({place: end for place, end in self._ends(again).items() if place in wanted})

    def follow(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Read on until a condition holds, or for so long."""
        deadline = time.monotonic() + seconds
        while not holds():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for entry in self._journal.poll(min(left, POLL_SECONDS)):
                self.take(entry)
        return True

    def take(self, entry: JournalEntry) -> None:
        """Apply one entry; of those before a snapshot only the append time counts."""
        self._first_at.setdefault(entry.place, entry.appended_at)
        self._times[entry.place, entry.offset] = entry.appended_at
        if entry.appended_at >= self.newest_at:
            self.newest_at, self._newest_read_at = entry.appended_at, time.monotonic()
        state = self.view.folds[entry.place]
        if entry.offset < state.next_offset:
            return
        if entry.record is None:
            self.view.folds[entry.place] = skip(state, entry.offset)
            return
        refusal = self.view.read(entry.place, entry.offset, entry.record, entry.appended_at, entry.appended_at)
        if entry.record.who == self._who:
            self.outbox.read_back(entry.offset, entry.record, refusal)

    def groups(self) -> list[str]:
        """Every group in the topic."""
        return sorted({name for fold in self.view.folds for name in fold.groups})

    def appended_at(self, place: int, offset: int) -> float:
        """When a record was appended; for one older than all that was read, the earliest time seen there."""
        return self._times.get((place, offset), self._first_at.get(place, self.newest_at))

    def broker_now(self) -> float:
        """The broker's time now: that of its newest record, plus the time since it was read."""
        return self.newest_at + (time.monotonic() - self._newest_read_at)

    # appending

    def say(self, said: Sequence[tuple[int, Record]]) -> list[str | None]:
        """Append records to coordination partitions, in this order, and read back why each was refused.

        OutcomeUnknownError if that takes too long.
        """
        lost: list[Record] = []
        for place, record in said:
            self.outbox.ask(record)
            self._journal.append(place, record, lost.append)
        verdicts: list[Verdict] = []

        def all_read() -> bool:
            nonlocal verdicts
            verdicts = [each for _, record in said if (each := self.outbox.verdict(record)) is not None]
            return len(verdicts) == len(said)

        if not self.follow(SAY_SECONDS_MAX, all_read):
            raise OutcomeUnknownError(
                f"{len(said) - len(verdicts)} of {len(said)} records to {self.topic.name} were not read back in time",
                detail=f"{len(lost)} were not delivered; the others may be in the log or not",
                hint="check with `penstock claims list`, then try again",
            )
        return [each.refusal for each in verdicts]

    def _until(self, ends: Mapping[int, int]) -> Iterator[JournalEntry]:
        deadline = time.monotonic() + READ_SECONDS_MAX
        positions: Mapping[int, int] = {}
        while any(positions.get(place, 0) < end for place, end in ends.items()):
            yield from self._journal.poll(POLL_SECONDS)
            positions = self._journal.positions()
            if time.monotonic() > deadline:
                raise TransientError(f"coordination topic {self.topic.name} could not be read to its end in time")

    @staticmethod
    def _ends(bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """The ends of what is not empty: a consumer has no position where it has read nothing."""
        return {place: end for place, (start, end) in bounds.items() if start < end}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have an id and no name.
        return "unknown"
