"""A batch of slices as a DataFrame, by Spark's own Kafka source, and what its failures mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, TransientError, UserError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.security import java_settings
from penstock.logs.log import Slice, SliceShrankError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1024 * 1024
POLL_RECORDS_MAX = 20_000
PARTITION_FETCH_BYTES_MAX = 8 * MIB
FETCH_BYTES_MAX = 16 * MIB
RECEIVE_BUFFER_BYTES = 1 * MIB
POLL_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 15_000
API_TIMEOUT_MS = 20_000

DETAIL_CHARACTERS_MAX = 500

_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
}
_HEADERS = {"headers": "array<struct<key: string, value: binary>>"}


@dataclass(frozen=True, slots=True)
class _Meaning:
    error: type[PenstockError]
    primary: str
    hint: str = ""

    def raised(self, detail: str) -> PenstockError:
        return self.error(self.primary, detail=detail, hint=self.hint)


_AWAY = _Meaning(TransientError, "Kafka did not answer Spark in time", "is every broker reachable from the executors?")
_MEANINGS = (
    (
        {"TopicAuthorizationException", "GroupAuthorizationException", "ClusterAuthorizationException"},
        _Meaning(
            UserError, "Spark may not read the topic", "grant Read on the topic and on groups with the job's prefix"
        ),
    ),
    (
        {"SaslAuthenticationException", "SslAuthenticationException", "AuthenticationException"},
        _Meaning(UserError, "Kafka rejects Spark's credentials", "check the security section of the job file"),
    ),
    (
        {"InvalidConfigurationException", "ConfigException"},
        _Meaning(
            UserError, "Spark's Kafka client does not accept its settings", "check the kafka section of the job file"
        ),
    ),
    (
        {"RecordTooLargeException"},
        _Meaning(
            UserError, "a record does not fit the fetch size", "raise max.partition.fetch.bytes and fetch.max.bytes"
        ),
    ),
    (
        {"CorruptRecordException"},
        _Meaning(UserError, "the log holds a damaged record", "repair the partition, or move the position past it"),
    ),
    (
        {"KafkaIllegalStateException", "OffsetOutOfRangeException", "NoOffsetForPartitionException"},
        _Meaning(SliceShrankError, "the log no longer has all offsets of a slice"),
    ),
    (
        {"UnknownTopicOrPartitionException", "UnknownTopicIdException"},
        _Meaning(TransientError, "the topic went away while it was read"),
    ),
)
_SOURCE_PACKAGE = "org.apache.spark.sql.kafka010."
_UNRESOLVED = "No resolvable bootstrap urls given in bootstrap.servers"
_FETCH_TIMEOUT = "java.util.concurrent.TimeoutException"
_EXCEPTION_LINE = re.compile(
    r"(?:^|: )(?P<line>(?P<name>org\.apache\.(?:kafka|spark\.sql\.kafka010)\.[\w.]+(?:Exception|Error)"
    r"|java\.util\.concurrent\.TimeoutException)(?::|$).*)",
    re.MULTILINE,
)


def read_batch(
    spark: SparkSession, spec: KafkaLogSpec, slices: Sequence[Slice], tasks_min: int, headers: bool
) -> DataFrame:
    """The records of the slices' `[read_from, end)` and nothing else; few slices are split into `tasks_min` tasks."""
    columns = _COLUMNS | _HEADERS if headers else _COLUMNS
    wanted = [each for each in slices if each.read_from < each.end]
    if not wanted:
        return spark.range(0).selectExpr(*(f"cast(null as {kind}) as {name}" for name, kind in columns.items()))
    options = source_options(spec, wanted, tasks_min, headers)
    return spark.read.format("kafka").options(**options).load().select(*columns)


def source_options(spec: KafkaLogSpec, slices: Sequence[Slice], tasks_min: int, headers: bool) -> dict[str, str]:
    """The options of Spark's Kafka source for exactly these slices; the job's client settings win over our tuning."""
    tuning = {
        "kafka.max.poll.records": str(POLL_RECORDS_MAX),
        "kafka.max.partition.fetch.bytes": str(PARTITION_FETCH_BYTES_MAX),
        "kafka.fetch.max.bytes": str(FETCH_BYTES_MAX),
        "kafka.receive.buffer.bytes": str(RECEIVE_BUFFER_BYTES),
        "kafka.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "kafka.default.api.timeout.ms": str(API_TIMEOUT_MS),
    }
    options = {
        **tuning,
        **java_settings(spec),
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "failOnDataLoss": "true",
        "includeHeaders": "true" if headers else "false",
        "minPartitions": str(tasks_min),
        "assign": _by_topic_partitions(slices),
        "startingOffsets": _by_topic_offsets({(s.partition.topic, s.partition.number): s.read_from for s in slices}),
        "endingOffsets": _by_topic_offsets({(s.partition.topic, s.partition.number): s.end for s in slices}),
    }
    if spec.group:
        # Clusters with ACLs allow groups by prefix; Spark's own prefix would need a rule of its own.
        options["groupIdPrefix"] = spec.group
    return options


def source_error(exception: Exception) -> PenstockError | None:
    """What a failed Spark job means if the Kafka source failed it; None if something else did.

    Spark hands the failure of a task to the driver as text, so the names of Java's exceptions in it are what there is.
    """
    # PySpark's own text leaves the stack trace out unless a Spark setting asks for it.
    text = f"{getattr(exception, '_desc', None) or exception}\n{getattr(exception, '_stackTrace', '')}"
    lines: dict[str, str] = {}
    for found in _EXCEPTION_LINE.finditer(text):
        lines.setdefault(found["name"], found["line"].strip()[:DETAIL_CHARACTERS_MAX])
    if _SOURCE_PACKAGE not in text:
        lines.pop(_FETCH_TIMEOUT, None)
    if _UNRESOLVED in text:
        # Java calls it a wrong setting, but name servers fail and recover like brokers do.
        return _AWAY.raised(_UNRESOLVED)
    for classes, meaning in _MEANINGS:
        detail = next((line for name, line in lines.items() if name.rpartition(".")[2] in classes), None)
        if detail is not None:
            return meaning.raised(detail)
    return _AWAY.raised(next(iter(lines.values()))) if lines else None


def _by_topic_partitions(slices: Sequence[Slice]) -> str:
    assigned: dict[str, list[int]] = {}
    for each in slices:
        assigned.setdefault(each.partition.topic, []).append(each.partition.number)
    return json.dumps(assigned)


def _by_topic_offsets(offsets: dict[tuple[str, int], int]) -> str:
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        nested.setdefault(topic, {})[str(number)] = offset
    return json.dumps(nested)
