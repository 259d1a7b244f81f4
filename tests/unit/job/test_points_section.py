"""Metrics in a job file: the options of their decoders, and which kinds of table take them."""

from __future__ import annotations

from typing import Self, cast

import pytest

from penstock.job.reader import SpecReader
from penstock.job.spec import POINT_FORMATS, BlacklistEntry, JobSpec, PointsSpec, TableSpec
from penstock.tables.kind import Kind
from penstock.tables.registry import KINDS
from tests.unit.job.conftest import BASE, Faults, Load
from tests.unit.job.test_export_job import JSON as EXPORT


class GaugeSpec(TableSpec):
    kind = "gauge"
    decoders = POINT_FORMATS
    unused = ("schema", "columns", "sql")

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        return job


class GaugeKind:
    name = GaugeSpec.kind
    spec = GaugeSpec


@pytest.fixture(autouse=True)
def gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "gauge", cast(Kind, GaugeKind()))


def job(decode: str, more: str = "") -> str:
    return f"""\
job: metrics
log: {{kafka: {{bootstrap: "kafka-1:9092", topics: [telegraf]}}}}
decode: {decode}
table: {{gauge: {{path: s3://lake/gauges}}}}
{more}"""


def test_metrics_are_read_with_their_defaults(load: Load) -> None:
    decode = load(job("telegraf")).decode
    assert (decode.format, decode.points) == ("telegraf", PointsSpec())
    assert load(job("influx")).decode.points.timestamps is None


def test_every_option_is_read(load: Load) -> None:
    text = job(
        "{format: influx, payload: gzip, timestamps: ms, names: raw, "
        "blacklist: [{name: '^secret'}, {tags: {'^env$': '^test', rack: 7}}, {name: a, tags: {b: ''}}]}"
    )
    assert load(text).decode.points == PointsSpec(
        timestamps="ms",
        names="raw",
        blacklist=(
            BlacklistEntry("^secret"),
            BlacklistEntry("", {"^env$": "^test", "rack": "7"}),
            BlacklistEntry("a", {"b": ""}),
        ),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (job("telegraff"), (3, "decode", "did you mean telegraf?")),
        (job("{format: telegraf, timestamp: s}"), (3, "decode.timestamp", "unknown key; did you mean timestamps?")),
        (
            job("{format: telegraf, timestamps: min}"),
            (3, "decode.timestamps", "'min' is not one of auto, s, ms, us, ns"),
        ),
        (job("{format: influx, names: graphite}"), (3, "decode.names", "is not one of opentsdb, raw")),
        (
            job("{format: influx, names: {case: lower}}"),
            (3, "decode.names", "found a mapping"),
        ),
        (job("{format: influx, non_numeric: parse}"), (3, "decode.non_numeric", "unknown key")),
        (job("{format: influx, non_finite: skip}"), (3, "decode.non_finite", "unknown key")),
        (job("{format: influx, blacklist: x}"), (3, "decode.blacklist", "expected a list, found a string")),
        (job("{format: influx, blacklist: [x]}"), (3, "decode.blacklist[0]", "expected a mapping, found a string")),
        (job("{format: influx, blacklist: [{}]}"), (3, "decode.blacklist[0]", "matches every series")),
        (job("{format: influx, blacklist: [{nme: x}]}"), (3, "decode.blacklist[0].nme", "did you mean name?")),
        (
            job("{format: influx, blacklist: [{name: '('}]}"),
            (3, "decode.blacklist[0].name", "is not a regular expression"),
        ),
        (
            job("{format: influx, blacklist: [{tags: {'[': a}}]}"),
            (3, "decode.blacklist[0].tags.[", "'[' is not a regular"),
        ),
        (
            job("{format: influx, blacklist: [{tags: {a: '*'}}]}"),
            (3, "decode.blacklist[0].tags.a", "'*' is not a regular"),
        ),
        (job("{format: influx, header: x.Y}"), (3, "decode.header", "has no meaning with decode influx; remove it")),
        (job("json"), (3, "decode", "table.gauge does not support json; use telegraf, influx")),
        (job("{format: raw}"), (3, "decode.format", "table.gauge does not support raw")),
        (job("telegraf", "schema: {a: int}\n"), (5, "schema", "has no meaning for table.gauge; remove it")),
        (job("telegraf", "columns: {a: kafka.offset}\n"), (5, "columns", "has no meaning for table.gauge")),
        (job("telegraf", "sql: {where: a}\n"), (5, "sql", "has no meaning for table.gauge")),
    ],
)
def test_faults_are_reported(faults: Faults, text: str, fault: tuple[int, str, str]) -> None:
    line, key, message = fault
    result = faults(text)
    assert [(at, where) for at, where, what in result if message in what] == [(line, key)]
    assert len(result) == 1


@pytest.mark.parametrize("format_stated", ["telegraf", "influx"])
def test_tables_of_rows_refuse_metrics(faults: Faults, format_stated: str) -> None:
    text = BASE.replace("decode: json", f"decode: {format_stated}")
    message = f"table.delta does not support {format_stated}; use json, raw, protobuf"
    assert faults(text) == [(4, "decode", message)]
    export = EXPORT.replace("decode: json", f"decode: {format_stated}")
    message = f"table.export does not support {format_stated}; use json, raw, protobuf, garmadon"
    assert message in [what for _, where, what in faults(export) if where == "decode"]


@pytest.mark.parametrize("key", ["timestamps: s", "names: raw", "blacklist: []"])
def test_options_of_metrics_have_no_meaning_elsewhere(faults: Faults, key: str) -> None:
    text = BASE.replace("decode: json", f"decode: {{format: json, {key}}}")
    message = "has no meaning with decode json; remove it"
    assert faults(text) == [(4, f"decode.{key.split(':', maxsplit=1)[0]}", message)]


def test_a_secret_pattern_is_not_printed(faults: Faults) -> None:
    [(_, _, message)] = faults(job('{format: influx, blacklist: [{name: "${env:PW}("}]}'))
    assert message == "'******' is not a regular expression; missing ), unterminated subpattern at position 7"
