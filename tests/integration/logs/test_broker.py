"""The embedded broker is a real Kafka: it starts, stops, is killed, and keeps its data."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.embedded.broker import Cluster
from penstock.embedded.kafka import new_broker
from penstock.embedded.process import ProcessId
from penstock.errors import TransientError, UserError
from penstock.logs.kafka.native.consumer import RawConsumer
from penstock.logs.kafka.topics import url_safe
from tests.support import pieces
from tests.support.forked import Forked
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.kafka import Produce, Topics
from tests.support.relay import broker_behind_relay
from tests.support.waiting import wait_until

COMMAND_SECONDS_MAX = 200.0


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The first records of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test-broker", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=180)]
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True)
class Ended:
    """A command in a process of its own, which has ended."""

    code: int
    output: str
    errors: str


def broker_command(*arguments: str, folder: Path) -> Ended:
    process = Forked("penstock.cli", ["broker", *arguments, "--folder", str(folder)])
    return Ended(process.wait(COMMAND_SECONDS_MAX), process.stdout.read(), process.stderr.read())


def answer(result: Ended) -> dict[str, object]:
    assert result.code == 0, result.errors
    content: dict[str, object] = json.loads(result.output)
    return content


def test_records_come_back_as_they_were_produced(topic: Topics, produce: Produce, bootstrap: str) -> None:
    name = topic()
    places = produce(name, [b"one", "two", None], headers=[("kind", b"test")])
    assert places == [(0, 0), (0, 1), (0, 2)]
    assert read(bootstrap, name, 3) == [b"one", b"two", None]


def test_a_transaction_leaves_a_marker_behind_its_records(topic: Topics, produce: Produce, bootstrap: str) -> None:
    name = topic()
    produce(name, ["a", "b"], transactional=True)
    assert produce(name, ["c"]) == [(0, 3)]


def test_a_group_of_the_newer_protocol_gets_its_partitions(topic: Topics, bootstrap: str) -> None:
    """It is a feature that the format of Kafka's storage switches on."""
    name = topic(partitions=3)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "group.protocol": "consumer"})
    consumer.subscribe([name])

    def has_all() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == 3

    try:
        wait_until(has_all)
    finally:
        consumer.close()


def test_reading_a_missing_topic_does_not_create_it(bootstrap: str) -> None:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics("no-such-topic", timeout=120)
    error = metadata.topics["no-such-topic"].error
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_killed_broker_comes_back_with_its_data_on_its_port(tmp_path: Path) -> None:
    with Cluster.start(tmp_path) as cluster:
        name = Topics(cluster.bootstrap)()
        Produce(cluster.bootstrap)(name, ["kept"])
        cluster.kill()
        assert cluster.pid is None
        cluster.restart()
        assert read(cluster.bootstrap, name, 1) == [b"kept"]
    assert cluster.pid is None


def check_each_broker_is_asked_itself(bootstrap: str, topic: str, frozen_pid: int) -> None:
    """RULES P3: the id of a topic comes from the broker that was named, not from any that is at hand."""
    consumer = RawConsumer({"bootstrap.servers": bootstrap, "group.id": "any"}, lambda _: None)
    try:
        assert len({consumer.ask_topic_id(number, topic, 120.0).answer() for number in (1, 2)}) == 1
        os.kill(frozen_pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(frozen_pid).status() == psutil.STATUS_STOPPED)
        asked = {number: consumer.ask_topic_id(number, topic, 5.0) for number in (1, 2)}
        assert asked[1].answer() is not None
        with pytest.raises(KafkaException) as raised:
            asked[2].answer()
        assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    finally:
        os.kill(frozen_pid, signal.SIGCONT)
        consumer.close()


def test_no_other_broker_answers_for_one_that_does_not(tmp_path: Path) -> None:
    with (
        Cluster.start(tmp_path / "first") as cluster,
        broker_behind_relay(cluster, tmp_path / "second") as (second, _, pid),
    ):
        name = Topics(cluster.bootstrap)(assignment=[[1]])
        wait_until(lambda: knows(second.address, 2, name))
        check_each_broker_is_asked_itself(cluster.bootstrap, name, pid)


def test_records_from_a_broker_with_stale_topic_metadata_are_not_trusted(tmp_path: Path) -> None:
    """RULES P3: the stale broker still answers with the old id; a reader asks the broker that served the records."""
    with (
        Cluster.start(tmp_path / "first") as cluster,
        broker_behind_relay(cluster, tmp_path / "second") as (stale, relay, _),
    ):
        first = cluster.bootstrap
        name = Topics(first)(assignment=[[1]])
        Produce(first)(name, ["old"] * 5)
        # A broker that has just started leaves itself out of its answers until the controller has registered it.
        wait_until(lambda: knows(stale.address, 2, name))
        old = pieces.reader(stale.address, name, 5)
        [topic_id] = old.topic_ids.values()
        assert sum(batch.num_rows for batch in pieces.read(old)) == 5
        relay.cut()
        # A client that knows the stale broker may ask that one, which still counts itself in: a new one every time.
        wait_until(lambda: 2 not in AdminClient({"bootstrap.servers": first}).list_topics(timeout=120).brokers)
        Topics(first).recreate(name, assignment=[[1]])
        Produce(first)(name, ["new"] * 5)
        assert topic_id_by(stale.address, 2, name) == topic_id != topic_id_by(first, 1, name)
        unchecked = pieces.read(replace(old, topic_ids={}))
        assert [value for batch in unchecked for value in batch["value"].to_pylist()] == [b"new"] * 5
        with pytest.raises(TransientError, match="recreated"):
            list(pieces.read(old))


def knows(bootstrap: str, broker: int, topic: str) -> bool:
    """Whether a client that begins at the broker learns of that broker, and the broker knows the topic."""
    try:
        return topic_id_by(bootstrap, broker, topic, seconds_max=5.0) is not None
    except KafkaException:
        return False


def topic_id_by(bootstrap: str, broker: int, topic: str, seconds_max: float = 120.0) -> str | None:
    """What one broker means by a name."""
    consumer = RawConsumer({"bootstrap.servers": bootstrap, "group.id": "any"}, lambda _: None)
    try:
        result = consumer.ask_topic_id(broker, topic, seconds_max).answer()
        return None if result is None else url_safe(result)
    finally:
        consumer.close()


def test_the_command_line_finds_a_broker_that_another_process_started(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    assert answer(broker_command("status", "--json", folder=folder))["running"] is False
    try:
        started = answer(broker_command("start", "--json", folder=folder))
        assert started["running"] is True
        bootstrap = str(started["bootstrap"])
        name = Topics(bootstrap)()
        Produce(bootstrap)(name, ["kept"])
        assert answer(broker_command("status", "--json", folder=folder)) == started
        sent = CliRunner().invoke(app, ["broker", "send", "lines", "--folder", str(folder)], input="one\ntwo\n")
        assert sent.output.splitlines()[-1] == "2 records sent to lines"
        assert read(bootstrap, "lines", 2) == [b"one", b"two"]
        keyed = ["broker", "send", "lines", "--key", "id", "--headers", "type=click", "--folder", str(folder)]
        assert CliRunner().invoke(app, keyed, input='{"id": 7}\n').exit_code == 0
        assert "field id" in str(CliRunner().invoke(app, keyed, input="no JSON\n").exception)
        shown = CliRunner().invoke(app, ["broker", "read", "lines", "--json", "--folder", str(folder)]).output
        *_, last = [json.loads(line) for line in shown.splitlines()]
        assert (last["key"], last["headers"]) == ({"text": "7"}, [{"key": "type", "value": {"text": "click"}}])
        again = broker_command("start", "-q", folder=folder)
        assert (again.code, again.output.strip()) == (0, bootstrap), again.errors
        assert answer(broker_command("status", "--json", folder=folder)) == started
    finally:
        stopped = answer(broker_command("stop", "--json", folder=folder))
    assert stopped["running"] is False
    with Cluster.start(folder) as cluster:
        assert cluster.bootstrap == bootstrap
        assert read(bootstrap, name, 1) == [b"kept"]


def test_stopping_a_broker_that_does_not_exist_is_a_user_error(tmp_path: Path) -> None:
    result = broker_command("stop", folder=tmp_path / "nothing")
    assert result.code == UserError.exit_code
    assert "Traceback" not in result.errors


def test_a_stale_state_file_does_not_report_a_foreign_process_as_the_broker(tmp_path: Path) -> None:
    """The number of a dead broker now belongs to this test's own process: it must neither count nor be stopped."""
    other = ProcessId(os.getpid(), started_at=1.0)
    Cluster(tmp_path, "AAAAAAAAAAAAAAAAAAAAAA", new_broker()).save(other)
    cluster = Cluster.open(tmp_path)
    assert cluster is not None
    assert cluster.pid is None
    cluster.stop()


def test_a_port_in_use_is_not_taken(tmp_path: Path) -> None:
    broker = new_broker()
    Cluster(tmp_path, "AAAAAAAAAAAAAAAAAAAAAA", broker).save()
    with socket.create_server(("127.0.0.1", broker.port)), Cluster.start(tmp_path) as cluster:
        assert cluster.bootstrap != broker.address


def sasl_client(cluster: Guarded, user: str, password: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": cluster.sasl_bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }
    )


def topic_names(admin: AdminClient) -> Sequence[str]:
    return sorted(name for name in admin.list_topics(timeout=120).topics if not name.startswith("__"))


def test_a_broker_with_users_refuses_wrong_passwords_and_hides_what_no_acl_grants(tmp_path: Path) -> None:
    with guarded_cluster(tmp_path, {"ann": 'pass"\\word', "bob": "b"}, {}) as cluster:
        name = Topics(cluster.bootstrap)()
        assert topic_names(AdminClient({"bootstrap.servers": cluster.bootstrap})) == [name]
        assert topic_names(sasl_client(cluster, "ann", 'pass"\\word')) == []
        with pytest.raises(KafkaException):
            sasl_client(cluster, "bob", "wrong").list_topics(timeout=5)


def test_without_java_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    with pytest.raises(UserError) as caught:
        Cluster.start(tmp_path / "kafka")
    assert "Java" in caught.value.primary
    assert "17" in caught.value.hint
