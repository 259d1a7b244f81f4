"""Delivers what was fetched: only for claims that are certainly ours, and at most once only what is announced."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.claims.consumer.stream_supervisor import StreamSupervisor
from penstock.claims.consumer.streams import Stream, Work, offset_of
from penstock.claims.member.agent import Agent
from penstock.claims.protocol.records import ClaimingMessages
from penstock.errors import OutcomeUnknownError, TransientError


class Deliveries:
    """Takes records from the queues of a supervisor's streams; used by one thread at a time."""

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
            now = self._agent.now()
            found = [
                work for stream, count in counts.items() if stream in ready for work in stream.hand_out(count, now)
            ]
        self._supervisor.report()
        return found

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
        ready = [
            each
            for each in self._supervisor.streams.values()
            if held.get(each.partition) == each.token and not each.stale
        ]
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
        if not about:
            return
        try:
            self._agent.say_each(ClaimingMessages, about)
        except (TransientError, OutcomeUnknownError):
            # The records stay in their queues; the log shows now or at the next poll whether they are claimed.
            return

    def _announced(self, counts: Mapping[Stream, int]) -> dict[Stream, int]:
        """Those of the streams whose next records are ours in the log: under our token nobody else can claim them."""
        try:
            with self._agent.looking() as participant:
                claims = {stream: participant.view.claim(stream.partition) for stream in counts}
                return {
                    stream: count
                    for stream, count in counts.items()
                    if claims[stream].held_by(participant.who)
                    and claims[stream].token == stream.token
                    and (claims[stream].claimed or 0) >= _end(stream, count)
                }
        except TransientError:
            return {}


def _end(stream: Stream, count: int) -> int:
    """The offset after the last of a stream's next records."""
    return offset_of(stream.next_messages(count)[-1]) + 1
