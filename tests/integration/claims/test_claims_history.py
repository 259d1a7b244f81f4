"""Snapshots keep start-up short and outlive the log's retention; a lost history is an error (RULES M7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.member.agent import Agent
from penstock.claims.member.session import SNAPSHOT_EVERY_RECORDS
from penstock.claims.member.topics import SNAPSHOT_BYTES_MAX
from penstock.claims.protocol.records import Heartbeat, MemberId
from penstock.claims.protocol.snapshots import LostHistoryError, Snapshot
from penstock.claims.protocol.state import Claim, GroupState
from tests.support.claimants import LATE_SECONDS, Crew, hits, hits_up_to, other_process
from tests.support.kafka import Topics
from tests.support.waiting import wait_until

NOT_A_MEMBER = MemberId("outsider", "s1")


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(6))
    yield crew
    crew.close()


def chatter(crew: Crew, records: int) -> None:
    """Heartbeats of a process that is not a member."""
    with crew.journal() as journal:
        for seq in range(records):
            beat = Heartbeat(who=NOT_A_MEMBER, seq=seq)
            journal.append(beat, lambda record: pytest.fail(f"not delivered: {record}"))
        assert journal.flush(30) == 0


def end(crew: Crew) -> int:
    with crew.journal() as journal:
        return journal.bounds()[1]


def cut_everything(crew: Crew, topic: Topics) -> None:
    """Delete all records, as retention does where nothing was appended for long."""
    with crew.journal() as journal:
        topic.cut(crew.topic, journal.bounds()[1], journal.place)


def kept_offsets(crew: Crew) -> list[int]:
    """The offsets of the snapshots of the topic as it is now, in the order in which they were written."""
    topic_id = crew.described().topic_id
    with crew.journal() as journal:
        return [snapshot.state.next_offset for snapshot in journal.snapshots() if snapshot.topic_id == topic_id]


def lost_history(agent: Agent) -> LostHistoryError:
    with pytest.raises(LostHistoryError) as raised:
        wait_until(lambda: bool(agent.held()) and False, LATE_SECONDS)
    return raised.value


def test_start_up_reads_little_of_a_long_history(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    held = anna.held()
    chatter(crew, 2000)
    # Which records a snapshot holds depends on how they arrive: once all are read, it lacks fewer than make one due.
    wait_until(lambda: max(kept_offsets(crew)) > 2000 - SNAPSHOT_EVERY_RECORDS)
    bert = crew.join("bert")
    wait_until(lambda: crew.shared(3, 3))
    assert end(crew) > 2000
    assert bert.startup_records < 2 * SNAPSHOT_EVERY_RECORDS
    with bert.looking() as participant:
        assert all(participant.view.claim(item).token >= held[item] for item in crew.requested)


def test_of_several_members_one_writes_the_snapshot(crew: Crew) -> None:
    for client_id in ("anna", "bert", "cleo"):
        crew.join(client_id)
    wait_until(lambda: crew.shared(2, 2, 2))
    before = len(kept_offsets(crew))
    chatter(crew, SNAPSHOT_EVERY_RECORDS)
    wait_until(lambda: len(kept_offsets(crew)) > before)
    assert len(kept_offsets(crew)) == before + 1


def test_a_group_that_ended_finds_its_claims_and_positions_again_after_the_log_is_deleted(
    crew: Crew, topic: Topics
) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    anna.progress(hits(0), 1000)
    crew.leave("anna")
    # Another group goes on in the same partition, and its records are deleted too.
    chatter(crew, 10)
    cut_everything(crew, topic)
    bert = crew.join("bert")
    wait_until(lambda: crew.shared(6))
    assert set(bert.held().values()) == {2}
    with bert.looking() as participant:
        assert participant.view.claim(hits(0)).position == 1000
        assert participant.view.state.members.get("anna") is not None


def test_a_new_group_starts_on_an_old_topic_whose_first_records_were_deleted(crew: Crew, topic: Topics) -> None:
    described = Crew(crew.bootstrap, crew.requested, crew.topic)
    described.join("first")
    wait_until(lambda: described.shared(6))
    described.close()
    other = Crew(crew.bootstrap, crew.requested, crew.topic, "another group")
    for place in range(described.described().partitions):
        topic.cut(crew.topic, described.place_end(place), place)
    zoe = other.join("zoe")
    wait_until(lambda: other.shared(6))
    assert set(zoe.held().values()) == {1}
    other.close()


def test_m7_lost_history_without_a_snapshot_stops_a_starting_member(crew: Crew, topic: Topics) -> None:
    with other_process(crew, "anna") as process:
        wait_until(lambda: len(kept_offsets(crew)) > 0)
        process.kill()
    cut_everything(crew, topic)
    fault = lost_history(crew.join("bert"))
    assert crew.topic in fault.primary
    assert "claims.topic" in fault.hint
    crew.agents.pop("bert")

    # As the hint suggests: with another topic it goes on above the tokens of the tables.
    again = Crew(crew.bootstrap, crew.requested, f"{crew.topic}_2", crew.group)
    cleo = again.join("cleo", floors=dict.fromkeys(crew.requested, 5))
    wait_until(lambda: len(cleo.held()) == 6)
    assert set(cleo.held().values()) == {6}
    again.close()


def test_m7_an_older_snapshot_that_was_written_later_does_not_win(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    crew.leave("anna")
    described = crew.described()
    with crew.journal() as journal:
        journal.keep(Snapshot(described.topic_id, crew.group, 0.0, GroupState(0)))
        assert journal.flush(10) == 0
    bert = crew.join("bert")
    wait_until(lambda: crew.shared(6))
    assert set(bert.held().values()) == {2}
    assert anna.held() == {}


def test_m7_a_log_shorter_than_its_snapshot_is_reported(crew: Crew) -> None:
    """As after the loss of a disk: the snapshot names more than the log holds."""
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    anna.progress(hits(2), 70)
    crew.leave("anna")
    described = crew.described()
    with crew.journal() as journal:
        newest = journal.snapshots()[-1]
        lost = newest.state.copy()
        lost.next_offset += 1000
        journal.keep(Snapshot(described.topic_id, crew.group, newest.appended_at, lost))
        assert journal.flush(10) == 0
    fault = lost_history(crew.join("bert"))
    assert "cut" in fault.primary
    crew.agents.pop("bert")


def test_a_snapshot_that_is_too_large_is_reported_and_the_former_one_stays(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6) and len(kept_offsets(crew)) > 0)
    before = kept_offsets(crew)
    with anna.looking() as participant:
        participant.view.state.claims |= {hits(number): Claim(token=1) for number in range(10, 60_010)}
    crew.leave("anna")
    [facts] = [facts for name, facts in crew.events["anna"] if name == "snapshot too large"]
    assert int(str(facts["size_bytes"])) >= SNAPSHOT_BYTES_MAX
    assert kept_offsets(crew) == before


def test_a_recreated_topic_is_a_loss_for_members_without_tables(crew: Crew, topic: Topics) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    anna.progress(hits(0), 500)
    crew.leave("anna")
    topic.delete(crew.topic)
    assert "created again" in lost_history(crew.join("bert", tables_remember=False)).primary
    crew.agents.pop("bert")


def test_a_recreated_coordination_topic_is_not_a_loss_where_tables_keep_tokens(crew: Crew, topic: Topics) -> None:
    crew.join("anna")
    wait_until(lambda: crew.shared(6))
    crew.leave("anna")
    topic.delete(crew.topic)
    cleo = crew.join("cleo", floors=dict.fromkeys(crew.requested, 1))
    wait_until(lambda: crew.shared(6))
    assert set(cleo.held().values()) == {2}
