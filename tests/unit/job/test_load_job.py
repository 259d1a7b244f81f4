from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.job.expressions import Call, Constant, Field, KafkaField
from penstock.job.spec import (
    DecodeSpec,
    FlushPolicy,
    Limits,
    Policies,
    Secret,
    SparkSpec,
    SqlSpec,
    job_of,
    kafka_of,
)
from penstock.tables.delta.spec import DeltaSpec
from penstock.tables.registry import load_job
from tests.unit.job.conftest import BASE, Load

DESIGN_EXAMPLE = """\
job: web-requests
log:
  kafka: {bootstrap: "${env:KAFKA_BROKERS}", topics: [web_requests], start: earliest}
decode: json
schema: {meta: {producer: {timestamp: string}}, method: string, session_id: string, status: int, url: string,
         uuid: string}
columns: {date: day(meta.producer.timestamp), partition: kafka.partition, offset: kafka.offset}
table:
  delta: {path: s3://lake/web_requests, partition_by: [date]}
flush: {allowed_latency: 60s, min_bytes_per_file: 128MiB, max_messages_per_batch: 100000}
on: {bad_record: quarantine, gap: fail, new_column: add}
"""

EVERYTHING = """\
job: every.thing_1
log:
  kafka:
    bootstrap: "kafka-1:9092,[::1]:9093"
    topics: [a]
    start: {0: 5, 1: 0}
    group: readers
    transactional: true
    client: {fetch.max.bytes: 52428800, check.crcs: true, sasl.username: "${env:PW}", sasl.password: plain-text}
decode: {format: json, payload: gzip}
schema: {at: long, method: string, price: "decimal(10,2)"}
columns: {day: "day(timestamp_millis(at))", region: "'eu'", version: 3, live: true, "share": 0.5}
place: none
sql: {select: [day, "upper(method) as method", region], where: "price > 1"}
table:
  delta:
    path: data/x/
    partition_by: [day, region]
    storage: {aws_region: eu-west-1, aws_secret_access_key: plain-text, AWS_ALLOW_HTTP: true}
claims: static
flush: {allowed_latency: 500ms, min_bytes_per_file: 1024, max_messages_per_batch: 10, max_bytes_per_batch: 1MB}
on: {bad_record: fail, bad_share: 0.25, gap: record, recreated: restart, tombstone: row}
limits: {stage_age: 2h, transient_retries: 0, shutdown: 5s}
spark: {master: "local[2,4]", conf: {spark.ui.enabled: false, spark.hadoop.fs.s3a.secret.key: plain-text}}
"""


def test_the_example_of_the_design_loads_unchanged(load: Load) -> None:
    spec = load(DESIGN_EXAMPLE)
    assert spec.name == "web-requests"
    assert kafka_of(spec).bootstrap == "kafka-1:9092"
    assert spec.log.topics == ("web_requests",)
    assert spec.log.start == "earliest"
    assert spec.log.group == "web-requests"
    assert spec.decode == DecodeSpec("json", "plain")
    assert spec.schema.names == ["meta", "method", "session_id", "status", "url", "uuid"]
    assert spec.schema.field("meta").type == pa.struct([("producer", pa.struct([("timestamp", pa.string())]))])
    assert spec.columns == {
        "date": Call("day", (Field(("meta", "producer", "timestamp")),)),
        "partition": KafkaField("partition"),
        "offset": KafkaField("offset"),
        "kafka_topic": KafkaField("topic"),
    }
    assert spec.table.path == "s3://lake/web_requests"
    assert job_of(spec, DeltaSpec).table.partition_by == ("date",)
    assert spec.on == Policies()


def test_a_short_file_gets_every_default_of_the_spec(load: Load, tmp_path: Path) -> None:
    spec = load(BASE)
    assert (spec.flush, spec.on, spec.limits, spec.spark) == (FlushPolicy(), Policies(), Limits(), SparkSpec())
    assert (spec.sql, spec.claims) == (None, None)
    assert list(spec.columns) == ["kafka_partition", "kafka_offset", "kafka_topic"]
    assert spec.path == tmp_path / "job.yaml"


def test_every_key_arrives_in_the_spec(load: Load, tmp_path: Path) -> None:
    spec = load(EVERYTHING)
    assert spec.log.start == {"a": {0: 5, 1: 0}}
    assert (spec.log.group, spec.log.transactional) == ("readers", True)
    assert kafka_of(spec).client_settings == {
        "fetch.max.bytes": "52428800",
        "check.crcs": "true",
        "sasl.username": "hunter2",
        "sasl.password": "plain-text",
    }
    assert spec.decode.payload == "gzip"
    assert spec.columns["region"] == Constant("eu")
    assert spec.columns["version"] == Constant(3)
    assert spec.columns["live"] == Constant(True)
    assert spec.columns["share"] == Constant(0.5)
    assert spec.sql == SqlSpec(("day", "upper(method) as method", "region"), "price > 1")
    assert spec.table.path == str(tmp_path / "data/x")
    assert spec.table.storage_options["AWS_ALLOW_HTTP"] == "true"
    assert spec.flush == FlushPolicy(0.5, 1024, 10, 1_000_000)
    assert spec.on == Policies(
        "fail",
        "record",
        "restart",
        "row",
        "ignore",
        0.25,
    )
    assert spec.limits == Limits(stage_age_seconds_max=7200.0, transient_retries_max=0, shutdown_seconds_max=5.0)
    assert spec.spark.master == "local[2,4]"
    assert spec.spark.conf["spark.ui.enabled"] == "false"


def test_no_secret_is_printed_with_the_spec_and_each_stays_usable(load: Load) -> None:
    spec = load(EVERYTHING)
    assert "hunter2" not in repr(spec)
    assert "plain-text" not in repr(spec)
    assert spec.table.storage_options["aws_secret_access_key"] == "plain-text"
    assert isinstance(spec.spark.conf["spark.hadoop.fs.s3a.secret.key"], Secret)
    assert "eu-west-1" in repr(spec)


@pytest.mark.parametrize(
    "line",
    [
        "columns: {who: \"'${env:PW}'\"}",
        "columns: {who: \"concat('x', '${env:PW}')\"}",
        "sql: {where: \"method = '${env:PW}'\"}",
    ],
)
def test_a_reference_inside_an_expression_stays_hidden(load: Load, line: str) -> None:
    assert "hunter2" not in repr(load(BASE + line + "\n"))


def test_a_secret_path_stays_hidden(load: Load) -> None:
    spec = load(BASE.replace("s3://lake/web", '"s3://${env:PW}/web"'))
    assert spec.table.path == "s3://hunter2/web"
    assert "hunter2" not in repr(spec)


def test_a_pickled_spec_keeps_its_secrets_hidden(load: Load) -> None:
    spec = load(EVERYTHING)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "hunter2" not in repr(pickle.loads(pickle.dumps(spec)))


def test_a_raw_job_has_one_binary_field_and_needs_no_schema(load: Load) -> None:
    text = BASE.replace("decode: json", "decode: raw")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("schema"))
    assert load(text).schema == pa.schema([("value", pa.binary())])


def test_start_offsets_of_one_topic_need_no_topic_name(load: Load) -> None:
    spec = load(BASE.replace("topics: [web_requests]", "topics: [web_requests], start: {0: 1500, 12: 0}"))
    assert spec.log.start == {"web_requests": {0: 1500, 12: 0}}


def test_a_topic_pattern_matches_topics(load: Load) -> None:
    spec = load(BASE.replace("topics: [web_requests]", 'topic_pattern: "web_.*", start: latest'))
    assert (spec.log.topics, spec.log.topic_pattern) == ((), "web_.*")
    assert spec.log.start == "latest"


def test_numbers_may_come_from_references(load: Load) -> None:
    text = BASE + 'flush: {max_messages_per_batch: "${env:N}", allowed_latency: "${env:T}"}\n'
    spec = load(text, {"N": "500", "T": "5m"})
    assert (spec.flush.max_messages_per_batch, spec.flush.allowed_latency_seconds) == (500, 300.0)


def test_with_a_stated_projection_the_columns_are_fixed_unless_stated_otherwise(load: Load) -> None:
    assert load(BASE + "sql: {select: [status]}\n").on.new_column == "ignore"
    assert load(BASE + "sql: {where: status > 1}\n").on.new_column == "add"
    stated = load(BASE + "sql: {select: [status]}\non: {new_column: quarantine}\n")
    assert stated.on.new_column == "quarantine"


@pytest.mark.parametrize(
    "path",
    ["/data/x", "x", "../x", "file:///data/x", "s3a://b/x", "gs://b/x", "az://c/x", "abfss://c@a.net/x", "hdfs:///x"],
)
def test_every_known_storage_is_taken(load: Load, path: str) -> None:
    load(BASE.replace("s3://lake/web", path))


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_job(path, {}).name == "web-requests"


def test_the_process_environment_answers_references_unless_another_is_given(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_GROUP", "from-the-process")
    path = tmp_path / "env.yaml"
    path.write_text(BASE.replace("topics:", 'group: "${env:PENSTOCK_TEST_GROUP}", topics:'), encoding="utf-8")
    assert load_job(path).log.group == "from-the-process"
