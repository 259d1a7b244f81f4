"""How a member waits for the next records: in the client while its group changes, by a sleep of its own at rest."""

from __future__ import annotations

from typing import cast

from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.session import POLL_SECONDS, REST_SECONDS_MAX, Session
from penstock.job.spec import KafkaLogSpec
from tests.support.coordination import INTERVAL
from tests.unit.claims.member.room import Attendant, Room


class QuietJournal:
    """A log to which nobody appends; keeps for how long the client was to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def poll(self, seconds: float) -> list[JournalEntry]:
        self.waits.append(seconds)
        return []

    def keep_pace(self, hurries: bool) -> None:
        """The same log."""


class Waiting:
    """One member of a room that looks at its log, and how it waited for it."""

    def __init__(self, room: Room, attendant: Attendant) -> None:
        self._participant = attendant.participant
        self._journal = QuietJournal()
        self._session = Session(cast(Journal, self._journal), KafkaLogSpec("nowhere:9092"), lambda: room.now)

    def look(self, awaited: bool = False) -> tuple[float, list[float]]:
        """For how long the client waited, and the sleeps before."""
        sleeps: list[float] = []
        self._session.keep_pace(self._participant, awaited)
        self._session.poll(self._participant, sleeps.append)
        return self._journal.waits[-1], sleeps


def test_a_member_sleeps_once_its_group_has_been_quiet_for_an_interval() -> None:
    room = Room()
    member = Waiting(room, room.enter("anna"))
    assert member.look() == (POLL_SECONDS, [])
    room.run(0.9)
    # Not as soon as everything is shared: whoever joins next should not wait for it.
    assert member.look() == (POLL_SECONDS, [])
    room.run(0.2)
    assert member.look() == (0, [min(INTERVAL / 20, REST_SECONDS_MAX)])


def test_a_group_that_changes_wakes_its_members_up() -> None:
    room = Room()
    member = Waiting(room, room.enter("anna"))
    room.run(2)
    member.look()
    room.run(1)
    assert member.look()[1] != []
    room.enter("bert")
    room.run(0.1)
    assert member.look() == (POLL_SECONDS, [])


def test_work_that_waits_for_its_own_records_never_sleeps() -> None:
    room = Room()
    member = Waiting(room, room.enter("anna"))
    room.run(4)
    assert member.look(awaited=True) == (POLL_SECONDS, [])
