"""An administrator looks at a group from outside, pauses it and frees claims; the group is otherwise left alone."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.claims.admin.commands import ListedClaim, history, list_claims, pause, release, resume
from penstock.claims.admin.history import JudgedRecord, RecordVerdict
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.claims.member.agent import Agent
from penstock.claims.protocol.group_view import Freshness, coordination_partition
from penstock.claims.protocol.records import (
    ClaimingPartition,
    ForgettingMember,
    FreeingPartition,
    LeavingGroup,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    partitions_of,
)
from penstock.cli.app import app
from penstock.errors import UserError
from tests.support.claimants import HEARTBEAT_SECONDS, PLACES, Crew, hits, hits_up_to, other_process
from tests.support.kafka import Produce, Topics
from tests.support.waiting import SECONDS_MAX, wait_until

COUNT = 4


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(COUNT))
    yield crew
    crew.close()


@pytest.fixture
def anna(crew: Crew) -> Agent:
    """A member that holds all."""
    agent = crew.join("anna")
    wait_until(lambda: crew.shared(COUNT))
    return agent


def of(crew: Crew) -> CoordinatedGroup:
    return CoordinatedGroup(crew.spec, crew.group, crew.topic)


def json_of(crew: Crew, *command: str) -> Any:
    """The JSON output of a command."""
    where = ["--bootstrap", crew.bootstrap, "--group", crew.group, "--topic", crew.topic]
    result = CliRunner().invoke(app, ["claims", *command, *where, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# list


def test_list_shows_owner_position_and_liveness(crew: Crew, anna: Agent) -> None:
    anna.progress(hits(1), 42, lag=7)
    wait_until(lambda: claim_at(crew, "hits/1").claim.position == 42)
    listing = list_claims(of(crew))
    [member] = listing.members
    assert (member.client_id, member.freshness, member.claims, member.lag) == ("anna", Freshness.FRESH, COUNT, 7)
    assert [(claim.partition, claim.owner, claim.claim.token, claim.claim.position) for claim in listing.claims] == [
        (hits(0), "anna", 1, None),
        (hits(1), "anna", 1, 42),
        (hits(2), "anna", 1, None),
        (hits(3), "anna", 1, None),
    ]
    assert {item.freshness for item in listing.claims} == {Freshness.FRESH}
    assert not listing.pauses


def test_list_shows_dead_members_although_no_member_is_left(crew: Crew) -> None:
    with other_process(crew, "bert") as process:
        process.kill()
        process.wait()
        wait_until(lambda: list_claims(of(crew)).members[0].freshness is Freshness.STALE, seconds_max=10)
    listing = list_claims(of(crew))
    assert {item.freshness for item in listing.held} == {Freshness.STALE}
    assert listing.members[0].silent_seconds > 2 * HEARTBEAT_SECONDS


def test_list_shows_who_has_left_and_what_is_free(crew: Crew, anna: Agent) -> None:
    anna.progress(hits(0), 10)
    crew.leave("anna")
    listing = list_claims(of(crew))
    assert listing.members[0].freshness is None
    assert listing.held == ()
    assert (listing.claims[0].owner, listing.claims[0].claim.position, listing.claims[0].freshness) == (
        "anna",
        10,
        None,
    )


# pause and resume


def test_a_paused_group_releases_everything_until_it_is_resumed(crew: Crew, anna: Agent) -> None:
    report = pause(of(crew), reason="maintenance", wait_seconds=SECONDS_MAX)
    assert report.holders == ()
    assert anna.held() == {}
    [(pause_id, shown)] = list_claims(of(crew)).pauses.items()
    assert (pause_id, shown.reason, shown.until_at) == (report.pause_id, "maintenance", None)
    assert shown.by.startswith("admin:")
    assert resume(of(crew), report.pause_id) == (report.pause_id,)
    wait_until(lambda: crew.shared(COUNT))
    assert not list_claims(of(crew)).pauses


def test_m4_members_resume_by_themselves_when_the_time_is_over(crew: Crew, anna: Agent) -> None:
    report = pause(of(crew), for_seconds=3.0, wait_seconds=SECONDS_MAX)
    assert report.holders == ()
    assert report.until_at is not None
    wait_until(lambda: crew.shared(COUNT))
    assert list_claims(of(crew)).at >= report.until_at, "by the broker's clock"
    resumed = [item.record for item in applied(history(of(crew)).records) if isinstance(item.record, ResumingGroup)]
    assert [(record.who.client_id, record.pause_id) for record in resumed] == [("anna", report.pause_id)]


def test_a_pause_and_a_seek_after_the_last_member_left_outlive_the_logs_retention(
    crew: Crew, anna: Agent, topic: Topics
) -> None:
    crew.leave("anna")
    release(of(crew), "hits/1", seek=77)
    report = pause(of(crew))
    with crew.journal() as journal:
        topic.cut(crew.topic, journal.bounds()[1], journal.place)
    listing = list_claims(of(crew))
    assert list(listing.pauses) == [report.pause_id]
    assert listing.claims[1].claim.position == 77


def test_m4_a_pause_of_one_group_leaves_another_alone(crew: Crew, anna: Agent) -> None:
    other = Crew(crew.bootstrap, crew.requested, crew.topic, "kitchen")
    try:
        zoe = other.join("zoe")
        wait_until(lambda: other.shared(COUNT))
        before = zoe.held()
        report = pause(of(crew), wait_seconds=SECONDS_MAX)
        assert report.holders == ()
        assert not list_claims(of(other)).pauses
        time.sleep(2 * HEARTBEAT_SECONDS)
        assert zoe.held() == before
        assert anna.held() == {}
    finally:
        other.close()


def test_resume_ends_all_pauses_and_two_of_them_need_both_to_end(crew: Crew, anna: Agent) -> None:
    first = pause(of(crew), wait_seconds=SECONDS_MAX).pause_id
    second = pause(of(crew)).pause_id
    resume(of(crew), first)
    assert list(list_claims(of(crew)).pauses) == [second]
    third = pause(of(crew)).pause_id
    assert resume(of(crew)) == tuple(sorted((second, third)))
    wait_until(lambda: crew.shared(COUNT))


def test_a_pause_lists_members_that_still_hold_claims_and_frees_nothing(crew: Crew) -> None:
    with other_process(crew, "bert") as process:
        process.send_signal(signal.SIGSTOP)
        report = pause(of(crew), wait_seconds=10)
        assert {holder.owner for holder in report.holders} == {"bert"}
        assert {item.freshness for item in report.holders} == {Freshness.STALE}
        place = str(report.holders[0].partition)
        with pytest.raises(UserError, match="is paused"):
            release(of(crew), place)
        assert claim_at(crew, place).claim.token == report.holders[0].claim.token


# release


def test_the_claim_of_a_stopped_process_is_freed_and_its_owner_learns_it_when_it_wakes(crew: Crew) -> None:
    with other_process(crew, "bert") as process:
        wait_until(lambda: len(list_claims(of(crew)).held) == COUNT)
        process.send_signal(signal.SIGSTOP)
        report = release(of(crew), "hits/2")
        assert report.released
        assert (report.before.owner, report.before.claim.token, report.token) == ("bert", 1, 2)
        after = claim_at(crew, "hits/2")
        assert (after.claim.held, after.claim.token) == (False, 2)
        process.send_signal(signal.SIGCONT)
        # It is alive and the only member: it may have it again, as a new owner.
        wait_until(lambda: (claim_at(crew, "hits/2").owner, claim_at(crew, "hits/2").claim.token) == ("bert", 3))


def test_a_live_owner_loses_only_the_released_claim(crew: Crew, anna: Agent) -> None:
    before = anna.held()
    report = release(of(crew), "hits/0")
    assert (report.released, report.before.owner) == (True, "anna")
    wait_until(lambda: anna.held().get(hits(0)) == 3)
    assert {item: anna.held()[item] for item in hits_up_to(COUNT)[1:]} == {
        partition: before[partition] for partition in hits_up_to(COUNT)[1:]
    }


def test_a_release_keeps_the_position_and_a_seek_sets_it_also_backwards(crew: Crew, anna: Agent) -> None:
    anna.progress(hits(3), 90)
    crew.leave("anna")
    assert release(of(crew), "hits/3").released is False
    report = release(of(crew), "hits/3", seek=30)
    assert (report.released, report.before.claim.position, report.position) == (True, 90, 30)
    after = release(of(crew), "hits/3")
    assert (after.released, after.position, after.token) == (False, 30, report.token)


# history


def applied(records: Iterable[JudgedRecord]) -> list[JudgedRecord]:
    return [record for record in records if record.verdict is RecordVerdict.APPLIED]


def claim_at(crew: Crew, place: str) -> ListedClaim:
    return next(claim for claim in list_claims(of(crew)).claims if str(claim.partition) == place)


def about(place: str, records: Iterable[JudgedRecord]) -> list[JudgedRecord]:
    """The records about one partition, or about all that a member or the group holds."""
    return [
        judged
        for judged in records
        if isinstance(judged.record, ForgettingMember | ReleaseGroup | ResumingGroup)
        or (judged.record is not None and place in map(str, partitions_of(judged.record)))
    ]


def kinds(records: Iterable[JudgedRecord]) -> list[type[Record] | None]:
    return [None if record.record is None else type(record.record) for record in records]


def test_history_shows_the_takeover_from_a_killed_process(crew: Crew) -> None:
    with other_process(crew, "bert") as process:
        crew.join("anna")
        wait_until(lambda: crew.shared(COUNT // 2))
        process.kill()
        process.wait()
        wait_until(lambda: crew.shared(COUNT))
    records = applied(history(of(crew), limit=None).records)
    [silent] = [record for record in records if isinstance(record.record, ForgettingMember)]
    assert isinstance(silent.record, ForgettingMember)
    assert (silent.record.who.client_id, silent.record.client_id) == ("anna", "bert")
    [claimed] = [item for item in records if item.offset > silent.offset and isinstance(item.record, ClaimingPartition)]
    assert isinstance(claimed.record, ClaimingPartition)
    assert len(claimed.record.requests) == COUNT // 2
    partition = claimed.record.requests[0].partition
    alone = about(str(partition), records)
    assert kinds(alone) == [ClaimingPartition, ForgettingMember, ClaimingPartition]
    assert [entry.record.who.client_id for entry in alone if entry.record is not None] == ["bert", "anna", "anna"]


def test_history_shows_what_an_administrator_did(crew: Crew, anna: Agent) -> None:
    paused = pause(of(crew), reason="maintenance", wait_seconds=SECONDS_MAX).pause_id
    resume(of(crew))
    wait_until(lambda: crew.shared(COUNT))
    crew.leave("anna")
    release(of(crew), "hits/1", seek=5)
    records = about("hits/1", applied(history(of(crew)).records))
    assert kinds(records) == [
        ClaimingPartition,
        ReleaseGroup,
        ReleasingPartition,
        ResumingGroup,
        ClaimingPartition,
        LeavingGroup,
        FreeingPartition,
    ]
    pausing, released, freed = records[1].record, records[2].record, records[-1].record
    assert isinstance(pausing, ReleaseGroup) and (pausing.pause_id, pausing.reason) == (paused, "maintenance")
    assert isinstance(released, ReleasingPartition) and released.reason == "the group is paused"
    assert isinstance(freed, FreeingPartition) and freed.position == 5
    assert freed.who.client_id.startswith("admin:")


def test_foreign_records_and_a_lost_beginning_are_shown(
    crew: Crew, anna: Agent, produce: Produce, topic: Topics
) -> None:
    place = coordination_partition(crew.group, PLACES)
    noise = produce(crew.topic, ["hello"] * 10, partition=place)
    wait_until(lambda: read_up_to(anna) > noise[-1][1])
    topic.cut(crew.topic, noise[-1][1], place)
    crew.leave("anna")
    result = history(of(crew), limit=None)
    assert result.start == noise[-1][1]
    foreign, leaving = result.records
    assert (foreign.offset, foreign.verdict) == (noise[-1][1], RecordVerdict.FOREIGN)
    assert isinstance(leaving.record, LeavingGroup)
    assert leaving.verdict is RecordVerdict.UNKNOWN, "the snapshot from before is older than the log"


def read_up_to(agent: Agent) -> int:
    """A member whose reader is before the cut would start over, and write its claims again."""
    with agent.looking() as participant:
        return participant.view.state.next_offset


def test_history_reads_no_more_than_the_limit(crew: Crew, anna: Agent) -> None:
    wait_until(lambda: history(of(crew), limit=None).count > 8)
    result = history(of(crew), limit=None, records_max=2)
    assert result.count <= 4


# what a person may get wrong


def test_wrong_names_are_reported(crew: Crew, anna: Agent) -> None:
    there = of(crew)
    nowhere = CoordinatedGroup(crew.spec, crew.group, f"{crew.topic}-not")
    misspelled = CoordinatedGroup(crew.spec, "shopp", crew.topic)
    with pytest.raises(UserError, match="no coordination topic"):
        list_claims(nowhere)
    for verb in (list_claims, history, pause, resume):
        with pytest.raises(UserError) as unknown:
            verb(misspelled)
        assert "group shopp" in unknown.value.primary
    with pytest.raises(UserError) as missing:
        release(there, "hits/9")
    assert "hits/" in missing.value.detail
    with pytest.raises(UserError, match="is not a partition"):
        release(there, "hits")
    with pytest.raises(UserError, match="is not paused"):
        resume(there)
    with pytest.raises(UserError, match="no pause p9"):
        resume(there, "p9")
    assert anna.held()


# the command


def test_every_command_prints_json(crew: Crew, anna: Agent) -> None:
    listed = json_of(crew, "list")
    assert {"group", "topic", "at", "paused", "pauses", "members", "claims"} == listed.keys()
    assert listed["members"][0] | {"silent_seconds": 0} == {
        "client_id": "anna",
        "state": "alive",
        "silent_seconds": 0,
        "claims": COUNT,
        "lag": 0,
    }
    assert listed["claims"][0] | {"age_seconds": 0} == {
        "topic": "hits",
        "topic_id": "id-of-hits",
        "partition": 0,
        "held": True,
        "owner": "anna",
        "freshness": "fresh",
        "age_seconds": 0,
        "token": 1,
        "position": None,
        "claimed_end": None,
        "lag": 0,
        "given_up": [],
    }
    paused = json_of(crew, "pause", "--for", "10m", "--reason", "test")
    assert paused["holders"] == []
    assert paused["until_at"].endswith("Z")
    assert json_of(crew, "list")["paused"] is True
    assert json_of(crew, "resume", paused["pause_id"])["resumed"] == [paused["pause_id"]]
    released = json_of(crew, "release", "hits/0")
    assert released["before"]["partition"] == 0
    result = json_of(crew, "history", "--limit", "3")
    assert {"group", "topic", "start", "read", "records"} == result.keys()
    assert len(result["records"]) == 3
    first = json_of(crew, "history")["records"][0]
    assert (first["kind"], first["verdict"]) == ("JoiningGroup", "applied")
    assert first not in result["records"], "the newest records are shown"


def test_a_job_file_names_cluster_group_topic_and_interval(crew: Crew, anna: Agent, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"job: web\nlog:\n  kafka: {{bootstrap: '{crew.bootstrap}', topics: [hits], group: {crew.group}}}\n"
        f"claims: {{topic: {crew.topic}, heartbeat: 1s}}\n"
        f"decode: json\nschema: {{id: long}}\ntable:\n  delta: {{path: '{tmp_path / 'table'}'}}\n"
    )
    runner = CliRunner()
    listed = runner.invoke(app, ["claims", "list", "--job", str(job)], catch_exceptions=False)
    assert "anna" in listed.stdout
    assert "hits/3" in listed.stdout
    output_text = runner.invoke(app, ["claims", "history", "--job", str(job)], catch_exceptions=False)
    [claimed] = [line for line in output_text.stdout.splitlines() if "ClaimingPartition" in line]
    assert "anna" in claimed and "hits/3" in claimed and claimed.endswith("applied")


@pytest.mark.parametrize(
    "options",
    [
        ["list"],
        ["list", "--bootstrap", "localhost:1"],
        ["list", "--bootstrap", "localhost:1", "--job", "x.yaml"],
        ["pause", "--bootstrap", "localhost:1", "--group", "g", "--for", "soon"],
    ],
)
def test_options_that_do_not_name_a_group_are_the_users_error(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["claims", *options])
    assert isinstance(result.exception, UserError)
