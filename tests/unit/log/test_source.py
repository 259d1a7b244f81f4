"""What Spark's Kafka source is asked for, and what its failures mean."""

from __future__ import annotations

import json

import pytest

from penstock.errors import PenstockError, TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.spark_source import source_error, source_options
from penstock.logs.log import Partition, Slice, SliceShrankError

SPEC = KafkaLogSpec("k1:9092", topics=("orders", "users"), group="shop")
SLICES = [
    Slice(Partition("orders", "id-1", 0), 5, 30, 10),
    Slice(Partition("orders", "id-1", 11), 0, 7, 0),
    Slice(Partition("users", "id-2", 0), 2, 4, 2),
]


def test_the_source_is_asked_for_exactly_the_offsets_that_are_to_be_read() -> None:
    options = source_options(SPEC, SLICES, tasks_min=4, headers=False)
    assert json.loads(options["assign"]) == {"orders": [0, 11], "users": [0]}
    assert json.loads(options["startingOffsets"]) == {"orders": {"0": 10, "11": 0}, "users": {"0": 2}}
    assert json.loads(options["endingOffsets"]) == {"orders": {"0": 30, "11": 7}, "users": {"0": 4}}
    assert options["minPartitions"] == "4"


def test_lost_data_fails_and_open_transactions_are_never_read() -> None:
    spec = KafkaLogSpec("k1:9092", topics=("orders",))
    options = source_options(spec, SLICES[:1], tasks_min=1, headers=True)
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["includeHeaders"] == "true"
    assert "groupIdPrefix" not in options


def test_the_jobs_own_client_settings_win_over_the_tuning() -> None:
    spec = KafkaLogSpec("k1:9092", topics=("orders",), client_settings={"max.partition.fetch.bytes": "1000"})
    assert source_options(spec, SLICES[:1], 1, False)["kafka.max.partition.fetch.bytes"] == "1000"


def stage_failure(line: str) -> str:
    return (
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
        f"Lost task 0.3 in stage 3.0 (TID 9) (localhost executor driver): {line}\n"
        "\tat org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.get(KafkaDataConsumer.scala:1)\n"
        "\nDriver stacktrace:\n"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("org.apache.spark.sql.kafka010.KafkaIllegalStateException: Cannot fetch offset 3", SliceShrankError),
        ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: out of range", SliceShrankError),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone", TransientError),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.", TransientError),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 3", TransientError),
        ("org.apache.kafka.common.errors.DisconnectException", TransientError),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized: [orders]", UserError),
        ("org.apache.kafka.common.errors.GroupAuthorizationException: Not authorized: shop", UserError),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: invalid credentials", UserError),
        ("org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed", UserError),
        ("org.apache.kafka.common.errors.RecordTooLargeException: 11 MB", UserError),
    ],
)
def test_a_failure_of_the_source_says_what_to_do_next(line: str, expected: type[PenstockError]) -> None:
    error = source_error(RuntimeError(stage_failure(line)))
    assert type(error) is expected
    assert error.detail == line


def test_the_deepest_telling_cause_decides() -> None:
    text = (
        "An error occurred while calling o49.collectToPython.\n"
        ": java.util.concurrent.ExecutionException: org.apache.kafka.common.KafkaException: no client\n"
        "\tat org.apache.spark.sql.kafka010.X.y(X.scala:1)\n"
        "Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: invalid credentials\n"
    )
    assert isinstance(source_error(RuntimeError(text)), UserError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "java.lang.OutOfMemoryError: Java heap space",
        "java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]\n\tat org.apache.spark.rpc.X",
        "PythonException: KeyError: 'org.apache.kafka'",
    ],
)
def test_a_failure_of_something_else_is_left_alone(text: str) -> None:
    assert source_error(RuntimeError(text)) is None
