"""The settings of a user open a guarded cluster to the process and to its tasks, and a refusal is a user error."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.errors import UserError
from penstock.job.spec import KafkaLogSpec, Secret
from penstock.logs.kafka.admin import CALL_SECONDS_MAX
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.mirror import mirror
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.log import Partition, Slice
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import OutputRecord, PublishBucket, PublishPosition
from penstock.publish.spec import PublishSpec
from tests.support.guarded import Guarded, guarded_cluster, sasl_settings
from tests.support.kafka import Produce, Topics
from tests.support.published import read_topic, some

SECONDS_MAX = 120
AWKWARD = "a\"b\\c;d'e =f"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
ANN = sasl_settings("ann", AWKWARD)
BOB = sasl_settings("bob", "bob-secret")
ANN_BY_SCRAM = sasl_settings("ann", AWKWARD, "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": SCRAM,
    }
    users = {"ann": AWKWARD, "bob": "bob-secret"}
    folder = tmp_path_factory.mktemp("guarded")
    with guarded_cluster(folder, users, settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(guarded: Guarded) -> AdminClient:
    return AdminClient({"bootstrap.servers": guarded.bootstrap})


@pytest.fixture(scope="module")
def orders(guarded: Guarded, admin: AdminClient) -> str:
    """A topic of three records that ann may read and bob may not."""
    name = Topics(guarded.bootstrap)(name="orders")
    Produce(guarded.bootstrap)(name, ["a", "b", "c"])
    allow(admin, "ann", ResourceType.TOPIC, name, AclOperation.READ)
    password = UserScramCredentialUpsertion(
        "ann", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), AWKWARD.encode()
    )
    for future in admin.alter_user_scram_credentials([password]).values():
        future.result(SECONDS_MAX)
    return name


@pytest.fixture
def open_log(guarded: Guarded, orders: str) -> Iterator[Callable[[Mapping[str, str]], KafkaLog]]:
    opened: list[KafkaLog] = []

    def make(settings: Mapping[str, str]) -> KafkaLog:
        opened.append(KafkaLog(spec_of(guarded, orders, settings)))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def spec_of(cluster: Guarded, topic: str, settings: Mapping[str, str]) -> KafkaLogSpec:
    return KafkaLogSpec(cluster.sasl_bootstrap, topics=(topic,), group="shop", client_settings=settings)


def allow(admin: AdminClient, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
    for future in admin.create_acls([binding]).values():
        future.result(SECONDS_MAX)


SILENCE_SECONDS = 8.0


def read(spec: KafkaLogSpec, partition: Partition) -> list[bytes]:
    """The values of the three records, as a task reads them."""
    reader = replace(PieceReader.of(spec, [Slice(partition, 0, 3, 0)], 1, 1024), silence_seconds_max=SILENCE_SECONDS)
    return [value for batch in reader([pa.record_batch({"id": [0]})]) for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("settings", [ANN, ANN_BY_SCRAM], ids=["plain", "scram"])
def test_an_awkward_password_opens_the_cluster_to_the_process_and_to_its_tasks(
    settings: Mapping[str, str], open_log: Callable[[Mapping[str, str]], KafkaLog], guarded: Guarded, orders: str
) -> None:
    log = open_log(settings)
    [partition] = log.partitions()
    assert [(bound.first, bound.end) for bound in log.bounds([partition]).values()] == [(0, 3)]
    assert read(spec_of(guarded, orders, settings), partition) == [b"a", b"b", b"c"]


def test_the_contents_of_certificates_open_the_cluster_to_tasks_that_have_no_such_files(
    guarded: Guarded, orders: str
) -> None:
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.pem": guarded.client.authority,
        "ssl.certificate.pem": guarded.client.certificate,
        "ssl.key.pem": Secret(guarded.client.key),
    }
    spec = KafkaLogSpec(guarded.tls_bootstrap, topics=(orders,), group="shop", client_settings=settings)
    with closing(KafkaLog(spec)) as log:
        [partition] = log.partitions()
    sent = pickle.loads(pickle.dumps(spec))
    assert read(sent, partition) == [b"a", b"b", b"c"]
    assert "PRIVATE KEY" not in repr(sent)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"])
def test_a_wrong_password_or_mechanism_is_a_user_error_within_seconds(
    mechanism: str, open_log: Callable[[Mapping[str, str]], KafkaLog]
) -> None:
    log = open_log(sasl_settings("ann", "guess-7", mechanism))
    began_at = time.monotonic()
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            log.partitions()
        assert "guess-7" not in f"{raised.value} {raised.value!r}"
    assert time.monotonic() - began_at < 2 * CALL_SECONDS_MAX


def test_a_topic_without_permission_is_named_to_the_user(open_log: Callable[[Mapping[str, str]], KafkaLog]) -> None:
    with pytest.raises(UserError) as raised:
        open_log(BOB).partitions()
    assert "topic orders" in raised.value.primary
    assert open_log(BOB).admin.topic_names() == frozenset()


def test_a_task_without_permission_gets_the_same_error(
    guarded: Guarded, orders: str, open_log: Callable[[Mapping[str, str]], KafkaLog]
) -> None:
    [partition] = open_log(ANN).partitions()
    with pytest.raises(UserError) as raised:
        read(spec_of(guarded, orders, BOB), partition)
    assert "topic orders" in raised.value.primary


def test_without_permission_to_describe_a_topic_compaction_is_unknown(
    open_log: Callable[[Mapping[str, str]], KafkaLog], orders: str
) -> None:
    assert open_log(ANN).compacted(orders) is None


def test_a_mirror_without_permission_on_the_group_is_reported_and_works_once_granted(
    open_log: Callable[[Mapping[str, str]], KafkaLog], admin: AdminClient
) -> None:
    log = open_log(ANN)
    [partition] = log.partitions()
    began_at = time.monotonic()
    refused = mirror(log, "shop", {partition: 2})
    assert time.monotonic() - began_at < 2 * CALL_SECONDS_MAX
    assert "grant Read" in refused[partition]
    allow(admin, "ann", ResourceType.GROUP, "shop", AclOperation.READ)
    deadline = time.monotonic() + SECONDS_MAX
    while mirror(log, "shop", {partition: 2}):
        assert time.monotonic() < deadline, "the permission never arrived"


def test_without_permission_to_publish_the_error_names_the_grant_and_publishing_resumes_after_it(
    guarded: Guarded, admin: AdminClient
) -> None:
    topics = Topics(guarded.bootstrap)
    topics(name="out")
    topics(8, {"cleanup.policy": "compact"}, name="positions")
    log = KafkaLogSpec(guarded.sasl_bootstrap, client_settings=BOB)
    output = KafkaOutput(PublishSpec("out", positions_topic="positions"), log, PublishBucket("shop", "t", 0, 8))

    def until_granted(name: str, kind: ResourceType, operation: AclOperation, act: Callable[[], object]) -> None:
        """The act is refused, and the error names what to grant; with the permission it is done."""
        refused(act, name.rstrip("0"))
        allow(admin, "bob", kind, name, operation)
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            assert time.monotonic() < deadline, "the permission never arrived"
            with contextlib.suppress(UserError):
                act()
                return

    def publish() -> None:
        output.open()
        output.publish(some("a"), PublishPosition(1, "1"))

    for operation in (AclOperation.READ, AclOperation.WRITE):
        allow(admin, "bob", ResourceType.TOPIC, "positions", operation)
    with closing(output):
        refused(output.open, "topic out")
        allow(admin, "bob", ResourceType.TOPIC, "out", AclOperation.DESCRIBE)
        until_granted("penstock/shop/0", ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, output.open)
        until_granted("out", ResourceType.TOPIC, AclOperation.WRITE, publish)
    assert [record.value for record in read_topic(guarded.bootstrap, "out", committed=True)] == [b"a"]


class Endless(Sequence[OutputRecord]):
    """As many records as are asked for within a bound: more than are sent before a broker has answered."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, number: Any) -> Any:
        return OutputRecord(b"k", b"x")


def test_a_refusal_that_arrives_while_records_are_still_sent_is_reported_as_one(
    guarded: Guarded, admin: AdminClient
) -> None:
    """The client refuses the next record then, without the reason: that is known to the transaction alone."""
    topics = Topics(guarded.bootstrap)
    topics(name="forbidden")
    topics(8, {"cleanup.policy": "compact"}, name="positions-2")
    for operation in (AclOperation.READ, AclOperation.WRITE):
        allow(admin, "bob", ResourceType.TOPIC, "positions-2", operation)
    allow(admin, "bob", ResourceType.TOPIC, "forbidden", AclOperation.DESCRIBE)
    allow(admin, "bob", ResourceType.TRANSACTIONAL_ID, "penstock/mall/0", AclOperation.WRITE)
    log = KafkaLogSpec(guarded.sasl_bootstrap, client_settings=BOB)
    spec = PublishSpec("forbidden", positions_topic="positions-2")

    def publish() -> None:
        output.open()
        output.publish(Endless(), PublishPosition(1))

    with closing(KafkaOutput(spec, log, PublishBucket("mall", "t", 0, 8))) as output:
        refused(publish, "publishing bucket 0 of job mall to topic forbidden")


def refused(act: Callable[[], object], name: str) -> None:
    """The act is refused, and the error names what is not granted: what was granted before may arrive after a while."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with pytest.raises(UserError) as raised:
            act()
        if name in str(raised.value):
            return
        assert time.monotonic() < deadline, f"refused for other reasons than {name}: {raised.value}"
