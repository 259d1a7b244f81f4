"""Snapshots keep start-up short and outlive the log's retention; a lost history is said aloud (RULES M7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.member.agent import Agent
from penstock.claims.member.journal import LostHistoryError
from penstock.claims.protocol.records import Heartbeat, Presence, Who
from penstock.claims.protocol.snapshots import SNAPSHOT_EVERY_RECORDS, Snapshot
from penstock.claims.protocol.state import LogState
from tests.claimants import PLACES, Crew, eventually, hits, hits_up_to, other_process
from tests.kafka import Topics

SOMEBODY = Who("somebody", "s1")


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(6))
    yield crew
    crew.close()


def chatter(crew: Crew, records: int) -> None:
    """Heartbeats of another group, in every coordination partition."""
    with crew.journal() as journal:
        for seq in range(records):
            for place in range(PLACES):
                beat = Heartbeat(group="other", who=SOMEBODY, seq=seq, presence=Presence())
                journal.append(place, beat, lambda record: pytest.fail(f"not delivered: {record}"))
        assert journal.flush(30) == 0


def ends(crew: Crew) -> dict[int, int]:
    with crew.journal() as journal:
        return {place: end for place, (_, end) in journal.seek({}, restart=True).items()}


def cut_everything(crew: Crew, topic: Topics) -> None:
    """Delete all records, as retention does where nothing was said for long."""
    for place, end in ends(crew).items():
        topic.cut(crew.topic, end, place)


def kept_offsets(crew: Crew) -> dict[int, int]:
    with crew.journal() as journal:
        return {place: each.state.next_offset for place, each in journal.snapshots().items()}


def lost_history(agent: Agent) -> LostHistoryError:
    with pytest.raises(LostHistoryError) as raised:
        agent.wait(lambda: False, 10)
    return raised.value


def test_start_up_reads_little_however_much_was_said(crew: Crew) -> None:
    anna = crew.join("anna")
    eventually(lambda: crew.shared(6))
    held = anna.held()
    chatter(crew, 2000)
    # Which records a snapshot holds depends on how they arrive: the last one lacks fewer than make the next one due.
    eventually(
        lambda: all(offset > 1000 for offset in kept_offsets(crew).values()) and len(kept_offsets(crew)) == PLACES
    )
    bert = crew.join("bert")
    eventually(lambda: crew.shared(3, 3))
    assert sum(ends(crew).values()) > 2000 * PLACES
    assert 0 < bert.startup.records < 2 * SNAPSHOT_EVERY_RECORDS * PLACES
    with bert.looking() as participant:
        assert all(participant.view.claim(each).token >= held[each] for each in crew.wanted)


def test_of_several_members_one_writes_the_snapshot(crew: Crew) -> None:
    for client_id in ("anna", "bert", "cleo"):
        crew.join(client_id)
    eventually(lambda: crew.shared(2, 2, 2))
    chatter(crew, SNAPSHOT_EVERY_RECORDS)
    eventually(lambda: len(kept_offsets(crew)) == PLACES)
    snapshots = Crew(crew.bootstrap, (), f"{crew.topic}_snapshots")
    assert set(ends(snapshots).values()) == {1}


def test_a_group_that_ended_finds_its_claims_and_positions_again_after_the_log_is_deleted(
    crew: Crew, topic: Topics
) -> None:
    anna = crew.join("anna")
    eventually(lambda: crew.shared(6))
    anna.progress(hits(0), 1000)
    crew.leave("anna")
    cut_everything(crew, topic)
    bert = crew.join("bert")
    eventually(lambda: crew.shared(6))
    assert set(bert.held().values()) == {2}
    with bert.looking() as participant:
        assert participant.view.claim(hits(0)).position == 1000
        assert participant.view.member("anna") is not None


def test_m7_a_history_that_no_snapshot_holds_stops_whoever_starts(crew: Crew, topic: Topics) -> None:
    with other_process(crew, "anna") as process:
        process.kill()
    cut_everything(crew, topic)
    fault = lost_history(crew.join("bert"))
    assert crew.topic in fault.primary
    assert "restart" in fault.hint

    # Told to begin anew, it goes on above the tokens of the tables.
    cleo = crew.join("cleo", floors=dict.fromkeys(crew.wanted, 5), restart_lost_history=True)
    eventually(lambda: len(cleo.held()) == 6)
    assert set(cleo.held().values()) == {6}
    crew.agents.pop("bert")


def test_m7_an_older_snapshot_that_was_written_later_does_not_win(crew: Crew) -> None:
    anna = crew.join("anna")
    eventually(lambda: crew.shared(6))
    crew.leave("anna")
    before = kept_offsets(crew)
    assert sorted(before) == list(range(PLACES))
    described = crew.described()
    with crew.journal() as journal:
        for place in range(PLACES):
            journal.keep(Snapshot(described.topic_id, place, 0.0, LogState(1)))
        assert journal.flush(10) == 0
    assert kept_offsets(crew) == before
    bert = crew.join("bert")
    eventually(lambda: crew.shared(6))
    assert set(bert.held().values()) == {2}
    assert anna.held() == {}


def test_snapshots_of_a_former_life_of_the_topic_are_not_used(crew: Crew, topic: Topics) -> None:
    crew.join("anna")
    eventually(lambda: crew.shared(6))
    crew.leave("anna")
    assert len(kept_offsets(crew)) == PLACES
    topic.delete(crew.topic)
    bert = crew.join("bert")
    eventually(lambda: crew.shared(6))
    assert set(bert.held().values()) == {1}
