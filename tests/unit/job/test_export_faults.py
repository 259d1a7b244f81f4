from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.job.conftest import BASE, Faults, Load
from tests.unit.job.test_export_job import GARMADON_JOB, JSON

pytestmark = pytest.mark.usefixtures("descriptors")


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        # Folders that the jobs of a root share.
        ("job: shop", "job: ..", 1, "job", "letter or a digit"),
        # The route.
        ("route: {by: field(meta.type)}\n", "", 1, "route", "required key is missing"),
        ("{by: field(meta.type)}", "{}", 5, "route.by", "required key is missing"),
        ("field(meta.type)", "fields(x)", 5, "route.by", "invalid route"),
        ("field(meta.type)", "kye", 5, "route.by", "did you mean key?"),
        ("field(meta.type)", "field()", 5, "route.by", "is empty"),
        ("field(meta.type)", "field(kafka.key)", 5, "route.by", "path of a decoded field"),
        ("field(meta.type)", "field(upper(x))", 5, "route.by", "path of a decoded field"),
        ("field(meta.type)", "envelope", 5, "route.by", "needs decode garmadon"),
        ("field(meta.type)", "key, unknown: dorp", 5, "route.unknown", "did you mean drop?"),
        ("field(meta.type)", "key, unknown: table", 5, "route.unknown", "quarantine, drop"),
        # The types and their names.
        ("click: {schema: infer}", "click: {schema: inferr}", 9, "types.click.schema", "did you mean infer?"),
        ("click: {schema: infer}", "click: {}", 9, "types.click.schema", "schema: infer"),
        (
            "click: {schema: infer}",
            "click: {schema: {meta: {at: strng}}}",
            9,
            "types.click.schema.meta.at",
            "did you mean string?",
        ),
        ("click: {schema: infer}", "click: {schema: infer, valuess: [a]}", 9, "types.click.valuess", "mean values?"),
        ("click: {schema: infer}", "click: infer", 9, "types.click", "expected a mapping"),
        ("click: {schema: infer}", "Order: {schema: infer, values: [o]}", 9, "types.Order", "the same name as order"),
        ("click: {schema: infer}", "a/b: {schema: infer}", 9, "types.a/b", "name of a folder"),
        ("click: {schema: infer}", "a..b: {schema: infer}", 9, "types.a..b", "name of a folder"),
        ("click: {schema: infer}", "_penstock: {schema: infer}", 9, "types._penstock", "name of a folder"),
        ("click: {schema: infer}", ".hidden: {schema: infer}", 9, "types..hidden", "name of a folder"),
        ("click: {schema: infer}", f"{'x' * 101}: {{schema: infer}}", 9, f"types.{'x' * 101}", "name of a folder"),
        ("click: {schema: infer}", "click: {schema: infer, values: [a, a]}", 9, "types.click.values[1]", "twice"),
        ("click: {schema: infer}", "click: {schema: infer, values: [order]}", 9, "types.click.values[0]", "type order"),
        ("click: {schema: infer}", "click: {schema: infer, values: [1.10]}", 9, "types.click.values[0]", "in quotes"),
        (
            "click: {schema: infer}",
            "click: {schema: infer, rotation: {every: 0s}}",
            9,
            "types.click.rotation.every",
            "more than 0",
        ),
        # The event time.
        ("event_time: meta.at\n", "", 1, "event_time", "required key is missing"),
        ("meta.at", "meta.att", 6, "event_time", "in type order: the schema has no field meta.att"),
        ("meta.at", "price", 6, "event_time", "timestamp_millis(price)"),
        ("meta.at", "timestamp_millis(meta.at)", 6, "event_time", "whole numbers"),
        ("meta.at", "day(price)", 6, "event_time", "a time, a date or text"),
        ("meta.at", "meta", 6, "event_time", "not a time"),
        ("meta.at", "kafka.topic", 6, "event_time", "not the time of a record"),
        ("meta.at", "\"'2020-01-01'\"", 6, "event_time", "not the time of a record"),
        ("meta.at", "dya(meta.at)", 6, "event_time", "did you mean day?"),
        (
            "click: {schema: infer}",
            "click: {schema: {a: int}, event_time: a}",
            9,
            "types.click.event_time",
            "in type click",
        ),
        # Where it is stored.
        ("s3://lake/shop", "ftp://lake/shop", 11, "table.export.path", "unknown storage"),
        ("path: s3://lake/shop", "format: parquet", 11, "table.export.path", "required key is missing"),
        ("s3://lake/shop", "s3://l/s, quarantine: s3://l/bad", 11, "table.export.quarantine", "unknown key"),
        ("s3://lake/shop", "s3://l/s, format: orc", 11, "table.export.format", "parquet, delta"),
        ("s3://lake/shop", "s3://l/s, cluster: a.b", 11, "table.export.cluster", "file name"),
        ("s3://lake/shop", f"s3://l/s, cluster: {'c' * 65}", 11, "table.export.cluster", "64"),
        ("s3://lake/shop", "s3://l/s, compression: lz4", 11, "table.export.compression", "snappy, zstd, gzip, none"),
        ("s3://lake/shop", "s3://l/s, partition_by: [a]", 11, "table.export.partition_by", "unknown key"),
    ],
)
def test_a_wrong_value_of_an_export_is_reported_at_its_location(
    faults: Faults, old: str, new: str, line: int, key: str, message: str
) -> None:
    assert old in JSON
    [(found_line, found_key, text)] = faults(JSON.replace(old, new))
    assert (found_line, found_key) == (line, key)
    assert message in text


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("schema: {a: int}", "schema", "has no meaning for table.export"),
        ("sql: {where: price > 1}", "sql", "has no meaning for table.export"),
        ("on: {recreated: restart}", "on.recreated", "has no meaning for table.export"),
        ("days: {not_before: 2000-02-30}", "days.not_before", "not a date"),
        ("days: {not_before: 2000}", "days.not_before", "expected a date"),
        ("days: {late: 0d}", "days.late", "more than 0"),
        ("days: {early: -1d}", "days.early", "not a duration"),
        ("alerts: {failed_writes_percent: 0}", "alerts.failed_writes_percent", "more than 0"),
        ("alerts: {failed_writes_percent: 101}", "alerts.failed_writes_percent", "at most 100"),
        ("alerts: {failed_writes_percent: 5%}", "alerts.failed_writes_percent", "expected a number"),
        ("alerts: {lag_records: 0}", "alerts.lag_records", "more than 0"),
        ("alerts: {lag: 5}", "alerts.lag", "unknown key"),
        ("columns: {price: kafka.key}", "columns.price", "in type order"),
        ("columns: {x: prise}", "columns.x", "did you mean price?"),
        ("columns: {x: day(meta)}", "columns.x", "day takes a time, a date or text, not {"),
        ("columns: {Day: day(meta.at)}", "columns.Day", "folders day="),
        ("columns: {kafka_offset: price}", "columns.kafka_offset", "columns: {another_name: kafka.offset}"),
    ],
)
def test_a_wrong_section_of_an_export_is_reported(faults: Faults, section: str, key: str, message: str) -> None:
    [(line, found_key, text)] = faults(f"{JSON}{section}\n")
    assert (line, found_key) == (12, key)
    assert message in text


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ("garmadon.desc", "missing.desc", 4, "decode.descriptors", "No such file"),
        ("garmadon.desc", ".", 4, "decode.descriptors", "cannot be read"),
        ("garmadon.desc", "job.yaml", 4, "decode.descriptors", "not a descriptor set"),
        ("garmadon.desc", "empty.desc", 4, "decode.descriptors", "protoc"),
        (", descriptors: garmadon.desc", "", 4, "decode.descriptors", "required key is missing"),
        (", header: g.Header", "", 4, "decode.header", "required key is missing"),
        ("g.Header", "g.Haeder", 4, "decode.header", "did you mean g.Header?"),
        ("g.Header", "g.Header, message: g.FsEvent", 4, "decode.message", "no meaning"),
        ("g.Header", "g.Header, defaults: zero", 4, "decode.defaults", "null, value"),
        ("g.Header", "g Header", 4, "decode.header", "invalid message name"),
        ("by: envelope", "by: field(a)", 5, "route.by", "route by envelope"),
        ("g.FsEvent", "g.FsEvnt", 8, "types.fs.message", "did you mean g.FsEvent?"),
        ("g.FsEvent", "g.TaskEvent", 8, "types.fs.message", "spark.proto, flink.proto"),
        ("g.FsEvent", "g.Clash", 8, "types.fs.message", "application_id"),
        ("g.FsEvent", "g.Sourced", 8, "types.fs.message", "kafka_offset"),
        ("g.FsEvent", "g.Dated", 8, "types.fs.message", "folders day="),
        ("g.FsEvent", "g.FsEvent, schema: infer", 8, "types.fs.schema", "the message is the schema"),
        (", message: g.FsEvent", "", 8, "types.fs.message", "required key is missing"),
        ("values: [1], ", "", 8, "types.fs", "invalid type marker"),
        ("[1]", "['01']", 8, "types.fs.values[0]", "invalid type marker"),
        ("[1]", "[2147483648]", 8, "types.fs.values[0]", "invalid type marker"),
        ("[1]", "['1000']", 9, "types.gc.values[0]", "means type fs already"),
        ("timestamp_millis(timestamp)", "timestamp", 6, "event_time", "in type fs: timestamp is not a time"),
    ],
)
def test_a_wrong_value_of_a_garmadon_export_is_reported_at_its_location(
    faults: Faults, tmp_path: Path, old: str, new: str, line: int, key: str, message: str
) -> None:
    (tmp_path / "empty.desc").write_bytes(b"")
    assert old in GARMADON_JOB
    [(found_line, found_key, text)] = faults(GARMADON_JOB.replace(old, new))
    assert (found_line, found_key) == (line, key)
    assert message in text


@pytest.mark.parametrize("key", ["route: {by: key}", "types: {a: {}}", "event_time: x", "days: {}"])
def test_keys_of_an_export_are_faults_in_other_kinds(faults: Faults, key: str) -> None:
    [(line, found_key, text)] = faults(f"{BASE}{key}\n")
    assert (line, found_key) == (8, key.partition(":")[0])
    assert "without table.export" in text


@pytest.mark.parametrize(
    ("decode", "key"),
    [
        ("{format: json, descriptors: garmadon.desc}", "decode.descriptors"),
        ("{format: json, uri_names: {a: b}}", "decode.uri_names"),
        ("{format: json, message: a.B}", "decode.message"),
    ],
)
def test_keys_of_other_decoders_are_faults(faults: Faults, decode: str, key: str) -> None:
    [(line, found_key, text)] = faults(BASE.replace("decode: json", f"decode: {decode}"))
    assert (line, found_key) == (4, key)
    assert "no meaning with decode json" in text


def test_a_single_table_of_messages_needs_one_message_and_no_schema(faults: Faults) -> None:
    result = faults(BASE.replace("decode: json", "decode: {format: protobuf, descriptors: garmadon.desc}"))
    assert [(line, key) for line, key, _ in result] == [(4, "decode.message"), (5, "schema")]


def test_garmadon_needs_an_export(faults: Faults) -> None:
    text = BASE.replace("decode: json", "decode: {format: garmadon, descriptors: garmadon.desc, header: g.Header}")
    [(line, key, message)] = faults(text.replace(BASE.splitlines()[4] + "\n", ""))
    assert (line, key) == (4, "decode.format")
    assert "table.delta does not support garmadon" in message


def test_a_table_is_of_one_kind(faults: Faults) -> None:
    [(_, key, _)] = faults(JSON + "  delta: {path: s3://lake/x}\n")
    assert key == "table.export"
    assert [key for _, key, _ in faults(JSON.replace("  export: {path: s3://lake/shop}\n", "  {}\n"))] == [
        "table.export"
    ]


def test_a_raw_export_has_no_fields_to_read(faults: Faults) -> None:
    result = faults(JSON.replace("decode: json", "decode: raw").replace("schema: infer", ""))
    assert [(line, key) for line, key, _ in result] == [
        (5, "route.by"),
        (6, "event_time"),
        (8, "types.order.schema"),
    ]


def test_the_first_type_without_a_time_is_named(faults: Faults) -> None:
    text = JSON.replace("event_time: meta.at\n", "")
    [(_, key, message)] = faults(text.replace("{schema: infer}", "{schema: infer, event_time: kafka.timestamp}"))
    assert key == "event_time"
    assert message.startswith("in type order: required key is missing")


def test_an_export_without_types_names_what_is_missing(faults: Faults) -> None:
    assert [
        (line, key)
        for line, key, _ in faults(JSON[: JSON.index("types:")] + "types: {}\n" + JSON[JSON.index("table:") :])
    ] == [(7, "types")]


def test_a_fault_shared_by_many_types_is_reported_once(faults: Faults) -> None:
    types = "".join(f"  t{number}: {{schema: {{a: int}}}}\n" for number in range(7))
    text = JSON[: JSON.index("  order:")] + types + JSON[JSON.index("table:") :]
    [(line, key, message)] = faults(text)
    assert (line, key) == (6, "event_time")
    assert message.startswith("in type t0: the schema has no field meta")


def test_all_faults_of_an_export_are_reported_at_once(faults: Faults) -> None:
    result = faults(
        """\
job: garmadon
log:
  kafka: {bootstrap: "kafka-1:9092", topics: [garmadon, garmadon]}
decode: {format: garmadon, descriptors: garmadon.desc, header: g.Header}
route: {by: envelop, unknown: drop}
types:
  fs: {values: [1], message: g.FsEvnt, event_time: timestamp_millis(timestamp)}
  gc: {values: [1], message: g.GcEvent, rotation: {}}
days: {late: 30}
columns: {x: caus}
sql: {where: a}
table:
  export: {path: ftp://x, cluster: a b}
alerts: {lag_records: none}
"""
    )
    assert [(line, key) for line, key, _ in result] == [
        (1, "event_time"),
        (3, "log.kafka.topics[1]"),
        (5, "route.by"),
        (7, "types.fs.message"),
        (8, "types.gc.values[0]"),
        (9, "days.late"),
        (10, "columns.x"),
        (11, "sql"),
        (13, "table.export.path"),
        (13, "table.export.cluster"),
        (14, "alerts.lag_records"),
    ]


def test_alerts_of_exports_are_faults_in_other_kinds(faults: Faults) -> None:
    [(line, key, text)] = faults(f"{BASE}alerts: {{lag_records: 5, failed_writes_percent: 5}}\n")
    assert (line, key) == (8, "alerts.failed_writes_percent")
    assert "no meaning for table.delta" in text


def test_secrets_in_an_export_are_never_printed(faults: Faults, load: Load) -> None:
    text = GARMADON_JOB.replace("g.FsEvent", '"${env:PW}"').replace("timestamp_millis(timestamp)", '"${env:PW}"')
    text = text.replace("garmadon, cluster", "").replace("/lake/garmadon", '/lake/garmadon, cluster: "${env:PW}/"')
    assert "hunter2" not in str(faults(text))
    assert "hunter2" not in repr(load(JSON.replace("field(meta.type)", '"field(${env:PW})"')))
