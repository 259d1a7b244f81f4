"""Publishing to a real broker: its topics, its partitions, its transactions, and who may use them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.errors import TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.topics import KafkaTopics
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import OutputRecord, PublishBucket, PublishPosition, decode_position, encode_position
from penstock.publish.positions_topic import read_position
from penstock.publish.spec import PublishSpec
from tests.support.kafka import Topics
from tests.support.published import some

SECONDS_MAX = 60.0
BUCKET = PublishBucket("shop", "table-1", 0, 2)


@pytest.fixture
def positions() -> str:
    return f"positions-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def spec(topic: Topics, positions: str) -> PublishSpec:
    return PublishSpec(topic(3), positions_topic=positions, buckets=2)


@pytest.fixture
def output(bootstrap: str, spec: PublishSpec) -> Iterator[KafkaOutput]:
    with closing(KafkaOutput(spec, KafkaLogSpec(bootstrap), BUCKET)) as opened:
        yield opened


def test_the_positions_topic_is_created_compacted_with_a_partition_for_each_bucket(
    bootstrap: str, output: KafkaOutput, positions: str
) -> None:
    output.open()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert len(admin.list_topics(positions, timeout=SECONDS_MAX).topics[positions].partitions) == 8
    [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, positions)]).values()
    assert future.result(SECONDS_MAX)["cleanup.policy"].value == "compact"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_positions_topic_with_retention_is_refused(
    topic: Topics, output: KafkaOutput, positions: str, policy: str
) -> None:
    topic(8, {"cleanup.policy": policy}, name=positions)
    with pytest.raises(UserError) as raised:
        output.open()
    assert positions in raised.value.primary


def test_a_positions_topic_with_too_few_partitions_is_refused(
    topic: Topics, output: KafkaOutput, positions: str
) -> None:
    topic(1, {"cleanup.policy": "compact"}, name=positions)
    with pytest.raises(UserError):
        output.open()
    topic.grow(positions, 2)
    assert output.open() is None


def test_a_position_stays_where_it_is_when_partitions_are_added(
    topic: Topics, output: KafkaOutput, positions: str
) -> None:
    output.open()
    output.publish(some("a"), PublishPosition(3, "1"))
    topic.grow(positions, 19)
    assert output.open() == PublishPosition(3, "1")


def test_a_missing_topic_is_a_user_error(bootstrap: str, positions: str) -> None:
    spec = PublishSpec("no-such-topic", positions_topic=positions)
    with closing(KafkaOutput(spec, KafkaLogSpec(bootstrap), BUCKET)) as output, pytest.raises(UserError) as raised:
        output.open()
    assert "no-such-topic" in raised.value.primary


def test_keys_get_the_partitions_of_kafkas_java_client(bootstrap: str, output: KafkaOutput, spec: PublishSpec) -> None:
    # Murmur2 of these keys from Kafka's own tests; the sign bit is cleared.
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    output.open()
    output.publish([OutputRecord(key.encode(), b"x") for key in hashes], PublishPosition(1, "1"))
    with closing(KafkaTopics(KafkaLogSpec(bootstrap, topics=(spec.topic,)))) as topics:
        bounds = topics.bounds(topics.partitions())
    expected = [(number & 0x7FFFFFFF) % 3 for number in hashes.values()]
    # The marker of the transaction takes an offset too.
    result = {place.number: bound.end - 1 for place, bound in bounds.items() if bound.end}
    assert result == {number: expected.count(number) for number in set(expected)}


def test_an_open_transaction_of_another_bucket_is_awaited_for_a_bounded_time(
    bootstrap: str, output: KafkaOutput, spec: PublishSpec
) -> None:
    """Buckets of other jobs share the partition: records after their open transactions cannot be read yet."""
    output.open()
    other = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"other-{uuid.uuid4().hex}"})
    other.init_transactions(SECONDS_MAX)
    other.begin_transaction()
    other.produce(spec.positions_topic, b"?", b"other/0", 0)
    other.flush(SECONDS_MAX)
    output.publish(some("a"), PublishPosition(4, "1"))
    with closing(KafkaLog(spec.cluster(KafkaLogSpec(bootstrap)))) as log:
        with pytest.raises(TransientError):
            read_position(log, spec.positions_topic, BUCKET, seconds_max=1.0)
        other.commit_transaction(SECONDS_MAX)
        content = read_position(log, spec.positions_topic, BUCKET)
    assert content == encode_position(BUCKET, PublishPosition(4, "1"))
    assert decode_position(BUCKET, content) == PublishPosition(4, "1")


def test_client_settings_go_only_to_the_clients_that_accept_them(
    bootstrap: str, spec: PublishSpec, caplog: pytest.LogCaptureFixture
) -> None:
    log = KafkaLogSpec(bootstrap, client_settings={"fetch.min.bytes": "1", "client.id": "shop"})
    stated = PublishSpec(spec.topic, positions_topic=spec.positions_topic)
    with closing(KafkaOutput(stated, log, BUCKET)) as output:
        output.open()
        output.publish(some("a"), PublishPosition(1, "1"))
        assert output.open() == PublishPosition(1, "1")
    assert [record.message for record in caplog.records if "CONFWARN" in record.message] == []


def test_a_topic_with_a_low_limit_takes_many_small_records(bootstrap: str, topic: Topics, positions: str) -> None:
    """A batch as large as the client's own limit would be refused as a whole."""
    spec = PublishSpec(topic(1, {"max.message.bytes": "5000"}), positions_topic=positions)
    with closing(KafkaOutput(spec, KafkaLogSpec(bootstrap), BUCKET)) as output:
        output.open()
        rows = [OutputRecord(b"k", uuid.uuid4().bytes * 16) for _ in range(200)]
        output.publish(rows, PublishPosition(1, "200"))
        with pytest.raises(UserError) as raised:
            output.publish([OutputRecord(b"cpu", b"x" * 6_000)], PublishPosition(1, "201"))
        assert "6003" in raised.value.primary
        assert output.open() == PublishPosition(1, "200")
