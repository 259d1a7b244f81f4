"""How a member waits for the next records: in the client while its group changes, by a sleep of its own at rest."""

from __future__ import annotations

from typing import cast

from penstock.claims.member.journal import Journal, JournalEntry
from penstock.claims.member.session import POLL_SECONDS, REST_SECONDS_MAX, Session
from penstock.job.spec import KafkaLogSpec
from tests.support.coordination import INTERVAL
from tests.unit.claims.member.virtual_group import VirtualGroup, VirtualProcess


class QuietJournal:
    """A log to which nothing is appended; keeps for how long the client was to wait."""

    def __init__(self) -> None:
        self.hurries = True
        self.waits: list[float] = []

    def poll(self, seconds: float) -> list[JournalEntry]:
        self.waits.append(seconds)
        return []

    def keep_pace(self, hurries: bool) -> None:
        self.hurries = hurries


class Waiting:
    """One member of a group that polls its log, and how long it waited."""

    def __init__(self, group: VirtualGroup, process: VirtualProcess) -> None:
        self._participant = process.participant
        self._journal = QuietJournal()
        self._session = Session(cast(Journal, self._journal), KafkaLogSpec("nowhere:9092"), lambda: group.now)

    def look(self, awaited: bool = False) -> tuple[float, list[float]]:
        """For how long the client waited, and the sleeps before."""
        sleeps: list[float] = []
        self._session.keep_pace(self._participant, awaited)
        self._session.poll(self._participant, sleeps.append)
        return self._journal.waits[-1], sleeps


def test_a_member_sleeps_once_its_group_has_been_quiet_for_an_interval() -> None:
    group = VirtualGroup()
    member = Waiting(group, group.start("anna"))
    assert member.look() == (POLL_SECONDS, [])
    group.run(0.9)
    # Not as soon as everything is shared: the next member to join should not wait for it.
    assert member.look() == (POLL_SECONDS, [])
    group.run(0.2)
    assert member.look() == (0, [min(INTERVAL / 20, REST_SECONDS_MAX)])


def test_a_change_in_the_group_wakes_its_members_up() -> None:
    group = VirtualGroup()
    member = Waiting(group, group.start("anna"))
    group.run(2)
    member.look()
    group.run(1)
    assert member.look()[1] != []
    group.start("bert")
    group.run(0.1)
    assert member.look() == (POLL_SECONDS, [])


def test_work_that_waits_for_its_own_records_never_sleeps() -> None:
    group = VirtualGroup()
    member = Waiting(group, group.start("anna"))
    group.run(4)
    assert member.look(awaited=True) == (POLL_SECONDS, [])
