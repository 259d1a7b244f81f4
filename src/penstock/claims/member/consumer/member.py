"""A member of a group for any Python program: coordination through Kafka alone, records delivered one by one.

See docs/claims-library.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from penstock.claims.member.agent import Agent, CoordinationOptions, default_client_id
from penstock.claims.member.consumer.acks import LostClaimError
from penstock.claims.member.consumer.start_offsets import IN_FLIGHT_MAX, Delivery, DeliveryOptions, StartOffsetFinder
from penstock.claims.member.consumer.stream_supervisor import Deliveries, StreamSupervisor
from penstock.claims.member.consumer.streams import StreamReader, Work
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.session import EventListener, logger, unfailing
from penstock.errors import PenstockError, UserError
from penstock.events import ConsumerReplaced, Event
from penstock.job.spec import KafkaLogSpec, StartAt
from penstock.logs.kafka.topics import KafkaTopics
from penstock.logs.log import Partition

POLL_COUNT_MAX = 500
FETCH_SECONDS = 0.1
"""How long a poll waits for records before it looks for newly claimed partitions."""


def _log(event: Event) -> None:
    """The default listener of a member: Python's logging."""
    logger.info("%s %s", event.name, event.facts())


class Member:
    """One process of a group. Every method may be called from any thread; polls run one at a time."""

    def __init__(
        self,
        where: str | KafkaLogSpec,
        *,
        group: str,
        topics: Sequence[str] = (),
        client_id: str | None = None,
        delivery: Delivery = "at_least_once",
        start: StartAt | None = None,
        heartbeat_seconds: float = 10.0,
        in_flight_max: int = IN_FLIGHT_MAX,
        coordination: CoordinationOptions | None = None,
        listener: EventListener = _log,
    ) -> None:
        spec, listener = _log_spec(where, topics, start), unfailing(listener)
        options = DeliveryOptions(delivery, in_flight_max, spec.start)
        member = MemberOptions(group, client_id or default_client_id(), heartbeat_seconds)
        self._agent = Agent(spec, member, coordination, listener)
        call_seconds_max = max(1.0, heartbeat_seconds)
        self._topics = KafkaTopics(spec, call_seconds_max)
        start_offsets = StartOffsetFinder(
            self._agent, self._topics, lambda: KafkaTopics(spec, call_seconds_max), options, listener
        )
        self._supervisor = StreamSupervisor(self._agent, self._topics, start_offsets, options, listener)
        self._reader = StreamReader(spec, group)
        self._report = listener
        self._deliveries = Deliveries(self._agent, self._supervisor, options.at_most_once)
        self._polling = threading.Lock()
        self._closing = threading.Event()
        self._closed = False
        self._started = False

    @property
    def client_id(self) -> str:
        return self._agent.member.client_id

    def start(self) -> Member:
        """Join the group in the background; UserError for a topic that does not exist."""
        self._open()
        if not self._started:
            self._started = True
            self._supervisor.start()
            self._agent.start()
        return self

    def close(self) -> None:
        """Release everything at the finished positions, so that others continue at once; may be called twice."""
        self._closing.set()
        with self._polling:
            if self._closed:
                return
            self._closed = True
            if self._started:
                self._supervisor.close()
                with contextlib.suppress(PenstockError):
                    # What ended the agent was raised by poll; there is nothing left to report to.
                    self._supervisor.report()
                self._agent.close()
            self._reader.close()
            self._topics.close()

    # records

    def poll(self, seconds: float = 1.0, count_max: int = POLL_COUNT_MAX) -> list[Work]:
        """The next records of the held partitions, in order within each; empty if none came in time.

        At most once, they are claimed in the log first, which may take two heartbeat intervals more.
        Raises what ended the member: after a UserError or FencedError only `close` is left.
        """
        deadline = self._agent.now() + seconds
        with self._polling:
            self._open()
            if not self._started:
                raise UserError("the member was not started", hint="use `with Member(...) as member:`, or start()")
            while not self._closing.is_set():
                if self._supervisor.error is not None:
                    raise self._supervisor.error
                with self._supervisor.lock:
                    streams = dict(self._supervisor.streams)
                    stuck, self._supervisor.stuck = self._supervisor.stuck, False
                if stuck:
                    self._report(ConsumerReplaced(reason="it returned nothing although the log has more"))
                    self._reader.replace_consumer()
                self._reader.follow(streams)
                result = self._deliveries.hand_out(count_max)
                remaining_seconds = deadline - self._agent.now()
                if result or remaining_seconds <= 0:
                    return result
                self._reader.fetch(min(remaining_seconds, FETCH_SECONDS))
            return []

    def done(self, work: Work) -> None:
        """Report that the work on a record is finished: in any order, from any thread.

        LostClaimError if another member may be doing it by now; UserError if it was done before or never handed out.
        """
        with self._supervisor.lock:
            stream = self._supervisor.stream_of(work)
            if stream is None:
                raise LostClaimError(work.partition, work.offset, work.token)
            stream.acks.done(work.offset, work.token)

    # status

    def held(self) -> dict[Partition, int]:
        """The partitions that are this member's now, each with its token."""
        return self._agent.held()

    def positions(self) -> dict[Partition, int]:
        """The offset up to which every record is done, for each partition being read."""
        with self._supervisor.lock:
            return {partition: stream.acks.position for partition, stream in self._supervisor.streams.items()}

    def lag(self) -> dict[Partition, int]:
        """Records from the position to the log's end, as it was at the last heartbeat."""
        with self._supervisor.lock:
            return {partition: stream.lag for partition, stream in self._supervisor.streams.items()}

    def losses(self) -> dict[Partition, tuple[tuple[int, int], ...]]:
        """The group's loss ledger: ranges `[start, end)` that were claimed at most once and never reported as done."""
        with self._agent.looking() as participant:
            claims = participant.view.state.claims
            return {partition: claim.given_up for partition, claim in claims.items() if claim.given_up}

    def __enter__(self) -> Member:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._closed:
            raise UserError("the member is closed")


def _log_spec(where: str | KafkaLogSpec, topics: Sequence[str], start: StartAt | None) -> KafkaLogSpec:
    """The log of a member: by its brokers alone, or by a full description with client settings."""
    if isinstance(topics, str):
        raise UserError(f"topics is the text {topics!r}, must be a list of names", hint=f"topics=[{topics!r}]")
    spec = KafkaLogSpec(bootstrap=where) if isinstance(where, str) else where
    if topics:
        spec = replace(spec, topics=tuple(topics), topic_pattern=None)
    if not spec.topics and spec.topic_pattern is None:
        raise UserError("a member needs at least one topic", hint="topics=['orders']")
    if start is not None:
        if start not in get_args(StartAt):
            raise UserError(f"start is {start!r}, must be one of {', '.join(get_args(StartAt))}")
        spec = replace(spec, start=start)
    return spec
