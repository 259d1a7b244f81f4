"""The agent: a thread that connects a participant to the coordination topic and knows what is held now.

It survives broker failures: while its records do not get through, its leases run out and, by design, nothing is held.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from penstock.claims.member.journal import Journal
from penstock.claims.member.membership import MemberOptions, Phase
from penstock.claims.member.outbox import SendResult
from penstock.claims.member.participant import Participant
from penstock.claims.member.session import POLL_SECONDS, EventListener, Session, catch_up, unfailing
from penstock.claims.member.topics import DEFAULT_PARTITIONS, DEFAULT_TOPIC, open_topic
from penstock.claims.protocol.codec import encode
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import TEXT_CHARACTERS_MAX, Record, Seeking
from penstock.claims.protocol.snapshots import RECREATED, LostHistoryError
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError, UserError
from penstock.events import CoordinationInterrupted, Event, LeftSilently, WorkHangs
from penstock.job.spec import HEARTBEAT_SECONDS_MIN, KafkaLogSpec
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class CoordinationOptions:
    """Which coordination topic, and how many partitions it gets if it has to be created."""

    topic: str = DEFAULT_TOPIC
    partitions: int = DEFAULT_PARTITIONS
    tables_remember: bool = False
    """Whether tables keep tokens and positions of their own: then a recreated topic loses nothing (RULES M7)."""


class Agent:
    """One member of a group. Everything public may be called from any thread."""

    def __init__(
        self,
        spec: KafkaLogSpec,
        member: MemberOptions,
        coordination: CoordinationOptions | None = None,
        listener: EventListener = lambda event: None,
        work_timeout_seconds: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`work_timeout_seconds` without a call of `working` end the membership until the next call."""
        _check_member(member)
        self.member = member
        self.startup_seconds: float | None = None
        """How long the last start took; it read so many records."""
        self.startup_records = 0
        self._spec = spec
        self._coordination = coordination or CoordinationOptions()
        self._report = unfailing(listener)
        self.now = now
        """The monotonic time of this member."""
        self._work_timeout_seconds = work_timeout_seconds
        self._awaited = False
        """Whether the work waits for records of its own, as at most once."""
        self._worked_at = self.now()
        self._lock = threading.RLock()
        self._participant: Participant | None = None
        self._session: Session | None = None
        self._topic_id: str | None = None
        self._requested: tuple[tuple[Partition, ...], dict[Partition, int]] = ((), {})
        self._nonces: list[str] = []
        self._error: PenstockError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(name=f"claims {member.client_id}", target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Release everything, leave the group, and end the thread within a bound."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(4 * self.member.heartbeat_seconds)

    # called by the application

    def request(self, partitions: Iterable[Partition], floors: Mapping[Partition, int]) -> None:
        """The partitions that the group shares, with the tokens of their tables."""
        with self._lock:
            self._requested = (tuple(partitions), dict(floors))
            if self._participant is not None:
                self._participant.request(*self._requested)

    def held(self) -> dict[Partition, int]:
        """The partitions on which work may start now; raises the error that ended the agent."""
        with self._lock:
            self._raise_error()
            return {} if self._participant is None else self._participant.held(self.now())

    def renounce(self, partition: Partition, reason: str) -> None:
        """Release a partition, to claim it again above a floor that is known now."""
        with self._lock:
            if self._participant is not None:
                self._participant.holdings.release_later([partition], reason, self.now())

    def heartbeat_age(self) -> float | None:
        """Since the group last had a heartbeat of this process; None while it is no member."""
        with self._lock:
            participant = self._participant
            return None if participant is None else participant.heartbeat_age(self.now())

    def working(self) -> None:
        """The application works: this thread alone proves only that the process is there."""
        self._worked_at = self.now()

    def _work_hangs(self) -> bool:
        return self.now() - self._worked_at > self._work_timeout_seconds

    def using(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            if self._participant is not None:
                self._participant.holdings.using(partitions)

    def confirmed(self, partition: Partition, token: int) -> bool:
        """Whether the claim under this token is certainly ours at this moment."""
        with self._lock:
            return self._participant is not None and self._participant.confirmed(partition, token, self.now())

    def progress(self, partition: Partition, position: int, lag: int = 0) -> None:
        with self._lock:
            if position < 0 or lag < 0:
                raise ValueError(f"invalid position or lag of a partition: {position}, {lag}")
            if self._participant is not None:
                self._participant.holdings.progress(partition, position, lag)

    @contextlib.contextmanager
    def looking(self) -> Iterator[Participant]:
        """The participant, locked while the caller looks at it; TransientError while the agent is not a member."""
        with self._lock:
            self._raise_error()
            if self._participant is None or self._participant.phase is not Phase.MEMBER:
                raise TransientError(f"{self.member.client_id} is not yet a member of {self.member.group}")
            yield self._participant

    def send(self, kind: type[Record], partition: Partition, **content: object) -> SendResult:
        """Send a record about a partition and wait until it is read back; OutcomeUnknownError if it is not in time.

        ValueError for a record that every reader would refuse as malformed.
        """
        [verdict] = self.send_all(kind, [(partition, content)])
        return verdict

    def send_all(self, kind: type[Record], about: Sequence[tuple[Partition, Mapping[str, object]]]) -> list[SendResult]:
        """The same about several partitions at once."""
        # A seek is sent once, at the start; records of other kinds accompany every piece of work.
        self._awaited |= kind is not Seeking
        deadline = self.now() + 2 * self.member.heartbeat_seconds
        with self.looking() as participant:
            session, outbox = self._session, participant.outbox
            assert session is not None
            records: list[Record] = [
                participant.record_about(kind, partition, **content) for partition, content in about
            ]
            for record in records:
                # An unreadable record is the caller's error, and must not fail in the agent's thread.
                encode(record, self.member.group, session.journal.topic.partitions)
            verdicts = outbox.ask(records)
            session.send(participant, outbox.sending(records, self.now()))
        return self._read_back(verdicts, deadline)

    def _read_back(self, verdicts: Sequence[Future[SendResult]], deadline: float) -> list[SendResult]:
        unread = wait(verdicts, max(0.0, deadline - self.now())).not_done
        if unread:
            raise OutcomeUnknownError(f"{len(unread)} coordination records were not read back")
        return [verdict.result() for verdict in verdicts]

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # the thread

    def _run(self) -> None:
        try:
            self._memberships()
        except PenstockError as error:
            self._end(error)
        except BaseException as error:
            # The top of a thread: the next caller must see the bug.
            self._end(PenstockError("the claims agent crashed", detail=repr(error)))
            raise

    def _memberships(self) -> None:
        """One membership after another: each starts by reading the log from its snapshots."""
        while not self._stopping.is_set():
            if self._work_hangs():
                self._stopping.wait(POLL_SECONDS)
                continue
            try:
                self._membership()
            except (TransientError, OutcomeUnknownError) as error:
                self._report(CoordinationInterrupted(reason=error.primary, detail=error.detail))
                self._stopping.wait(min(1.0, self.member.heartbeat_seconds))

    def _end(self, error: PenstockError) -> None:
        with self._lock:
            self._error = error
            self._participant = None

    def _membership(self) -> None:
        started_at = self.now()
        with contextlib.closing(KafkaTopics(self._spec)) as topics:
            topic = open_topic(topics, self._coordination.topic, self._coordination.partitions)
        journal = Journal(self._spec, topic, self.member.group, self.member.heartbeat_seconds)
        try:
            session = Session(journal, self._spec, self.now)
            participant = self._catch_up(session)
            self.startup_seconds = self.now() - started_at
            self._take_part(session, participant)
        finally:
            journal.close()

    def _take_part(self, session: Session, participant: Participant) -> None:
        with self._lock:
            participant.request(*self._requested)
            participant.begin(self.now())
            self._participant, self._session = participant, session
        try:
            while not self._stopping.is_set() and not self._work_hangs():
                session.keep_pace(participant, self._awaited)
                self._turn(session, participant)
            if not self._stopping.is_set():
                reason = f"no progress for {self._work_timeout_seconds:.0f} s: this process releases its partitions"
                detail = "no round began, no step was reached and no Spark task ended; it joins again when work goes on"
                self._report(WorkHangs(reason, detail))
            self._leave(session, participant)
        finally:
            with self._lock:
                self._participant = self._session = None
                participant.outbox.abandon()

    def _catch_up(self, session: Session) -> Participant:
        """Read the log from its snapshot to its end, as a new process of this member."""
        options, topic = self._coordination, session.journal.topic
        view = GroupView(self.member.group, self.member.heartbeat_seconds)
        offset = session.begin(view, options.tables_remember)
        if self._topic_id not in (None, topic.topic_id) and not options.tables_remember:
            raise LostHistoryError(topic.name, self.member.group, RECREATED)
        self._topic_id = topic.topic_id
        nonce = uuid.uuid4().hex[:12]
        participant = Participant(self.member, nonce, view, frozenset(self._nonces))
        self._nonces.append(nonce)
        self.startup_records = catch_up(session.journal, lambda entries: session.take(participant, entries), offset)
        return participant

    def _turn(self, session: Session, participant: Participant) -> None:
        """Read, decide, send: the lock is not held while waiting for the broker."""
        entries = session.poll(participant, self._stopping.wait)
        with self._lock:
            session.take(participant, entries)
            session.send(participant, participant.decide(self.now()))
            session.keep_snapshots(participant)
        self._report_all(session.events, participant.events)
        session.check_identity(self.member.heartbeat_seconds)
        session.check_read_back(participant)

    def _report_all(self, *lists: list[Event]) -> None:
        """Without the lock: a listener may wait for a thread that needs this member."""
        with self._lock:
            events = [event for events in lists for event in events]
            for reported in lists:
                reported.clear()
        for event in events:
            self._report(event)

    def _leave(self, session: Session, participant: Participant) -> None:
        with self._lock:
            last_records = participant.leave(self.now())
            self._participant = self._session = None
            session.send(participant, last_records)
        if session.journal.flush(self.member.heartbeat_seconds):
            self._report(LeftSilently(reason="the broker did not take the last records in time"))
            return
        session.keep_last_snapshot(participant, last_records, self.member.heartbeat_seconds)
        session.journal.flush(self.member.heartbeat_seconds)
        self._report_all(session.events)


def default_client_id() -> str:
    """A random client id for a process that has none: it cannot take its claims back after a restart."""
    return f"{socket.gethostname()[:60]}-{uuid.uuid4().hex[:8]}"


def _check_member(member: MemberOptions) -> None:
    for name, text in (("group", member.group), ("client id", member.client_id)):
        if not text or len(text) > TEXT_CHARACTERS_MAX:
            raise UserError(f"the {name} must have 1 to {TEXT_CHARACTERS_MAX} characters, found {len(text)}")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"the {name} {text!r} is not valid text: it contains half of a surrogate pair")
    if member.heartbeat_seconds < HEARTBEAT_SECONDS_MIN:
        raise UserError(f"a heartbeat interval of {member.heartbeat_seconds} s is below {HEARTBEAT_SECONDS_MIN} s")
