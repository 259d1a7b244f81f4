"""The agent: a thread that connects a participant to the coordination topic and knows what is held now.

It survives broker failures: while its records do not get through, its leases run out and, by design, nothing is held.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.claims.member.journal import Journal
from penstock.claims.member.membership import MemberEvents, MemberOptions, Phase, Send, Verdict
from penstock.claims.member.participant import Participant
from penstock.claims.member.session import POLL_SECONDS, Clock, Session, Tell
from penstock.claims.member.topics import DEFAULT_PARTITIONS, DEFAULT_TOPIC, CoordinationTopic, open_topic
from penstock.claims.protocol.codec import TEXT_CHARACTERS_MAX, encode
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError, UserError
from penstock.events import (
    ClaimLost,
    ClaimReleased,
    ClaimWon,
    CoordinationInterrupted,
    Event,
    GroupJoined,
    LeftSilently,
)
from penstock.job.spec import HEARTBEAT_SECONDS_MIN, KafkaLogSpec
from penstock.logs.kafka.admin import BoundedAdmin
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class CoordinationOptions:
    """Which coordination topic, and what to do if its history is gone (RULES M7)."""

    topic: str = DEFAULT_TOPIC
    partitions: int = DEFAULT_PARTITIONS
    restart_lost_history: bool = False


def _ignore(event: Event) -> None:
    """The `tell` of an agent without a listener."""


@dataclass(slots=True)
class Startup:
    """What the last start of the agent took, for benchmarks and status."""

    seconds: float = 0.0
    records: int = 0


class Agent:
    """One member of a group. Everything public may be called from any thread."""

    def __init__(
        self,
        spec: KafkaLogSpec,
        member: MemberOptions,
        coordination: CoordinationOptions | None = None,
        tell: Tell = _ignore,
        clock: Clock | None = None,
    ) -> None:
        _check_member(member)
        self.member = member
        self.startup = Startup()
        self._spec = spec
        self._coordination = coordination or CoordinationOptions()
        self._tell = tell
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._participant: Participant | None = None
        self._outbox: list[Send] = []
        self._wanted: tuple[tuple[Partition, ...], dict[Partition, int]] = ((), {})
        self._nonces: list[str] = []
        self._error: PenstockError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(name=f"claims {member.client_id}", target=self._live, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Release everything, leave the group, and end the thread within a bound."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(4 * self.member.heartbeat_seconds)

    # called by the application

    def now(self) -> float:
        """The monotonic time of this member."""
        return self._clock.now()

    def want(self, partitions: Iterable[Partition], floors: Mapping[Partition, int]) -> None:
        """The partitions that the group shares, with the tokens of their tables."""
        with self._changed:
            self._wanted = (tuple(partitions), dict(floors))
            if self._participant is not None:
                self._participant.want(*self._wanted)

    def held(self) -> dict[Partition, int]:
        """The partitions on which work may start now; raises the error that ended the agent."""
        with self._changed:
            self._raise_error()
            return {} if self._participant is None else self._participant.held(self._clock.now())

    def renounce(self, partition: Partition, reason: str) -> None:
        """Release a partition, to claim it again above a floor that is known now."""
        with self._changed:
            if self._participant is not None:
                self._participant.renounce(partition, reason, self._clock.now())

    def working(self) -> bool:
        """Whether this process is a member, and its group not paused."""
        with self._changed:
            self._raise_error()
            participant = self._participant
            return participant is not None and participant.phase is Phase.MEMBER and not participant.view.pauses()

    def using(self, partitions: Iterable[Partition]) -> None:
        """The partitions being worked on."""
        with self._changed:
            if self._participant is not None:
                self._participant.using(partitions)

    def confirmed(self, partition: Partition, token: int) -> bool:
        """Whether the claim under this token is certainly ours at this moment."""
        with self._changed:
            return self._participant is not None and self._participant.confirmed(partition, token, self._clock.now())

    def progress(self, partition: Partition, position: int, lag: int = 0) -> None:
        with self._changed:
            if position < 0 or lag < 0:
                raise ValueError(f"no position and lag of a partition: {position}, {lag}")
            if self._participant is not None:
                self._participant.progress(partition, position, lag)

    def shed(self, partition: Partition, reason: str) -> None:
        """Release a partition that this member cannot keep up with."""
        with self._changed:
            if self._participant is not None:
                self._participant.shed(partition, reason[:TEXT_CHARACTERS_MAX], self._clock.now())

    @contextlib.contextmanager
    def looking(self) -> Iterator[Participant]:
        """The participant, locked while the caller looks at it; TransientError while the agent is not a member."""
        with self._changed:
            self._raise_error()
            if self._participant is None or self._participant.phase is not Phase.MEMBER:
                raise TransientError(f"{self.member.client_id} is not yet a member of {self.member.group}")
            yield self._participant

    def say(self, kind: type[Record], partition: Partition, **content: object) -> Verdict:
        """Send a record about a partition and wait until it is read back; OutcomeUnknownError if it is not in time.

        ValueError for a record that every reader would refuse as malformed.
        """
        [verdict] = self.say_each(kind, [(partition, content)])
        return verdict

    def say_each(self, kind: type[Record], about: Sequence[tuple[Partition, Mapping[str, object]]]) -> list[Verdict]:
        """The same about several partitions at once."""
        deadline = self._clock.now() + 2 * self.member.heartbeat_seconds
        with self.looking() as participant:
            records = [participant.outbox.record_of(kind, partition=each, **content) for each, content in about]
            sends = [
                Send(participant.view.place_of(partition), record)
                for record, (partition, _) in zip(records, about, strict=True)
            ]
            for record in records:
                # An unreadable record is the caller's error, and must not fail in the agent's thread.
                encode(record, participant.view.count)
            for record in records:
                participant.outbox.ask(record)
            self._outbox += participant.outbox.sending(sends, self._clock.now())
            try:
                return self._read_back(participant, records, deadline)
            finally:
                for record in records:
                    participant.outbox.stop_asking(record)

    def _read_back(self, participant: Participant, records: Sequence[Record], deadline: float) -> list[Verdict]:
        while True:
            verdicts = [each for record in records if (each := participant.outbox.verdict(record)) is not None]
            if len(verdicts) == len(records):
                return verdicts
            self._raise_error()
            left = deadline - self._clock.now()
            if left <= 0 or self._participant is not participant:
                raise OutcomeUnknownError(f"{len(records) - len(verdicts)} coordination records were not read back")
            self._changed.wait(min(left, POLL_SECONDS))

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition that the agent's thread changes."""
        deadline = self._clock.now() + seconds
        with self._changed:
            while not holds():
                self._raise_error()
                left = deadline - self._clock.now()
                if left <= 0:
                    return False
                self._changed.wait(min(left, POLL_SECONDS))
        return True

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # the thread

    def _live(self) -> None:
        """One membership after another: each starts by reading the log from its snapshots."""
        while not self._stopping.is_set():
            try:
                self._membership()
            except (TransientError, OutcomeUnknownError) as error:
                self._tell(CoordinationInterrupted(reason=error.primary, detail=error.detail))
                self._stopping.wait(min(1.0, self.member.heartbeat_seconds))
            except PenstockError as error:
                self._end(error)
                return
            except BaseException as error:
                # The top of a thread: the next caller must see the bug.
                self._end(PenstockError("the claims agent crashed", detail=repr(error)))
                raise

    def _end(self, error: PenstockError) -> None:
        with self._changed:
            self._error = error
            self._participant = None
            self._changed.notify_all()

    def _membership(self) -> None:
        started_at = self._clock.now()
        topic = self._open_topic()
        admin = BoundedAdmin(self._spec, max(1.0, self.member.heartbeat_seconds / 2))
        journal = Journal(self._spec, topic, max(1.0, self.member.heartbeat_seconds / 2))
        participant = Participant(
            self.member,
            uuid.uuid4().hex[:12],
            GroupView(self.member.group, topic.partitions, self.member.heartbeat_seconds),
            frozenset(self._nonces),
        )
        self._nonces.append(participant.who.nonce)
        try:
            session = Session(journal, topic, admin, participant, self._clock, self._tell)
            self.startup = Startup(0.0, session.catch_up(self._coordination.restart_lost_history))
            self.startup.seconds = self._clock.now() - started_at
            with self._changed:
                participant.want(*self._wanted)
                participant.begin(self._clock.now())
                self._participant, self._outbox = participant, []
            while not self._stopping.is_set():
                self._turn(session)
            self._leave(session)
        finally:
            with self._changed:
                self._participant = None
                self._changed.notify_all()
            journal.close()
            admin.close()

    def _open_topic(self) -> CoordinationTopic:
        admin = BoundedAdmin(self._spec)
        try:
            return open_topic(admin, self._coordination.topic, self._coordination.partitions)
        finally:
            admin.close()

    def _turn(self, session: Session) -> None:
        """Read, decide, send: the lock is not held while waiting for the broker."""
        entries = session.journal.poll(POLL_SECONDS if not self._outbox else 0.0)
        with self._changed:
            session.take(entries)
            outbox, self._outbox = self._outbox, []
            sends = outbox + session.participant.decide(self._clock.now(), self._clock.wall_now())
            events, session.participant.events = session.participant.events, MemberEvents()
            self._changed.notify_all()
        session.send(sends)
        session.keep_snapshots()
        session.check_identity()
        session.check_heard()
        self._tell_all(events)

    def _tell_all(self, events: MemberEvents) -> None:
        if events.joined:
            self._tell(GroupJoined(group=self.member.group, client_id=self.member.client_id))
        for partition, token in events.won:
            self._tell(ClaimWon(partition=str(partition), token=token))
        for partition, token in events.lost:
            self._tell(ClaimLost(partition=str(partition), token=token))
        for partition, reason in events.released:
            self._tell(ClaimReleased(partition=str(partition), reason=reason))

    def _leave(self, session: Session) -> None:
        with self._changed:
            sends = session.participant.leave(self._clock.now())
            self._participant = None
        session.send(sends)
        if session.journal.flush(self.member.heartbeat_seconds):
            self._tell(LeftSilently(reason="the broker did not take the last records in time"))
            return
        session.keep_last_snapshots(sends, self.member.heartbeat_seconds)
        session.journal.flush(self.member.heartbeat_seconds)


def default_client_id() -> str:
    """A random client id for a process that has none: it cannot take its claims back after a restart."""
    return f"{socket.gethostname()[:60]}-{uuid.uuid4().hex[:8]}"


def _check_member(member: MemberOptions) -> None:
    for name, text in (("group", member.group), ("client id", member.client_id)):
        if not text or len(text) > TEXT_CHARACTERS_MAX:
            raise UserError(f"the {name} must have 1 to {TEXT_CHARACTERS_MAX} characters, found {len(text)}")
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise UserError(f"the {name} {text!r} is not valid text: it contains half of a surrogate pair")
    if member.claims_max is not None and member.claims_max < 0:
        raise UserError(f"a member cannot hold at most {member.claims_max} claims")
    if member.heartbeat_seconds < HEARTBEAT_SECONDS_MIN:
        raise UserError(f"a heartbeat interval of {member.heartbeat_seconds} s is below {HEARTBEAT_SECONDS_MIN} s")
