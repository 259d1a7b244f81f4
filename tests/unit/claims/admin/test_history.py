"""The history of a group: every kind of change is a line that says who, when, where and why."""

from __future__ import annotations

from penstock.claims.admin.history import HistoryReader
from penstock.claims.admin.lines import Change, HistoryStart, Line
from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    FreeingPartition,
    GivingUpRange,
    Heartbeat,
    LeavingGroup,
    OpeningRanges,
    ReleaseGroup,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
    Wish,
)
from penstock.cli.claims.text import line_json, line_text
from tests.coordination import ANNA, BERT, CLEO, WEB, Log, web


class RecordedLog:
    """A coordination log whose records are appended at times that the test sets; its members join at 0."""

    def __init__(self, cut: int = 0) -> None:
        self.log = Log()
        self.reader = HistoryReader(0, cut)
        self._told = cut
        self._now = 0.0

    def at(self, seconds: float) -> Log:
        """What is said from here on is appended at that time."""
        self._tell()
        self._now = seconds
        return self.log

    def lines(self) -> tuple[Line, ...]:
        """All but the first joins."""
        self._tell()
        return tuple(each for each in self.reader.history().lines if each.offset >= 3)

    def changes(self) -> list[Change]:
        return [each.change for each in self.lines()]

    def last(self) -> Line:
        return self.lines()[-1]

    def silence(self, who: Who, by: Who) -> None:
        """A member is said to be dead by somebody who has read everything."""
        last = self.log.state.members[who.client_id].last
        assert self.log.say(ForgettingMember, by, client_id=who.client_id, if_last=last) is None

    def _tell(self) -> None:
        for offset in range(self._told, len(self.log.records)):
            self.reader.read(offset, self._now, self.log.records[offset])
        self._told = max(self._told, len(self.log.records))


# ownership


def test_a_claim_is_one_line_with_its_heartbeats_and_its_end() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=70)
    recorded.at(112).release(ANNA, 1, 75, reason="above the fair share")
    claimed, released = recorded.lines()
    assert (claimed.change, claimed.who, claimed.at, claimed.token) == (Change.CLAIMED, "anna", 100, 1)
    assert (claimed.heartbeats, claimed.last_at, claimed.last_position) == (2, 110, 75)
    assert (claimed.ended, claimed.ended_at) == ("released: above the fair share", 112)
    assert (released.change, released.position, released.reason) == (Change.RELEASED, 75, "above the fair share")


def test_the_next_owner_begins_where_the_last_one_stopped() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).release(ANNA, 1, 75)
    recorded.at(102).claim(BERT)
    line = recorded.last()
    assert (line.change, line.who, line.before, line.position, line.token) == (Change.CLAIMED, "bert", "anna", 75, 2)
    assert line.ended_at is None


def test_a_take_over_says_from_whom_and_how_long_it_was_silent() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130.5)
    recorded.silence(ANNA, BERT)
    recorded.at(131).claim(BERT)
    first, silent, second = recorded.lines()
    assert (silent.change, silent.before, silent.who, silent.silent_seconds) == (Change.SILENT, "anna", "bert", 25.5)
    assert (second.change, second.before, second.silent_seconds) == (Change.TAKEN_OVER, "anna", 25.5)
    assert (second.position, second.token) == (40, 2)
    assert (first.ended, first.ended_at) == ("anna fell silent", 130.5)


def test_a_restart_under_the_same_client_id_is_not_a_take_over() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(121).join(Who("anna", "a2"))
    recorded.at(122).claim(Who("anna", "a2"))
    first, joined, second = recorded.lines()
    assert (joined.change, joined.reason) == (Change.JOINED, "again, in a new process")
    assert (second.change, second.before, second.silent_seconds) == (Change.RESTARTED, "anna", 21)
    assert first.ended == "restarted"


def test_a_claim_that_lost_the_race_is_told_with_its_reason() -> None:
    recorded = RecordedLog()
    log = recorded.at(100)
    log.claim(ANNA)
    log.say(ClaimingPartition, BERT, wishes=(Wish(WEB), Wish(web(1))))
    lost, won = recorded.lines()[-2:]
    assert (lost.change, lost.who, lost.record, lost.partition) == (Change.REFUSED, "bert", "ClaimingPartition", WEB)
    assert lost.reason == "the partition changed meanwhile"
    assert (won.change, won.partition) == (Change.CLAIMED, web(1))


def test_heartbeats_of_one_who_was_taken_for_dead_are_one_line() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(130)
    recorded.silence(ANNA, BERT)
    recorded.at(130).claim(BERT)
    for seconds in (131, 136, 141):
        recorded.at(seconds).beat(ANNA, token=1, position=50)
    refused = recorded.last()
    assert (refused.change, refused.who, refused.record, refused.heartbeats) == (
        Change.REFUSED,
        "anna",
        "Heartbeat",
        3,
    )
    assert (refused.at, refused.last_at) == (131, 141)


def test_a_target_is_told_with_its_size() -> None:
    recorded = RecordedLog()
    recorded.at(100).balance()
    assert (recorded.last().change, recorded.last().reason) == (Change.BALANCED, "1 partitions for 1 members")


def test_what_an_administrator_frees_is_told_as_released_by_it() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).say(FreeingPartition, Who("admin", "x"), partition=WEB, if_token=1, position=5)
    claimed, released, sought = recorded.lines()
    assert claimed.ended == "released"
    assert (released.change, released.who, released.token) == (Change.RELEASED, "admin", 2)
    assert (sought.change, sought.position) == (Change.SOUGHT, 5)


def test_a_seek_says_from_where_to_where() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).beat(ANNA, token=1, position=40)
    recorded.at(102).say(Seeking, ANNA, partition=WEB, if_token=1, position=10, reason="again")
    line = recorded.last()
    assert (line.change, line.start, line.position, line.reason) == (Change.SOUGHT, 40, 10, "again")


def test_claimed_messages_are_part_of_the_claim_and_what_a_successor_gives_up_is_told() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).beat(ANNA, token=1, position=40)
    recorded.at(102).say(ClaimingMessages, ANNA, partition=WEB, token=1, end=60)
    recorded.at(130)
    recorded.silence(ANNA, BERT)
    recorded.at(130).claim(BERT)
    first, _, second = recorded.lines()
    assert first.claimed_end == 60
    assert (second.position, second.given_up) == (60, ((40, 60),))


# members and pauses


def test_members_that_come_go_and_are_forgotten() -> None:
    recorded = RecordedLog()
    recorded.at(102).join(Who("anna", "a2"))
    recorded.at(103).join(Who("anna", "a3"), if_last=0)
    recorded.at(104).say(LeavingGroup, BERT)
    recorded.at(400)
    recorded.silence(BERT, CLEO)
    assert [(each.change, each.who) for each in recorded.lines()] == [
        (Change.JOINED, "anna"),
        (Change.REFUSED, "anna"),
        (Change.LEFT, "bert"),
        (Change.FORGOTTEN, "cleo"),
    ]
    assert recorded.lines()[0].reason == "again, in a new process"
    assert recorded.last().before == "bert"


def test_who_leaves_releases_everything_first() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).say(LeavingGroup, ANNA, beats=(Beat(WEB, 1, 9),))
    claimed, released, left = recorded.lines()
    assert (released.change, released.position, released.reason) == (Change.RELEASED, 9, "the process ended")
    assert (left.change, claimed.ended) == (Change.LEFT, "released: the process ended")


def test_a_pause_is_a_line_with_its_end() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(ReleaseGroup, ANNA, pause_id="p1", for_seconds=400.0, reason="maintenance")
    recorded.at(300).say(ResumingGroup, BERT, pause_id="p1")
    # Another member said it too, a moment later.
    recorded.at(300.2).say(ResumingGroup, CLEO, pause_id="p1")
    paused, resumed = recorded.lines()
    assert (paused.change, paused.at, paused.until_at, paused.reason) == (Change.PAUSED, 100, 500.0, "maintenance")
    assert paused.ended == "resumed"
    assert (resumed.change, resumed.who) == (Change.RESUMED, "bert")


def test_a_claim_during_a_pause_is_refused_because_of_it() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(ReleaseGroup, CLEO, pause_id="p1")
    recorded.at(101).claim(ANNA)
    assert (recorded.last().change, recorded.last().reason) == (Change.REFUSED, "the group is paused")


# ranges


def shared() -> RecordedLog:
    """Anna shares a partition from 0 on at 100; Bert leases [0, 10) at 101."""
    recorded = RecordedLog()
    log = recorded.at(100)
    log.claim(ANNA)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    recorded.at(101).lease_next(BERT)
    return recorded


def test_a_shared_partition_and_its_ranges_are_told() -> None:
    recorded = shared()
    lease = recorded.log.lease(0)
    recorded.at(102).say(FinishingRange, BERT, partition=WEB, token=1, start=0, lease=lease.lease)
    recorded.at(103).say(ClosingRanges, ANNA, partition=WEB, token=1)
    assert recorded.changes() == [
        Change.CLAIMED,
        Change.SHARED,
        Change.RANGE_CLAIMED,
        Change.RANGE_FINISHED,
        Change.UNSHARED,
    ]
    _, _, claimed, finished, _ = recorded.lines()
    assert (claimed.who, claimed.start, claimed.end, claimed.attempts) == ("bert", 0, 10, 1)
    assert (finished.start, finished.end, finished.position) == (0, 10, 10)


def test_a_range_that_is_taken_over_says_from_whom_and_which_attempt_it_is() -> None:
    recorded = shared()
    lease = recorded.log.lease(0).lease
    recorded.at(105).say(Heartbeat, BERT)
    recorded.at(131)
    recorded.silence(BERT, CLEO)
    recorded.at(131).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10, if_lease=lease)
    line = recorded.last()
    assert (line.change, line.who, line.before) == (Change.RANGE_TAKEN_OVER, "cleo", "bert")
    assert (line.silent_seconds, line.attempts) == (26, 2)


def test_a_range_that_was_given_back_is_claimed_and_not_taken_over() -> None:
    recorded = shared()
    recorded.at(102).say(ReturningRange, BERT, partition=WEB, token=1, start=0, lease=recorded.log.lease(0).lease)
    again = recorded.log.lease(0).lease
    recorded.at(103).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10, if_lease=again)
    returned, claimed = recorded.lines()[-2:]
    assert (returned.change, returned.who) == (Change.RANGE_RETURNED, "bert")
    assert (claimed.change, claimed.before, claimed.attempts) == (Change.RANGE_CLAIMED, "", 2)


def test_a_range_that_is_given_up_names_the_lost_offsets() -> None:
    recorded = shared()
    recorded.at(131)
    recorded.silence(BERT, CLEO)
    lease = recorded.log.lease(0).lease
    recorded.at(131).say(GivingUpRange, CLEO, partition=WEB, token=1, start=0, if_lease=lease)
    line = recorded.last()
    assert (line.change, line.before, line.given_up) == (Change.RANGE_GIVEN_UP, "bert", ((0, 10),))
    assert line.silent_seconds == 30


def test_a_range_claimed_twice_is_refused_to_the_second() -> None:
    recorded = shared()
    recorded.at(102).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10)
    line = recorded.last()
    assert (line.change, line.start, line.end) == (Change.REFUSED, 0, 10)
    assert line.reason == "the range was claimed by another member"


# what is not a record, and what is gone


def test_what_is_no_record_of_ours_is_told_as_such() -> None:
    reader = HistoryReader(3)
    reader.read(6, 99.0, None)
    reader.read(7, 100.0, None, "not JSON")
    [line] = reader.history().lines
    assert (line.change, line.place, line.offset, line.reason) == (Change.FOREIGN, 3, 7, "not JSON")


def test_a_log_that_lost_its_beginning_says_so_and_knows_owners_by_their_heartbeats() -> None:
    recorded = RecordedLog(cut=5)
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=50)
    recorded.at(140)
    recorded.silence(ANNA, BERT)
    recorded.at(140).claim(BERT)
    held, silent, taken_over = recorded.lines()
    assert recorded.reader.history().starts == (HistoryStart(0, 5),)
    assert (held.change, held.who, held.token, held.position) == (Change.HELD_BEFORE, "anna", 1, 50)
    assert silent.change is Change.SILENT
    assert (taken_over.change, taken_over.before, taken_over.silent_seconds) == (Change.TAKEN_OVER, "anna", 30)


def test_wherever_a_log_is_cut_the_changes_after_it_are_reported_alike() -> None:
    """After the first heartbeats of both partitions: from there on inference is as good as having read all."""

    def said(recorded: RecordedLog) -> None:
        log = recorded.at(100)
        log.claim(ANNA)
        log.claim(BERT, web(1))
        log.beat(ANNA, token=1, position=5)
        log.beat(BERT, token=1, position=6, partition=web(1))
        log.beat(ANNA, token=1, position=7)
        log.beat(BERT, token=1, position=8, partition=web(1))
        log.release(ANNA, 1, 9, reason="above the fair share")
        log.claim(BERT)
        log.say(ClaimingPartition, ANNA, wishes=(Wish(WEB, 1),))
        log.say(LeavingGroup, ANNA)
        log.join(Who("bert", "b2"))
        log.claim(Who("bert", "b2"), web(1))

    whole = RecordedLog()
    said(whole)
    later = [(each.offset, each.change, each.who, each.token) for each in whole.lines() if each.offset >= 9]
    assert len(later) == 6
    for cut in (1, 3, 6, 7):
        recorded = RecordedLog(cut=cut)
        said(recorded)
        assert [
            (each.offset, each.change, each.who, each.token) for each in recorded.lines() if each.offset >= 9
        ] == later


def test_the_newest_lines_are_chosen() -> None:
    recorded = RecordedLog()
    for number in range(3):
        recorded.at(100.0 + number).claim(ANNA, web(number))
    assert len(recorded.lines()) == 3
    assert [each.partition for each in recorded.reader.history(limit=2).lines] == [web(1), web(2)]
    assert recorded.reader.history().records == 6


# words and JSON


def test_every_line_has_a_sentence_with_who_did_what_and_why() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130)
    recorded.silence(ANNA, BERT)
    recorded.at(130).claim(BERT)
    assert [line_text(each) for each in recorded.lines()] == [
        "web/0: anna claimed it with token 1; 1 heartbeats up to 40; anna fell silent after 30s",
        "group: anna fell silent (silent for 25.0 s), and all it held is free (sent by bert)",
        "web/0: bert took it over from anna (silent for 25.0 s) with token 2 at 40; held",
    ]


def test_json_leaves_out_what_is_not_told_and_keeps_a_position_of_zero() -> None:
    recorded = RecordedLog()
    recorded.at(0).claim(ANNA)
    recorded.at(1).say(
        Heartbeat,
        ANNA,
        beats=(Beat(WEB, 1, 0),),
    )
    assert line_json(recorded.last()) == {
        "change": "claimed",
        "at": "1970-01-01T00:00:00.000Z",
        "place": 0,
        "offset": 3,
        "who": "anna",
        "topic": "web",
        "topic_id": "id-of-web",
        "partition": 0,
        "token": 1,
        "heartbeats": 1,
        "last_at": "1970-01-01T00:00:01.000Z",
        "last_position": 0,
    }
