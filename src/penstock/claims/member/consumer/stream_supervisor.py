"""A thread that keeps a member's streams in step with its claims, and what they deliver."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import count

from penstock.claims.member.agent import Agent
from penstock.claims.member.consumer.acks import Acks
from penstock.claims.member.consumer.start_offsets import DeliveryOptions, StartOffsetFinder, Topics
from penstock.claims.member.consumer.streams import Stream, Work, offset_of
from penstock.claims.member.session import EventListener
from penstock.claims.protocol.records import ClaimingMessages
from penstock.errors import OutcomeUnknownError, PenstockError, TransientError
from penstock.events import ReadingBegins, ReadingInterrupted
from penstock.logs.log import Partition

TURN_SECONDS = 0.05


class StreamSupervisor:
    """Starts and ends streams. `lock` guards them; `error` is what ended the thread."""

    def __init__(
        self,
        agent: Agent,
        log: Topics,
        start_offsets: StartOffsetFinder,
        options: DeliveryOptions,
        listener: EventListener,
    ) -> None:
        self.lock = threading.RLock()
        self.streams: dict[Partition, Stream] = {}
        self.error: PenstockError | None = None
        self.stuck = False
        """Whether the log has more of a stream than the consumer gives: the next poll replaces it."""
        self._agent = agent
        self._log = log
        self._options = options
        self._report = listener
        self._start_offsets = start_offsets
        self._numbers = count(1)
        self._interval_seconds = agent.member.heartbeat_seconds
        self._looked_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(name=f"streams {agent.member.client_id}", target=self._run, daemon=True)

    def start(self) -> None:
        """Look at the topics, so that a wrong name fails here, and start the thread."""
        partitions = self._log.partitions()
        self._start_offsets.know(frozenset(partitions))
        self._agent.request(partitions, {})
        self._thread.start()

    def close(self) -> None:
        """End the thread; all its waits are bounded."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def owns(self, stream: Stream) -> bool:
        """Whether work of this stream may still be reported as done.

        At least once: only while the claim is certainly ours, as another member may be doing it again.
        At most once: until the claim is known to be lost, as no other member will do it.
        """
        if stream.over:
            return False
        if self._agent.confirmed(stream.partition, stream.token):
            return True
        return self._options.at_most_once and not self._surely_lost(stream)

    def stream_of(self, work: Work) -> Stream | None:
        """The stream that a record was handed out by, if its claim still counts."""
        with self.lock:
            stream = self.streams.get(work.partition)
            if stream is None or stream.token != work.token:
                return None
            if work.stream and work.stream != stream.number:
                # The claim was unconfirmed meanwhile: the present stream delivers again what was not done before.
                return None
            if self.owns(stream):
                return stream
            # The caller drops the refused record: if the claim is ours after all, it must be delivered again.
            stream.stale = True
            return None

    def report(self) -> None:
        """Report to the agent how far each stream is and where work is in flight, for heartbeats and releases.

        Only for the claim that the stream belongs to: a newer one may have been moved to an earlier position. Also
        while it is unconfirmed: it may be released then, and what is done would be done again, or listed as lost.
        """
        # A process that is not a member at the moment has nothing to report.
        with self.lock, suppress(TransientError), self._agent.looking() as participant:
            for partition, stream in self.streams.items():
                if participant.view.claim(partition).held_by(participant.who, stream.token):
                    participant.holdings.progress(partition, stream.acks.position, stream.lag)
            participant.holdings.using(key for key, stream in self.streams.items() if stream.acks.undone)

    def _run(self) -> None:
        while not self._stopping.wait(TURN_SECONDS):
            try:
                self._turn()
            except (TransientError, OutcomeUnknownError) as error:
                self._report(ReadingInterrupted(reason=error.primary, detail=error.detail))
                self._stopping.wait(min(1.0, self._interval_seconds))
            except PenstockError as error:
                self.error = error
                return
            except BaseException as error:
                # The top of a thread: the next poll must see the bug.
                self.error = PenstockError("the stream supervisor of a member crashed", detail=repr(error))
                raise

    def _turn(self) -> None:
        self._start_offsets.see_begun()
        held = self._agent.held()
        with self.lock:
            for partition in [partition for partition, stream in self.streams.items() if not self.owns(stream)]:
                del self.streams[partition]
        self.report()
        new = {partition: token for partition, token in held.items() if partition not in self.streams}
        if new:
            self._start_streams(new)
        now = self._agent.now()
        if now - self._looked_at >= self._interval_seconds:
            self._looked_at = now
            self._agent.request(self._log.partitions(), {})
            if self.streams:
                self._check_ends()

    def _start_streams(self, tokens: Mapping[Partition, int]) -> None:
        starts = self._start_offsets.find(tokens)
        with self.lock:
            for partition, offset in starts.items():
                acks = Acks(partition, tokens[partition], offset, self._options.in_flight_max)
                self.streams[partition] = Stream(acks, next(self._numbers))
        for partition, offset in starts.items():
            self._report(ReadingBegins(partition=str(partition), token=tokens[partition], offset=offset))
        self._looked_at = float("-inf")

    def _check_ends(self) -> None:
        """Ask the log for the ends of all streams: for their lag, and to see whether the consumer is stuck."""
        bounds = self._log.bounds(self.streams)
        with self.lock:
            for partition, stream in self.streams.items():
                if partition in bounds:
                    stream.log_end = bounds[partition].end
            self.stuck = self.stuck or any(stream.stuck() for stream in self.streams.values())

    def _surely_lost(self, stream: Stream) -> bool:
        with suppress(TransientError), self._agent.looking() as participant:
            return not participant.view.claim(stream.partition).held_by(participant.who, stream.token)
        return False


class Deliveries:
    """Takes records from the queues of a supervisor's streams; used by one thread at a time.

    Only for claims that are certainly ours, and at most once only what is announced.
    """

    def __init__(self, agent: Agent, supervisor: StreamSupervisor, at_most_once: bool) -> None:
        self._agent = agent
        self._supervisor = supervisor
        self._at_most_once = at_most_once
        self._turns = 0

    def hand_out(self, count_max: int) -> list[Work]:
        """The next records; those of other claims stay in their queues, or are dropped with their streams."""
        counts = self._waiting(count_max)
        if self._at_most_once:
            self._announce(counts)
            counts = self._announced(counts)
        if not counts:
            return []
        with self._supervisor.lock:
            ready = set(self._ready())
            works = [work for stream, count in counts.items() if stream in ready for work in stream.hand_out(count)]
        self._supervisor.report()
        return works

    def _waiting(self, count_max: int) -> dict[Stream, int]:
        """How many records each stream would deliver, within the limit for all."""
        counts: dict[Stream, int] = {}
        with self._supervisor.lock:
            for stream in self._ready():
                count = len(stream.next_messages(count_max))
                count_max -= count
                if count:
                    counts[stream] = count
        return counts

    def _ready(self) -> list[Stream]:
        """The streams that may deliver now; they take turns to be the first."""
        held = self._agent.held()
        streams = self._supervisor.streams.values()
        ready = [stream for stream in streams if held.get(stream.partition) == stream.token and not stream.stale]
        self._turns += 1
        first = self._turns % max(1, len(ready))
        return ready[first:] + ready[:first]

    # at most once

    def _announce(self, counts: Mapping[Stream, int]) -> None:
        """Claim the next records of these streams in the log, unless that is done already."""
        announced = self._announced(counts)
        about = [
            (stream.partition, {"token": stream.token, "end": _end(stream, count)})
            for stream, count in counts.items()
            if stream not in announced
        ]
        if about:
            # If it fails, the records stay in their queues; the log shows now or at the next poll what is claimed.
            with suppress(TransientError, OutcomeUnknownError):
                self._agent.send_all(ClaimingMessages, about)

    def _announced(self, counts: Mapping[Stream, int]) -> dict[Stream, int]:
        """Those of the streams whose next records are claimed by us in the log: no other member can claim them."""
        with suppress(TransientError), self._agent.looking() as participant:
            claims = {stream: participant.view.claim(stream.partition) for stream in counts}
            return {
                stream: count
                for stream, count in counts.items()
                if claims[stream].held_by(participant.who, stream.token)
                and (claims[stream].claimed or 0) >= _end(stream, count)
            }
        return {}


def _end(stream: Stream, count: int) -> int:
    """The offset after the last of a stream's next records."""
    return offset_of(stream.next_messages(count)[-1]) + 1
