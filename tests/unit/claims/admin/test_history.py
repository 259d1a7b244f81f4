"""The history of a group: every kind of change is a line that says who, when, where and why."""

from __future__ import annotations

from penstock.claims.admin.history import Change, HistoryReader, HistoryStart, Line
from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Presence,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
)
from penstock.cli.claims.text import line_json, line_text
from tests.coordination import ANNA, BERT, CLEO, GROUP, WEB, Log, web


class RecordedLog:
    """A coordination partition whose records are appended at times that the test sets."""

    def __init__(self, cut: int = 0, place: int = 0) -> None:
        self.log = Log()
        self.reader = HistoryReader(GROUP, {place: cut})
        self._place = place
        self._told = cut
        self._now = 0.0

    def at(self, seconds: float) -> Log:
        """What is said from here on is appended at that time."""
        self._tell()
        self._now = seconds
        return self.log

    def lines(self) -> tuple[Line, ...]:
        self._tell()
        return self.reader.history().lines

    def changes(self) -> list[Change]:
        return [each.change for each in self.lines()]

    def last(self) -> Line:
        return self.lines()[-1]

    def _tell(self) -> None:
        for offset in range(self._told, len(self.log.records)):
            self.reader.read(self._place, offset, self._now, self.log.records[offset])
        self._told = max(self._told, len(self.log.records))


# ownership


def test_a_claim_is_one_line_with_its_heartbeats_and_its_end() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=70)
    recorded.at(112).say(ReleasingPartition, ANNA, partition=WEB, token=1, position=75, reason="above the fair share")
    claimed, released = recorded.lines()
    assert (claimed.change, claimed.who, claimed.at, claimed.token) == (Change.CLAIMED, "anna", 100, 1)
    assert (claimed.heartbeats, claimed.last_at, claimed.last_position) == (2, 110, 70)
    assert (claimed.ended, claimed.ended_at) == ("released: above the fair share", 112)
    assert (released.change, released.position, released.reason) == (Change.RELEASED, 75, "above the fair share")


def test_the_next_owner_begins_where_the_last_one_stopped() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(101).say(ReleasingPartition, ANNA, partition=WEB, token=1, position=75)
    recorded.at(102).claim(BERT)
    line = recorded.last()
    assert (line.change, line.who, line.before, line.position, line.token) == (Change.CLAIMED, "bert", "anna", 75, 2)
    assert line.ended_at is None


def test_a_take_over_says_from_whom_and_how_long_it_was_silent() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130.5).claim(BERT)
    first, second = recorded.lines()
    assert (second.change, second.before, second.silent_seconds) == (Change.TAKEN_OVER, "anna", 25.5)
    assert (second.position, second.token) == (40, 2)
    assert (first.ended, first.ended_at) == ("taken over by bert", 130.5)


def test_a_restart_under_the_same_client_id_is_not_a_take_over() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(112).claim(Who("anna", "a2"))
    first, second = recorded.lines()
    assert (second.change, second.before, second.silent_seconds) == (Change.RESTARTED, "anna", 12)
    assert first.ended == "restarted"


def test_a_claim_that_lost_the_race_is_told_with_its_reason() -> None:
    recorded = RecordedLog()
    log = recorded.at(100)
    log.claim(ANNA)
    log.say(ClaimingPartition, BERT, partition=WEB, if_token=0, if_last=None)
    line = recorded.last()
    assert (line.change, line.who, line.record) == (Change.REFUSED, "bert", "ClaimingPartition")
    assert line.reason == "the partition changed meanwhile"


def test_heartbeats_of_one_who_lost_its_claim_are_one_line() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(130).claim(BERT)
    for seconds in (131, 136, 141):
        recorded.at(seconds).beat(ANNA, token=1, position=50)
    claimed, taken_over, refused = recorded.lines()
    assert (refused.change, refused.who, refused.record, refused.heartbeats) == (
        Change.REFUSED,
        "anna",
        "Heartbeat",
        3,
    )
    assert (refused.at, refused.last_at) == (131, 141)
    assert (claimed.heartbeats, taken_over.heartbeats) == (0, 0)


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
    recorded.at(130).claim(BERT)
    first, second = recorded.lines()
    assert first.claimed_end == 60
    assert (second.position, second.given_up) == (60, ((40, 60),))


# members and pauses


def test_members_that_come_go_and_are_forgotten() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(JoiningGroup, ANNA, if_last=None, presence=Presence())
    recorded.at(101).say(JoiningGroup, BERT, if_last=None, presence=Presence())
    recorded.at(102).say(JoiningGroup, Who("anna", "a2"), if_last=0, presence=Presence())
    recorded.at(103).say(JoiningGroup, Who("anna", "a3"), if_last=0, presence=Presence())
    recorded.at(104).say(LeavingGroup, BERT)
    recorded.at(400).say(ForgettingMember, Who("anna", "a2"), client_id="bert", if_last=4)
    assert [(each.change, each.who) for each in recorded.lines()] == [
        (Change.JOINED, "anna"),
        (Change.JOINED, "bert"),
        (Change.JOINED, "anna"),
        (Change.REFUSED, "anna"),
        (Change.LEFT, "bert"),
        (Change.FORGOTTEN, "anna"),
    ]
    assert recorded.lines()[2].reason == "again, in a new process"
    assert recorded.last().before == "bert"


def test_a_pause_in_every_coordination_partition_is_one_line_with_its_end() -> None:
    reader = HistoryReader(GROUP)
    pause = ReleaseGroup(group=GROUP, who=ANNA, seq=1, pause_id="p1", until_at=500.0, reason="maintenance")
    resume = ResumingGroup(group=GROUP, who=BERT, seq=2, pause_id="p1")
    reader.read(1, 0, 100.2, pause)
    reader.read(0, 0, 100.1, pause)
    reader.read(0, 1, 300.0, resume)
    reader.read(1, 1, 300.1, resume)
    # Another member said it too, a moment later.
    reader.read(1, 2, 300.2, resume)
    paused, resumed = reader.history().lines
    assert (paused.change, paused.at, paused.place, paused.places) == (Change.PAUSED, 100.1, 0, 2)
    assert (paused.pause_id, paused.until_at, paused.reason) == ("p1", 500.0, "maintenance")
    assert paused.ended == "resumed"
    assert (resumed.change, resumed.who, resumed.places) == (Change.RESUMED, "bert", 2)


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
    lease = recorded.log.lease(0)
    recorded.at(105).beat_range(BERT, start=0, lease=lease.lease)
    last = recorded.log.lease(0).last
    recorded.at(131).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10, if_last=last)
    line = recorded.last()
    assert (line.change, line.who, line.before) == (Change.RANGE_TAKEN_OVER, "cleo", "bert")
    assert (line.silent_seconds, line.attempts) == (26, 2)


def test_a_range_that_was_given_back_is_claimed_and_not_taken_over() -> None:
    recorded = shared()
    recorded.at(102).say(ReturningRange, BERT, partition=WEB, token=1, start=0, lease=recorded.log.lease(0).lease)
    again = recorded.log.lease(0).last
    recorded.at(103).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10, if_last=again)
    returned, claimed = recorded.lines()[-2:]
    assert (returned.change, returned.who) == (Change.RANGE_RETURNED, "bert")
    assert (claimed.change, claimed.before, claimed.attempts) == (Change.RANGE_CLAIMED, "", 2)


def test_a_range_that_is_given_up_names_the_lost_offsets() -> None:
    recorded = shared()
    last = recorded.log.lease(0).last
    recorded.at(131).say(GivingUpRange, CLEO, partition=WEB, token=1, start=0, if_last=last)
    line = recorded.last()
    assert (line.change, line.before, line.given_up) == (Change.RANGE_GIVEN_UP, "bert", ((0, 10),))
    assert line.silent_seconds == 30


def test_a_range_claimed_twice_is_refused_to_the_second() -> None:
    recorded = shared()
    recorded.at(102).say(ClaimingRange, CLEO, partition=WEB, token=1, start=0, end=10, if_last=None)
    line = recorded.last()
    assert (line.change, line.start, line.end) == (Change.REFUSED, 0, 10)
    assert line.reason == "the range was claimed by another member"


# what is not a record, and what is gone


def test_what_is_no_record_of_ours_is_told_as_such() -> None:
    reader = HistoryReader(GROUP)
    reader.read(3, 7, 100.0, None, "not JSON")
    [line] = reader.history().lines
    assert (line.change, line.place, line.offset, line.reason) == (Change.FOREIGN, 3, 7, "not JSON")


def test_another_group_is_another_story() -> None:
    recorded = RecordedLog()
    recorded.at(100).say(ClaimingPartition, ANNA, group="other", partition=WEB, if_token=0, if_last=None)
    assert recorded.lines() == ()


def test_a_log_that_lost_its_beginning_says_so_and_knows_owners_by_their_heartbeats() -> None:
    recorded = RecordedLog(cut=2)
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(110).beat(ANNA, token=1, position=50)
    recorded.at(140).claim(BERT)
    held, taken_over = recorded.lines()
    assert recorded.reader.history().starts == (HistoryStart(0, 2),)
    assert (held.change, held.who, held.token, held.position) == (Change.HELD_BEFORE, "anna", 1, 50)
    assert (taken_over.change, taken_over.before, taken_over.silent_seconds) == (Change.TAKEN_OVER, "anna", 30)


def test_wherever_a_log_is_cut_the_changes_after_it_are_reported_alike() -> None:
    """After the first heartbeats of both partitions: from there on inference is as good as having read all."""

    def said(recorded: RecordedLog) -> None:
        log = recorded.at(100)
        log.say(JoiningGroup, ANNA, if_last=None, presence=Presence())
        log.say(JoiningGroup, BERT, if_last=None, presence=Presence())
        log.claim(ANNA)
        log.claim(BERT, web(1))
        log.beat(ANNA, token=1, position=5)
        log.beat(BERT, token=1, position=6, partition=web(1))
        log.beat(ANNA, token=1, position=7)
        log.beat(BERT, token=1, position=8, partition=web(1))
        log.say(ReleasingPartition, ANNA, partition=WEB, token=1, position=9, reason="above the fair share")
        log.claim(BERT)
        log.beat(ANNA, token=1, position=9)
        log.say(ClaimingPartition, ANNA, partition=WEB, if_token=1, if_last=8)
        log.say(LeavingGroup, ANNA)
        log.claim(Who("bert", "b2"), web(1))

    whole = RecordedLog()
    said(whole)
    later = [(each.offset, each.change, each.who, each.token) for each in whole.lines() if each.offset >= 8]
    assert len(later) == 6
    for cut in (1, 3, 5, 6):
        recorded = RecordedLog(cut=cut)
        said(recorded)
        assert [
            (each.offset, each.change, each.who, each.token) for each in recorded.lines() if each.offset >= 8
        ] == later


def test_a_zombie_in_the_first_records_of_a_cut_log_does_not_hide_the_owner() -> None:
    recorded = RecordedLog(cut=3)
    recorded.at(100).claim(ANNA)
    recorded.at(130).claim(BERT)
    recorded.at(131).beat(BERT, token=2, position=5)
    # Read from here on.
    recorded.at(132).beat(ANNA, token=1, position=3)
    recorded.at(133).beat(BERT, token=2, position=6)
    recorded.at(134).beat(BERT, token=2, position=7)
    line = recorded.last()
    assert (line.change, line.who, line.token) == (Change.HELD_BEFORE, "bert", 2)
    assert line.last_position == 7


def test_the_newest_lines_are_chosen_over_all_coordination_partitions() -> None:
    reader = HistoryReader(GROUP)
    for place, at in ((0, 100.0), (1, 101.0), (2, 99.0)):
        claim = ClaimingPartition(group=GROUP, who=ANNA, seq=1, partition=web(place), if_token=0, if_last=None)
        reader.read(place, 0, at, claim)
    history = reader.history(limit=2)
    assert [each.place for each in history.lines] == [0, 1]
    assert history.records == 3


# words and JSON


def test_every_line_has_a_sentence_with_who_did_what_and_why() -> None:
    recorded = RecordedLog()
    recorded.at(100).claim(ANNA)
    recorded.at(105).beat(ANNA, token=1, position=40)
    recorded.at(130).claim(BERT)
    assert [line_text(each) for each in recorded.lines()] == [
        "web/0: anna claimed it with token 1; 1 heartbeats up to 40; taken over by bert after 30s",
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
        "offset": 0,
        "who": "anna",
        "topic": "web",
        "topic_id": "id-of-web",
        "partition": 0,
        "token": 1,
        "heartbeats": 1,
        "last_at": "1970-01-01T00:00:01.000Z",
        "last_position": 0,
    }
