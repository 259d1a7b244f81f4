"""The history of a group: every kind of change is a line that says who, when, where and why."""

from __future__ import annotations

from penstock.claims.admin.history import Change, HistoryReader, Line
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
        self.reader = HistoryReader(cut)
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
        return tuple(each for each in self.reader.lines if each.offset >= 3)

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


def test_a_claim_and_its_release_are_a_line_each_and_heartbeats_are_none() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=70)
    recorded.at(112).release(ANNA, 1, 75, reason="above the fair share")
    claimed, released = recorded.lines()
    assert (claimed.change, claimed.who, claimed.at, claimed.token) == (Change.CLAIMED, "anna", 100, 1)
    assert (released.change, released.who, released.at, released.token) == (Change.RELEASED, "anna", 112, 1)
    assert (released.position, released.reason) == (75, "above the fair share")


def test_the_next_owner_begins_where_the_last_one_stopped() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).release(ANNA, 1, 75)
    recorded.at(102).claim(BERT)
    line = recorded.last()
    assert (line.change, line.who, line.before, line.position, line.token) == (Change.CLAIMED, "bert", "anna", 75, 2)


def test_a_take_over_says_from_whom_and_how_long_it_was_silent() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130.5)
    recorded.silence(ANNA, BERT)
    recorded.at(131).claim(BERT)
    _, silent, released, second = recorded.lines()
    assert (silent.change, silent.before, silent.who, silent.silent_seconds) == (Change.SILENT, "anna", "bert", 25.5)
    assert (released.change, released.before, released.who) == (Change.RELEASED, "anna", "bert")
    assert (released.at, released.position, released.silent_seconds) == (130.5, 40, 25.5)
    assert released.reason == "silent"
    assert (second.change, second.who, second.before) == (Change.CLAIMED, "bert", "anna")
    assert (second.position, second.token) == (40, 2)


def test_a_restart_under_the_same_client_id_is_not_a_take_over() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(121).join(Who("anna", "a2"))
    recorded.at(122).claim(Who("anna", "a2"))
    _, joined, released, second = recorded.lines()
    assert (joined.change, joined.reason) == (Change.JOINED, "again, in a new process")
    assert (released.change, released.before, released.who, released.at) == (Change.RELEASED, "anna", "anna", 121)
    assert released.reason == "restarted"
    assert (second.change, second.before, second.who) == (Change.CLAIMED, "anna", "anna")


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
    [refused] = [each for each in recorded.lines() if each.change is Change.REFUSED]
    assert (refused.who, refused.record, refused.at) == ("anna", "Heartbeat", 131)
    assert refused.reason == "the sender is not a member"


def test_a_heartbeat_of_one_who_only_asks_for_the_time_is_no_line() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(Heartbeat, Who("dora", "d1"))
    assert recorded.lines() == ()


def test_a_target_is_told_with_its_size() -> None:
    recorded = RecordedLog()
    recorded.at(100).balance()
    assert (recorded.last().change, recorded.last().reason) == (Change.BALANCED, "1 partitions for 1 members")


def test_what_an_administrator_frees_is_told_as_released_by_it() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).say(FreeingPartition, Who("admin", "x"), partition=WEB, if_token=1, position=5)
    _, released, sought = recorded.lines()
    assert (released.change, released.who, released.before) == (Change.RELEASED, "admin", "anna")
    assert released.token == 2
    assert (sought.change, sought.position) == (Change.SOUGHT, 5)


def test_a_seek_says_from_where_to_where() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).beat(ANNA, token=1, position=40)
    recorded.at(102).say(Seeking, ANNA, partition=WEB, if_token=1, position=10, reason="again")
    line = recorded.last()
    assert (line.change, line.start, line.position, line.reason) == (Change.SOUGHT, 40, 10, "again")


def test_claimed_messages_are_no_line_and_what_a_successor_gives_up_is_told() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).beat(ANNA, token=1, position=40)
    recorded.at(102).say(ClaimingMessages, ANNA, partition=WEB, token=1, end=60)
    recorded.at(130)
    recorded.silence(ANNA, BERT)
    recorded.at(130).claim(BERT)
    *_, second = recorded.lines()
    assert [each.change for each in recorded.lines()] == [
        Change.CLAIMED,
        Change.SILENT,
        Change.RELEASED,
        Change.CLAIMED,
    ]
    assert (second.position, second.given_up) == (60, ((40, 60),))


def test_a_loss_right_after_an_earlier_one_is_told_alone() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    for token, end in ((1, 20), (2, 30)):
        recorded.at(101).say(ClaimingMessages, ANNA, partition=WEB, token=token, end=end)
        recorded.at(102).release(ANNA, token)
        recorded.at(103).claim(ANNA)
    assert recorded.log.claim_of().given_up == ((0, 30),)
    assert [each.given_up for each in recorded.lines() if each.given_up] == [((0, 20),), ((20, 30),)]


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


def test_who_leaves_releases_everything() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).say(LeavingGroup, ANNA, beats=(Beat(WEB, 1, 9),))
    _, left, released = recorded.lines()
    assert (left.change, left.who) == (Change.LEFT, "anna")
    assert (released.change, released.position, released.reason) == (Change.RELEASED, 9, "the process ended")


def test_a_pause_is_a_line_and_so_is_its_end() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(ReleaseGroup, ANNA, pause_id="p1", for_seconds=400.0, reason="maintenance")
    recorded.at(300).say(ResumingGroup, BERT, pause_id="p1")
    # Another member said it too, a moment later.
    recorded.at(300.2).say(ResumingGroup, CLEO, pause_id="p1")
    paused, resumed = recorded.lines()
    assert (paused.change, paused.at, paused.until_at, paused.reason) == (Change.PAUSED, 100, 500.0, "maintenance")
    assert (resumed.change, resumed.who, resumed.at, resumed.pause_id) == (Change.RESUMED, "bert", 300, paused.pause_id)


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
    returned, claimed = recorded.lines()[-2:]
    assert (returned.change, returned.before, returned.reason) == (Change.RANGE_RETURNED, "bert", "silent")
    assert (returned.silent_seconds, returned.start, returned.end) == (26, 0, 10)
    assert (claimed.change, claimed.who, claimed.attempts) == (Change.RANGE_CLAIMED, "cleo", 2)


def test_a_range_that_was_given_back_is_claimed_again() -> None:
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
    assert (line.change, line.who, line.start, line.end) == (Change.RANGE_GIVEN_UP, "cleo", 0, 10)
    assert line.given_up == ((0, 10),)


def test_ranges_that_are_finished_out_of_order_are_told_once_each() -> None:
    recorded = shared()
    recorded.at(102).lease_next(CLEO)
    for who, start in ((CLEO, 10), (BERT, 0)):
        lease = recorded.log.lease(start).lease
        recorded.at(103).say(FinishingRange, who, partition=WEB, token=1, start=start, lease=lease)
    first, second = recorded.lines()[-2:]
    assert (first.change, first.who, first.start, first.position) == (Change.RANGE_FINISHED, "cleo", 10, None)
    assert (second.change, second.who, second.start, second.position) == (Change.RANGE_FINISHED, "bert", 0, 20)


def test_a_seek_of_the_owner_ends_the_sharing() -> None:
    recorded = shared()
    recorded.at(102).say(Seeking, ANNA, partition=WEB, if_token=1, position=50)
    assert recorded.changes()[-2:] == [Change.SOUGHT, Change.UNSHARED]


def test_a_range_claimed_twice_is_refused_to_the_second() -> None:
    recorded = shared()
    recorded.at(102).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10)
    line = recorded.last()
    assert (line.change, line.start, line.end) == (Change.REFUSED, 0, 10)
    assert line.reason == "the range was claimed by another member"


# what is not a record, and what is gone


def test_what_is_no_record_of_ours_is_told_as_such() -> None:
    reader = HistoryReader()
    reader.read(6, 99.0, None)
    reader.read(7, 100.0, None, "not JSON")
    [line] = reader.lines
    assert (line.change, line.offset, line.reason) == (Change.FOREIGN, 7, "not JSON")


def test_a_log_that_lost_its_beginning_knows_owners_by_their_heartbeats() -> None:
    recorded = RecordedLog(cut=5)
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=50)
    recorded.at(140)
    recorded.silence(ANNA, BERT)
    recorded.at(140).claim(BERT)
    held, silent, released, claimed = recorded.lines()
    assert (held.change, held.who, held.token, held.position) == (Change.HELD_BEFORE, "anna", 1, 50)
    assert silent.change is Change.SILENT
    assert (released.change, released.before, released.silent_seconds) == (Change.RELEASED, "anna", 30)
    assert (claimed.change, claimed.who, claimed.before) == (Change.CLAIMED, "bert", "anna")


def test_a_log_that_lost_its_beginning_knows_owners_by_what_they_claim_or_seek_too() -> None:
    recorded = RecordedLog(cut=5)
    log = recorded.at(100)
    log.claim(ANNA)
    log.say(Seeking, ANNA, partition=WEB, if_token=1, position=10)
    log.say(Seeking, ANNA, partition=WEB, if_token=1, if_seeks=1, position=20)
    log.say(ClaimingMessages, ANNA, partition=WEB, token=1, if_seeks=2, end=30)
    log.release(ANNA, 1, 30)
    assert recorded.changes() == [Change.SOUGHT, Change.HELD_BEFORE, Change.RELEASED]
    assert [each.who for each in recorded.lines()] == ["anna"] * 3


def test_what_depends_on_records_that_are_gone_is_not_told_wrong() -> None:
    """The wants of members are in their joins; and each of them ends a pause, while one alone is accepted."""
    recorded = RecordedLog(cut=4)
    log = recorded.at(100)
    log.say(ReleaseGroup, ANNA, pause_id="p1")
    log.say(ResumingGroup, ANNA, pause_id="p1")
    log.say(ResumingGroup, BERT, pause_id="p1")
    log.balance()
    assert [(each.change, each.reason) for each in recorded.lines()] == [(Change.BALANCED, "")]


def test_ranges_that_were_opened_before_the_log_begins_are_not_judged() -> None:
    recorded = RecordedLog(cut=6)
    log = recorded.at(100)
    log.claim(ANNA)
    log.say(OpeningRanges, ANNA, partition=WEB, token=1, start=0)
    log.lease_next(BERT)
    log.lease_next(CLEO)
    log.say(FinishingRange, CLEO, partition=WEB, token=1, start=10, lease=6)
    log.beat(ANNA, token=1, position=0)
    assert recorded.changes() == [Change.HELD_BEFORE]


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
    assert len(later) == 8
    for cut in (1, 3, 6, 7):
        recorded = RecordedLog(cut=cut)
        said(recorded)
        assert [
            (each.offset, each.change, each.who, each.token) for each in recorded.lines() if each.offset >= 9
        ] == later


# words and JSON


def test_every_line_has_a_sentence_with_who_did_what_and_why() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130)
    recorded.silence(ANNA, BERT)
    recorded.at(130).claim(BERT)
    assert [line_text(each) for each in recorded.lines()] == [
        "web/0: anna claimed it with token 1",
        "group: anna was silent for 25.0 s, and all it held is free (sent by bert)",
        "web/0: anna lost it at 40: silent for 25.0 s (sent by bert)",
        "web/0: bert claimed it with token 2 at 40, after anna",
    ]


def test_json_leaves_out_what_is_not_told_and_keeps_a_position_of_zero() -> None:
    recorded = RecordedLog()
    recorded.at(0).claim(ANNA)
    recorded.at(1).release(ANNA, 1, 0)
    assert line_json(recorded.last()) == {
        "change": "released",
        "at": "1970-01-01T00:00:01.000Z",
        "offset": 4,
        "who": "anna",
        "topic": "web",
        "topic_id": "id-of-web",
        "partition": 0,
        "token": 1,
        "position": 0,
        "before": "anna",
    }
