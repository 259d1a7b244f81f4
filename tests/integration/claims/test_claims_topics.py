"""The coordination topic: created with the right settings, refused with wrong ones, and changed by an administrator."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.claims.admin.commands import list_claims
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.claims.member.agent import Agent
from penstock.claims.member.topics import GrownTopicError
from penstock.claims.protocol.codec import UnknownVersionError
from penstock.claims.protocol.group_view import coordination_partition
from penstock.errors import UserError
from penstock.events import Event
from penstock.logs.log import Partition
from tests.support.claimants import PLACES, Crew, Held, hits, hits_up_to
from tests.support.kafka import Produce, Topics
from tests.support.waiting import wait_until

GOOD = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(6))
    yield crew
    crew.close()


def settings_of(bootstrap: str, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(30).items()}


def refusal(agent: Agent) -> UserError:
    """The error of the user's that ends this agent."""
    with pytest.raises(UserError) as raised:
        wait_until(lambda: bool(agent.held()) and False, 20)
    return raised.value


# settings


def test_the_topics_are_made_with_the_settings_that_the_protocol_needs(crew: Crew, bootstrap: str) -> None:
    crew.join("anna")
    wait_until(lambda: crew.shared(6))
    assert crew.described().partitions == PLACES
    log = settings_of(bootstrap, crew.topic)
    # A refused claim may be the newest record of its key: compaction would keep it and drop the state.
    assert log["cleanup.policy"] == "delete"
    assert log["retention.ms"] == "604800000"
    assert log["message.timestamp.type"] == "LogAppendTime"
    assert log["unclean.leader.election.enable"] == "false"
    snapshots = settings_of(bootstrap, crew.described().snapshots)
    assert snapshots["cleanup.policy"] == "compact"
    assert snapshots["max.message.bytes"] == "8388608"


def test_all_wrong_settings_are_named_at_once(crew: Crew, topic: Topics) -> None:
    topic(PLACES, {"cleanup.policy": "compact", "retention.ms": "60000"}, name=crew.topic)
    fault = refusal(crew.join("anna"))
    assert crew.topic in fault.primary
    for name in ("cleanup.policy", "retention.ms", "message.timestamp.type"):
        assert name in fault.detail


def test_wrong_settings_of_the_snapshots_are_named(crew: Crew, topic: Topics) -> None:
    topic(PLACES, GOOD, name=crew.topic)
    topic(PLACES, {"cleanup.policy": "delete"}, name=f"{crew.topic}_snapshots")
    fault = refusal(crew.join("anna"))
    assert "_snapshots" in fault.primary
    assert "cleanup.policy" in fault.detail


def test_snapshots_of_another_number_of_partitions_are_refused(crew: Crew, topic: Topics) -> None:
    topic(PLACES, GOOD, name=crew.topic)
    topic(PLACES + 1, {"cleanup.policy": "compact"}, name=f"{crew.topic}_snapshots")
    assert "_snapshots" in refusal(crew.join("anna")).primary


def test_an_existing_topic_is_used_unchanged(crew: Crew, topic: Topics) -> None:
    topic(2, {**GOOD, "retention.ms": "-1"}, name=crew.topic)
    # As where the broker's own default is short: snapshots are kept by compaction.
    topic(2, {"cleanup.policy": "compact", "retention.ms": "60000"}, name=f"{crew.topic}_snapshots")
    before = crew.described()
    crew.join("anna")
    wait_until(lambda: crew.shared(6))
    assert crew.described() == before


def test_members_that_start_together_make_the_topic_once(crew: Crew) -> None:
    for client_id in ("anna", "bert", "cleo"):
        crew.join(client_id)
    wait_until(lambda: crew.shared(2, 2, 2))
    assert crew.described().partitions == PLACES


# deleted, made again, grown


def test_m1_tokens_stay_above_those_of_the_tables_when_the_topic_is_deleted_under_running_members(
    crew: Crew, topic: Topics
) -> None:
    floors = dict.fromkeys(crew.requested, 10)
    anna, bert = crew.join("anna", floors), crew.join("bert", floors)
    wait_until(lambda: crew.shared(3, 3))
    before: Held = {**anna.held(), **bert.held()}
    assert min(before.values()) == 11
    first = crew.described()

    topic.delete(crew.topic)
    # The owner writes its token to its table: that is the floor at which the recreated topic begins.
    for agent in (anna, bert):
        agent.request(crew.requested, before)
    wait_until(lambda: crew.shared(3, 3) and min({**anna.held(), **bert.held()}.values()) > 11)
    assert crew.described().topic_id != first.topic_id
    assert crew.described().partitions == PLACES


def test_a_recreated_topic_is_another_log(crew: Crew, topic: Topics) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    crew.leave("anna")
    topic.delete(crew.topic)
    anna = crew.join("anna", floors={hits(0): 7})
    wait_until(lambda: crew.shared(6))
    assert anna.held()[hits(0)] == 8
    assert anna.held()[hits(1)] == 1, "where no table has a token, tokens begin again"


def test_a_recreated_coordination_topic_with_wrong_settings_stops_every_member(crew: Crew, topic: Topics) -> None:
    anna, bert = crew.join("anna"), crew.join("bert")
    wait_until(lambda: crew.shared(3, 3))
    topic.recreate(crew.topic, PLACES)
    for agent in (anna, bert):
        assert "message.timestamp.type" in refusal(agent).detail


def test_an_enlarged_coordination_topic_stops_every_member(crew: Crew, topic: Topics) -> None:
    anna, bert = crew.join("anna"), crew.join("bert")
    wait_until(lambda: crew.shared(3, 3))
    topic.grow(crew.topic, PLACES + 1)
    for agent in (anna, bert):
        assert str(PLACES + 1) in refusal(agent).primary
    # Who comes later is refused too: where a claim is found depends on the number of partitions.
    assert str(PLACES + 1) in refusal(crew.join("cleo")).primary


@pytest.mark.parametrize("both", [False, True], ids=["log", "log and snapshots"])
def test_a_group_that_ended_before_the_topic_grew_is_not_treated_as_new(crew: Crew, topic: Topics, both: bool) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    anna.progress(hits(0), 500)
    crew.leave("anna")
    count = PLACES + 1
    assert coordination_partition(crew.group, count) != coordination_partition(crew.group, PLACES)
    topic.grow(crew.topic, count)
    if both:
        topic.grow(f"{crew.topic}_snapshots", count)
    fault = refusal(crew.join("bert"))
    assert isinstance(fault, GrownTopicError)
    with pytest.raises(GrownTopicError):
        list_claims(CoordinatedGroup(crew.spec, crew.group, crew.topic))


# what others write into it


def test_p6_a_record_of_a_newer_version_stops_the_members_of_its_group_and_no_others(
    crew: Crew, produce: Produce
) -> None:
    kitchen = Crew(crew.bootstrap, crew.requested, crew.topic, "kitchen")
    try:
        anna, bert = crew.join("anna", places=1), crew.join("bert", places=1)
        zoe = kitchen.join("zoe", places=1)
        wait_until(lambda: crew.shared(3, 3) and kitchen.shared(6))
        before = zoe.held()
        produce(crew.topic, [json.dumps({"penstock": 3, "kind": "Heartbeat"})], key=crew.group)
        for agent in (anna, bert):
            fault = refusal(agent)
            assert isinstance(fault, UnknownVersionError)
            assert "version 3" in fault.primary
        assert isinstance(refusal(crew.join("cleo", places=1)), UnknownVersionError)
        kitchen.join("yves", places=1)
        wait_until(lambda: kitchen.shared(3, 3))
        assert before.keys() >= zoe.held().keys()
    finally:
        kitchen.close()


FOREIGN = [None, b"", b"banana", b"\xff\xfe", b"{}", b"[]"]
MALFORMED = b'{"penstock":2,"group":"shop","of":4,"record":{"kind":"Heartbeat"}}'


def test_p19_foreign_and_malformed_records_are_skipped_by_every_member(crew: Crew, produce: Produce) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(6))
    before = anna.held()
    place = coordination_partition(crew.group, PLACES)
    count = len(FOREIGN) + 1
    produce(crew.topic, FOREIGN, partition=place)
    produce(crew.topic, [MALFORMED], partition=place, key=crew.group)
    # Those of another group are not even looked at.
    produce(crew.topic, [b"banana"], partition=place, key="another group")
    wait_until(lambda: crew.names("anna").count("foreign record") == count)
    assert anna.held() == before
    # Who comes later reads the same log and agrees.
    bert = crew.join("bert")
    wait_until(lambda: crew.shared(3, 3))

    def tokens(agent: Agent) -> dict[Partition, int]:
        with agent.looking() as participant:
            return {item: participant.view.claim(item).token for item in crew.requested}

    # Either may read a record a moment before the other.
    wait_until(lambda: tokens(anna) == tokens(bert))


def test_a_listener_may_block_on_a_caller_of_the_member_and_may_fail(crew: Crew, produce: Produce) -> None:
    waited: dict[str, bool] = {}

    def listener(event: Event) -> None:
        other = threading.Thread(target=crew.held, daemon=True)
        other.start()
        other.join(20.0)
        waited[event.name] = other.is_alive()
        raise RuntimeError("a fault of the listener's own")

    crew.join("anna", listener=listener)
    wait_until(lambda: crew.shared(6))
    produce(crew.topic, [b"banana"], partition=coordination_partition(crew.group, PLACES))
    wait_until(lambda: "foreign record" in waited)
    assert {"group joined", "claim won"} <= waited.keys()
    assert not any(waited.values())


def test_a_log_that_ends_with_the_marker_of_a_transaction_is_read_to_its_end(crew: Crew, produce: Produce) -> None:
    crew.join("anna")
    wait_until(lambda: crew.shared(6))
    crew.leave("anna")
    for place in range(PLACES):
        produce(crew.topic, ["not ours"], partition=place, transactional=True)
    bert = crew.join("bert")
    wait_until(lambda: crew.shared(6))
    assert bert.startup_seconds is not None and bert.startup_seconds < 5
