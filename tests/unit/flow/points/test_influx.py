"""InfluxDB's line protocol: what each line becomes."""

from __future__ import annotations

import gzip

import pytest

from penstock.flow.points.metrics import PointCounts
from penstock.job.spec import PointsSpec
from tests.unit.flow.kafka_batches import WRITTEN_AT_MICROS
from tests.unit.flow.points.decoded import decode, error_of

RAW = PointsSpec(names="raw")


def test_every_field_is_a_point_of_its_own_series() -> None:
    line = b"CPU,host=host-1,dc=EU usage_user=1.5,cores=8i 1700000400123456789"
    tags = '{"dc":"EU","host":"host-1"}'
    assert decode("influx", [line]).points == [
        (0, "cpu.cores", tags, 1_700_000_400_123, 8.0),
        (0, "cpu.usage_user", tags, 1_700_000_400_123, 1.5),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("+2", 2.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1.25E-2", -0.0125),
        ("007", 7.0),
        ("12i", 12.0),
        ("-12i", -12.0),
        ("12u", 12.0),
        ("9223372036854775807i", 9223372036854775808.0),
        ("-9223372036854775808i", -9223372036854775808.0),
        ("18446744073709551615u", 18446744073709551616.0),
    ],
)
def test_numbers_are_points(text: str, value: float) -> None:
    outcome = decode("influx", [f"m f={text},g=1 1".encode()])
    assert outcome.values == {"m.f": value, "m.g": 1.0}


@pytest.mark.parametrize(
    "text", ["t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE", '"x"', '"1"', '""']
)
def test_booleans_and_texts_are_counted(text: str) -> None:
    outcome = decode("influx", [f"m f={text},g=1 1".encode()])
    assert (outcome.values, outcome.counts) == ({"m.g": 1.0}, PointCounts(points=1, non_numeric=1))


@pytest.mark.parametrize(
    ("line", "metric", "tags"),
    [
        (r"a\ b,k=v f=1 1", "a b.f", '{"k":"v"}'),
        (r"a\,b f=1 1", "a,b.f", "{}"),
        (r"a=b f=1 1", "a=b.f", "{}"),
        (r"a\=b f=1 1", r"a\=b.f", "{}"),
        (r"m,a\ b=c\ d,e\=f=g\,h f=1 1", "m.f", '{"a b":"c d","e=f":"g,h"}'),
        (r"m,path=C:\dir f=1 1", "m.f", r'{"path":"C:\\dir"}'),
        (r"m a\ b\,c\=d=1 1", "m.a b,c=d", "{}"),
        ('m,k="v" f=1 1', "m.f", r'{"k":"\"v\""}'),
        ("mü,k=ü f=1 1", "mü.f", '{"k":"ü"}'),
    ],
)
def test_escapes_are_read(line: str, metric: str, tags: str) -> None:
    assert decode("influx", [line.encode()], RAW).points == [(0, metric, tags, 0, 1.0)]


def test_texts_may_hold_anything() -> None:
    line = b'm a="x, y=1 2",b="q\\"q",c="back\\\\",d="line\nm2 z=9 9",e=5 1000000'
    outcome = decode("influx", [line])
    assert outcome.points == [(0, "m.e", "{}", 1, 5.0)]
    assert outcome.counts == PointCounts(points=1, non_numeric=4)


def test_a_record_may_hold_many_lines_blanks_and_comments() -> None:
    text = b"# a comment\nm f=1 1000000\n\n  m f=2 2000000  \r\n#m f=3 1\n \nm f=4 4000000"
    assert [(row, at_ms, value) for row, _, _, at_ms, value in decode("influx", [b"m f=0 0", text]).points] == [
        (0, 0, 0.0),
        (1, 1, 1.0),
        (1, 2, 2.0),
        (1, 4, 4.0),
    ]


def test_a_line_without_a_time_has_that_of_its_record() -> None:
    written_at_ms = WRITTEN_AT_MICROS // 1000
    outcome = decode("influx", [b"m f=1", b"m f=2\nm f=3 7000000\nm f=4 \n", b"m f=5 0"])
    assert [(row, at_ms, value) for row, _, _, at_ms, value in outcome.points] == [
        (0, written_at_ms, 1.0),
        (1, 7, 3.0),
        (1, written_at_ms, 2.0),
        (1, written_at_ms, 4.0),
        (2, 0, 5.0),
    ]


@pytest.mark.parametrize(
    ("time", "unit", "at_ms"),
    [
        ("1700000400123456789", "ns", 1_700_000_400_123),
        ("1700000400123456", "us", 1_700_000_400_123),
        ("1700000400123", "ms", 1_700_000_400_123),
        ("1700000400", "s", 1_700_000_400_000),
        ("1700000400", "auto", 1_700_000_400_000),
        ("1700000400", None, 1700),
        ("0", None, 0),
        ("999999", None, 0),
    ],
)
def test_times_have_the_unit_that_the_job_states(time: str, unit: str | None, at_ms: int) -> None:
    spec = PointsSpec(timestamps=unit)  # type: ignore[arg-type]
    assert decode("influx", [f"m f=1 {time}".encode()], spec).points[0][3] == at_ms


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", "value is empty"),
        (b"m", "the fields are missing"),
        (b"m ", 'fields: expected key=value, found ""'),
        (b",a=b f=1 1", "the measurement is missing"),
        (b"m, f=1 1", 'tags: expected key=value, found " f=1 1"'),
        (b"m,a f=1 1", 'tags: expected key=value, found "a f=1 1"'),
        (b"m,a= f=1 1", "tags: expected key=value"),
        (b"m,=b f=1 1", "tags: expected key=value"),
        (b"m,a=b=c f=1 1", "the fields are missing"),
        (b"m,a=1,a=2 f=1 1", "tags.a: given twice"),
        (b"m f 1", "fields: expected key=value"),
        (b"m f= 1", "fields.f: the value is missing"),
        (b"m =1 1", "fields: expected key=value"),
        (b"m f=1, 1", "fields: expected key=value"),
        (b'm f="x 1', "fields.f: a string without its closing quote"),
        (b'm f="x"y 1', "expected the end of the line"),
        (b"m f=1,f=2 1", "fields.f: given twice"),
        (b"m f=1 1 1", "expected the end of the line"),
        (b"m f=1 x", "expected the end of the line"),
        (b"m f=1 1.5", "expected the end of the line"),
        (b"m f=1 -1", "timestamp: -1 is before 1970"),
        (b"m f=1 999999999999999999999", "timestamp: 999999999999999999999 is not an instant from 1970 to 9999"),
        (b"m f=NaN 1", 'fields.f: "NaN" is not a value of line protocol'),
        (b"m f=inf 1", 'fields.f: "inf" is not a value of line protocol'),
        (b"m f=1.5i 1", 'fields.f: "1.5i" is not a value of line protocol'),
        (b"m f=tRUE 1", 'fields.f: "tRUE" is not a value of line protocol'),
        (b"m f=9223372036854775808i 1", "fields.f: 9223372036854775808i is beyond 64 bits"),
        (b"m f=-1u 1", "fields.f: -1u is beyond 64 bits"),
        (b"m f=18446744073709551616u 1", "fields.f: 18446744073709551616u is beyond 64 bits"),
        (b"m f=1 1\nm f=x 1\nm f=2 2", 'line 2.fields.f: "x" is not a value of line protocol'),
        (b"m f=1 1\nm a=1,A=2 1", 'line 2.fields: "a" and "A" both become "a"'),
        (b"m,a\xff=b f=1 1", "value is not UTF-8 at byte 3"),
        ("ü f=1 1".encode(), 'measurement: "ü" has no character that a metric name may have'),
        (b"m,a*=1,a=2 f=1 1", 'tags: "a*" and "a" both become "a"'),
        (b'{"name":"m","fields":{"f":1},"timestamp":1}', "tags: expected key=value"),
    ],
)
def test_bad_records_have_a_reason(line: bytes, error: str) -> None:
    assert error_of("influx", line).startswith(error)


def test_a_number_beyond_a_double_is_not_finite() -> None:
    assert decode("influx", [b"m f=1e999,g=1 1"]).counts == PointCounts(points=1, non_finite=1)


def test_records_without_points_are_filtered() -> None:
    outcome = decode("influx", [None, b"\n", b"# nothing", b'm f="x" 1', b"m f=1 1"])
    assert (len(outcome.points), outcome.bad, outcome.filtered) == (1, {}, 4)


def test_payloads_are_unpacked() -> None:
    outcome = decode("influx", [gzip.compress(b"m f=1 1\nm f=2 2"), b"m f=1 1"], payload="gzip")
    assert ([value for *_, value in outcome.points], list(outcome.bad)) == ([1.0, 2.0], [1])


def test_a_record_with_too_many_tags_is_bad() -> None:
    tags = "".join(f",t{number}=x" for number in range(65))
    assert error_of("influx", f"m{tags} f=1 1".encode()) == "tags: 65 tags: a series has at most 64"
