from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.job.expressions import Call, Field, KafkaField
from penstock.job.spec import AlertLimits, DaysSpec, MessageName, RouteSpec, job_of
from penstock.tables.export.spec import ExportSpec, Rotation, TypeSpec
from penstock.tables.registry import check_jobs
from tests.unit.job.conftest import BASE, Load
from tests.unit.job.descriptors import GARMADON

JSON = """\
job: shop
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [shop]}
decode: json
route: {by: field(meta.type)}
event_time: meta.at
types:
  order: {schema: {meta: {type: string, at: string}, price: long}}
  click: {schema: infer}
table:
  export: {path: s3://lake/shop}
"""

GARMADON_JOB = """\
job: garmadon
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [garmadon]}
decode: {format: garmadon, descriptors: garmadon.desc, header: g.Header}
route: {by: envelope}
event_time: timestamp_millis(timestamp)
types:
  fs: {values: [1], message: g.FsEvent}
  gc: {values: ["1000"], message: g.GcEvent}
table:
  export: {path: /lake/garmadon}
"""

EVERYTHING = """\
job: garmadon
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [garmadon], group: exporters}
decode:
  format: garmadon
  payload: gzip
  descriptors: garmadon.desc
  header: header.proto:g.Header
  defaults: value
  uri_names: {root: preprod-pa4}
route: {by: envelope, unknown: drop}
event_time: timestamp_millis(timestamp)
types:
  fs:
    values: [1, "2"]
    message: g.FsEvent
    event_time: kafka.timestamp
    rotation: {events: 10000, every: 30m}
  spark_task: {values: [3003], message: "spark.proto:g.TaskEvent", rotation: {every: 1h}}
days: {not_before: 2015-06-30, late: 30d, early: 12h, complete_after: 3h, idle: 1m}
columns: {application: upper(application_id), source: kafka.partition}
table:
  export:
    path: lake/garmadon/
    format: delta
    cluster: pa4
    storage: {aws_region: eu, aws_secret_access_key: plain-text}
    compression: zstd
alerts: {failed_writes_percent: 2.5, lag_records: 100000, discrepancy_records: 1000000}
"""


pytestmark = pytest.mark.usefixtures("descriptors")


def test_a_json_export_gets_a_schema_per_type_and_every_default(load: Load) -> None:
    spec = load(JSON)
    order = pa.schema([("meta", pa.struct([("type", pa.string()), ("at", pa.string())])), ("price", pa.int64())])
    at = Field(("meta", "at"))
    assert spec.table == ExportSpec(
        "s3://lake/shop",
        route=RouteSpec("field", ("meta", "type")),
        types={"order": TypeSpec("order", ("order",), order, at), "click": TypeSpec("click", ("click",), None, at)},
    )
    assert spec.schema == pa.schema([])
    assert spec.columns == {
        "kafka_partition": KafkaField("partition"),
        "kafka_offset": KafkaField("offset"),
        "kafka_topic": KafkaField("topic"),
    }


def test_every_key_of_a_garmadon_export_arrives_in_the_spec(load: Load, tmp_path: Path) -> None:
    spec = load(EVERYTHING)
    assert spec.decode.descriptors == GARMADON
    assert spec.decode.header == MessageName("g.Header", "header.proto")
    assert (spec.decode.defaults, spec.decode.uri_names) == ("value", {"root": "preprod-pa4"})
    assert spec.columns == {
        "application": Call("upper", (Field(("application_id",)),)),
        "source": KafkaField("partition"),
        "kafka_offset": KafkaField("offset"),
        "kafka_topic": KafkaField("topic"),
    }
    assert spec.table.path == str(tmp_path / "lake" / "garmadon")
    assert "plain-text" not in repr(spec)
    header = [("application_id", pa.string())]
    stamp = [("timestamp", pa.int64())]
    assert spec.table == ExportSpec(
        spec.table.path,
        spec.table.storage_options,
        route=RouteSpec("envelope", (), "drop"),
        types={
            "fs": TypeSpec(
                "fs",
                ("1", "2"),
                pa.schema([*header, ("action", pa.string()), ("size", pa.int64()), *stamp]),
                KafkaField("timestamp"),
                MessageName("g.FsEvent"),
                Rotation(10_000, 1_800.0),
            ),
            "spark_task": TypeSpec(
                "spark_task",
                ("3003",),
                pa.schema([*header, ("stage", pa.string()), *stamp]),
                Call("timestamp_millis", (Field(("timestamp",)),)),
                MessageName("g.TaskEvent", "spark.proto"),
                Rotation(seconds=3_600.0),
            ),
        },
        format="delta",
        days=DaysSpec(date(2015, 6, 30), 2_592_000.0, 43_200.0, 10_800.0, 60.0),
        cluster="pa4",
        compression="zstd",
    )
    assert load(EVERYTHING).alerts == AlertLimits(2.5, 100_000, 1_000_000)


def test_a_spec_can_be_pickled(load: Load) -> None:
    spec = load(EVERYTHING)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("by", "decode", "route"),
    [
        ("key", "json", RouteSpec("key")),
        ("header(event-type)", "json", RouteSpec("header", ("event-type",))),
        ("header( a.b )", "json", RouteSpec("header", ("a.b",))),
        ("field(`user name`.x)", "json", RouteSpec("field", ("user name", "x"))),
        ("field(type)", "json", RouteSpec("field", ("type",))),
    ],
)
def test_a_route_names_the_source_of_the_type(load: Load, by: str, decode: str, route: RouteSpec) -> None:
    export = job_of(
        load(JSON.replace("field(meta.type)", by).replace("decode: json", f"decode: {decode}")), ExportSpec
    ).table
    assert export.route == route


def test_raw_records_are_routed_by_header_and_dated_by_kafka(load: Load) -> None:
    text = JSON.replace("decode: json", "decode: raw").replace("field(meta.type)", "header(t)")
    text = text.replace("meta.at", "kafka.timestamp").replace("{schema: infer}", "{}")
    export = job_of(
        load(text.replace("{schema: {meta: {type: string, at: string}, price: long}}", "{}")), ExportSpec
    ).table
    assert {name: item.schema for name, item in export.types.items()} == {
        "order": pa.schema([("value", pa.binary())]),
        "click": pa.schema([("value", pa.binary())]),
    }


def test_protobuf_records_are_routed_by_key_with_a_message_per_type(load: Load) -> None:
    text = GARMADON_JOB.replace("format: garmadon,", "format: protobuf,").replace(", header: g.Header", "")
    text = text.replace("by: envelope", "by: key").replace("timestamp_millis(timestamp)", "kafka.timestamp")
    export = job_of(load(text), ExportSpec).table
    assert export.types["fs"].schema == pa.schema([("action", pa.string()), ("size", pa.int64())])


def test_a_single_table_takes_its_fields_from_its_message(load: Load) -> None:
    decode = "{format: protobuf, descriptors: garmadon.desc, message: g.FsEvent}"
    text = BASE.replace("decode: json", f"decode: {decode}").replace(BASE.splitlines()[4] + "\n", "")
    spec = load(text + "columns: {bytes: size}\n")
    assert spec.decode.message == MessageName("g.FsEvent")
    assert spec.schema == pa.schema([("action", pa.string()), ("size", pa.int64())])
    assert not isinstance(spec.table, ExportSpec)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[shop]", "[shop]"),
        ("[shop]", "[shop, mall]"),
        ("topics: [shop]", "topic_pattern: 'shop_.*'"),
        ("s3://lake/shop", "s3://lake/shop, cluster: pa_4-x"),
    ],
)
def test_rows_keep_their_place_when_topics_are_added_later(load: Load, old: str, new: str) -> None:
    assert list(load(JSON.replace(old, new)).columns) == ["kafka_partition", "kafka_offset", "kafka_topic"]


def test_columns_for_the_source_keep_the_names_that_the_file_gives(load: Load) -> None:
    spec = load(
        JSON.replace("[shop]", "[shop, mall]") + "columns: {p: kafka.partition, o: kafka.offset, t: kafka.topic}\n"
    )
    assert list(spec.columns) == ["p", "o", "t"]


def test_two_exports_of_one_name_into_one_root_are_a_fault(tmp_path: Path) -> None:
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text(JSON, encoding="utf-8")
    first, second = check_jobs(paths, {})
    assert (first.faults, len(second.faults)) == ((), 1)
