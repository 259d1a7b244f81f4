"""Clients of Kafka that stop answering after a restart of their broker: seen, and replaced."""

from __future__ import annotations

import json
from typing import Any, cast

from penstock.claims.member.consumer.acks import Acks
from penstock.claims.member.consumer.streams import UNANSWERED_SECONDS_MAX, Stream
from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.participant import Participant
from penstock.claims.member.session import UNREAD_INTERVALS_MAX, Session
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import JoiningGroup
from penstock.logs.kafka.reader import next_offsets
from penstock.logs.log import Partition

INTERVAL = 1.0


class Listening:
    """A session in which only its participant and its clock count."""

    def __init__(self) -> None:
        self.now = 100.0
        options = MemberOptions("group", "anna", INTERVAL)
        self.participant = Participant(options, "nonce", GroupView("group", INTERVAL))
        self.participant.begin(self.now)
        self.replaced = 0
        self.session = Session(cast(Any, self), cast(Any, None), lambda: self.now)
        self.session.check_read_back(self.participant)

    def reopen(self) -> None:
        """As the journal: its clients are replaced."""
        self.replaced += 1

    def turns(self, seconds: float) -> None:
        """The agent turns ten times a second."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.session.check_read_back(self.participant)

    def reads_itself(self) -> None:
        outbox = self.participant.outbox
        joining = outbox.record_of(JoiningGroup, if_last=None, heartbeat_seconds=INTERVAL, wants=())
        self.participant.read(0, joining, self.now, self.now)


def test_a_member_replaces_its_clients_if_nothing_that_it_wrote_comes_back() -> None:
    member = Listening()
    member.turns(UNREAD_INTERVALS_MAX * INTERVAL - 0.5)
    assert member.replaced == 0
    member.turns(1.0)
    assert member.replaced == 1
    assert "came back" in str(member.session.events)
    member.turns(UNREAD_INTERVALS_MAX * INTERVAL - 1.0)
    assert member.replaced == 1, "the new ones have as much time"


def test_a_member_that_reads_its_own_records_continues() -> None:
    member = Listening()
    member.turns(UNREAD_INTERVALS_MAX * INTERVAL - 0.5)
    member.reads_itself()
    member.turns(UNREAD_INTERVALS_MAX * INTERVAL - 0.5)
    assert member.replaced == 0


def test_a_process_that_slept_first_reads_what_waits_for_it() -> None:
    member = Listening()
    member.turns(1.0)
    member.now += 1000.0
    member.turns(UNREAD_INTERVALS_MAX * INTERVAL - 0.5)
    assert member.replaced == 0
    member.turns(1.0)
    assert member.replaced == 1


def test_a_stream_is_stuck_if_the_log_has_more_and_the_consumer_gives_nothing_although_it_was_asked() -> None:
    stream = Stream(Acks(Partition("topic", "id", 0), 1, 5, 10), log_end=6)
    assert stream.fetch_from == 5
    stream.unanswered_seconds = UNANSWERED_SECONDS_MAX + 1
    assert stream.stuck()
    stream.log_end = 5
    assert not stream.stuck(), "there is nothing to give"
    stream.take(7, 7)
    assert (stream.fetch_from, stream.unanswered_seconds) == (7, 0.0)
    stream.log_end = 8
    assert not stream.stuck(), "it was not asked for long"


def test_a_consumer_that_passes_over_an_aborted_transaction_is_not_stuck() -> None:
    stream = Stream(Acks(Partition("topic", "id", 0), 1, 0, 10), log_end=1000)
    for fetched_to in (100, 200, 300):
        stream.unanswered_seconds = UNANSWERED_SECONDS_MAX + 1
        stream.note_progress(fetched_to)
        assert not stream.stuck()
    stream.unanswered_seconds = UNANSWERED_SECONDS_MAX + 1
    stream.note_progress(300)
    assert stream.stuck(), "its position is the same as before"


def test_progress_is_read_from_the_clients_statistics() -> None:
    partitions = {"0": {"next_offset": 7}, "1": {"next_offset": 9}, "-1": {}}
    assert next_offsets(json.dumps({"topics": {"hits": {"partitions": partitions}}})) == {
        ("hits", 0): 7,
        ("hits", 1): 9,
    }
    assert next_offsets(json.dumps({"topics": {}})) == {}
