"""Telegraf's JSON: what each record becomes; among them every case that was tried on opentsdb-rollup-rust."""

from __future__ import annotations

import gzip
import json

import pytest

from penstock.flow.points.metrics import PointCounts
from penstock.job.spec import PointsSpec
from tests.unit.flow.points.decoded import decode, error_of

AT = 1_700_000_400
RAW = PointsSpec(names="raw")


def record(fields: str, *, name: str = '"cpu"', tags: str = '{"host":"h"}', timestamp: str = f"{AT}") -> bytes:
    return f'{{"fields":{fields},"name":{name},"tags":{tags},"timestamp":{timestamp}}}'.encode()


def test_every_field_is_a_point_of_its_own_series() -> None:
    text = record('{"usage.User":1.5,"cores":8}', name='"CPU Load"', tags='{"Host":"host 00","dc":"A,B=c"}')
    tags = '{"Host":"host00","dc":"ABc"}'
    assert decode("telegraf", [text]).points == [
        (0, "cpuload.cores", tags, 1_700_000_400_000, 8.0),
        (0, "cpuload.usage.user", tags, 1_700_000_400_000, 1.5),
    ]
    raw = '{"Host":"host 00","dc":"A,B=c"}'
    assert decode("telegraf", [text], RAW).points == [
        (0, "CPU Load.cores", raw, 1_700_000_400_000, 8.0),
        (0, "CPU Load.usage.User", raw, 1_700_000_400_000, 1.5),
    ]


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ('{"f":1}', {"cpu.f": 1.0}),
        ('{"f":1.5}', {"cpu.f": 1.5}),
        ('{"f":-2.25}', {"cpu.f": -2.25}),
        ('{"f":-0}', {"cpu.f": 0.0}),
        ('{"f":1e3,"g":1E+3,"h":25e-1}', {"cpu.f": 1000.0, "cpu.g": 1000.0, "cpu.h": 2.5}),
        ('{"f":9007199254740993}', {"cpu.f": 9007199254740992.0}),
        ('{"f":123456789012345678901234567890}', {"cpu.f": 123456789012345678901234567890.0}),
        ('{"f":1,"g":true}', {"cpu.f": 1.0}),
        ('{"f":1,"g":null}', {"cpu.f": 1.0}),
        ('{"f":1,"g":{"h":2}}', {"cpu.f": 1.0}),
        ('{"f":1,"g":[2]}', {"cpu.f": 1.0}),
        ('{"f":1,"g":"12.5"}', {"cpu.f": 1.0}),
        ('{"f_ü":1}', {"cpu.f_": 1.0}),
        ('{"\\"q\\"":1}', {"cpu.q": 1.0}),
        ('{"f\\u00dc":1}', {"cpu.f": 1.0}),
        ('{ "f" : 1 ,\t"g":2 }', {"cpu.f": 1.0, "cpu.g": 2.0}),
        ('{"a,b":1,"c:d":2}', {"cpu.ab": 1.0, "cpu.cd": 2.0}),
        ('{"timestamp":7}', {"cpu.timestamp": 7.0}),
    ],
)
def test_numbers_are_points_and_other_values_are_counted(fields: str, values: dict[str, float]) -> None:
    outcome = decode("telegraf", [record(fields)])
    assert outcome.values == values
    assert outcome.counts == PointCounts(points=len(values), non_numeric=len(json.loads(fields)) - len(values))


@pytest.mark.parametrize("text", ["NaN", "inf", "-Infinity", "1e400", "12.5", "n/a", ""])
def test_texts_are_counted_in_any_form(text: str) -> None:
    outcome = decode("telegraf", [record(f'{{"f":{json.dumps(text)},"g":1}}')])
    assert (outcome.values, outcome.counts) == ({"cpu.g": 1.0}, PointCounts(points=1, non_numeric=1))


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" * 400])
def test_numbers_beyond_a_double_are_not_finite_and_counted(number: str) -> None:
    assert decode("telegraf", [record(f'{{"f":{number}}}')]).counts == PointCounts(non_finite=1)


@pytest.mark.parametrize(
    ("tags", "stored"),
    [
        ("{}", "{}"),
        ('{"b":"2","a":"1"}', '{"a":"1","b":"2"}'),
        ('{"host":7,"port":1.50,"up":true,"x":null}', '{"host":"7","port":"1.50","up":"true"}'),
        ('{"ü":"1","b":"ü","c":"ok"}', '{"c":"ok"}'),
        ('{"a":"","b":"x"}', '{"b":"x"}'),
        ('{"Host":"A b","host":"c"}', '{"Host":"Ab","host":"c"}'),
        ('{"p":"a\\/b\\\\c\\"d"}', '{"p":"a/bcd"}'),
        ('{"fields":"{","timestamp":"}"}', "{}"),
        ('{"a":"\\"fields\\":{"}', '{"a":"fields"}'),
    ],
)
def test_tags_are_stored_as_sorted_json(tags: str, stored: str) -> None:
    [(_, _, actual, _, _)] = decode("telegraf", [record('{"f":1}', tags=tags)]).points
    assert actual == stored


def test_raw_tags_are_stored_as_they_are() -> None:
    tags = '{"b":"ü \\n\\"","a b":"x=,y"}'
    [(_, metric, stored, _, _)] = decode("telegraf", [record('{"F":1}', name='"Ü x"', tags=tags)], RAW).points
    assert metric == "Ü x.F"
    assert stored == '{"a b":"x=,y","b":"ü \\n\\""}'


def test_a_metric_without_tags_has_none() -> None:
    [point] = decode("telegraf", [b'{"name":"m","fields":{"f":1},"timestamp":1}']).points
    assert point == (0, "m.f", "{}", 1000, 1.0)


@pytest.mark.parametrize(
    ("timestamp", "unit", "at_ms"),
    [
        ("0", None, 0),
        ("1700000400", None, 1_700_000_400_000),
        ("1700000400123", None, 1_700_000_400_123),
        ("1700000400123999", None, 1_700_000_400_123),
        ("1700000400123999999", None, 1_700_000_400_123),
        ("99999999999", None, 99_999_999_999_000),
        ("100000000000", None, 100_000_000_000),
        ("99999999999999", None, 99_999_999_999_999),
        ("100000000000000", None, 100_000_000_000),
        ("99999999999999999", None, 99_999_999_999_999),
        ("100000000000000000", None, 100_000_000_000),
        ("1700000400.5", None, 1_700_000_400_500),
        ("1700000400.9999", None, 1_700_000_400_999),
        ("1.7000004e9", None, 1_700_000_400_000),
        ("1700000400123.9", None, 1_700_000_400_123),
        ("-0", None, 0),
        ("5", "s", 5000),
        ("5", "ms", 5),
        ("5999", "us", 5),
        ("5999999", "ns", 5),
        ("253402300799", "s", 253_402_300_799_000),
    ],
)
def test_times_are_milliseconds_rounded_down(timestamp: str, unit: str | None, at_ms: int) -> None:
    spec = PointsSpec(timestamps=unit)  # type: ignore[arg-type]
    [(_, _, _, actual, _)] = decode("telegraf", [record('{"f":1}', timestamp=timestamp)], spec).points
    assert actual == at_ms


@pytest.mark.parametrize(
    ("timestamp", "unit", "error"),
    [
        ("-1", None, "timestamp: -1 is before 1970"),
        ("-1.5", None, "timestamp: -1.5 is before 1970"),
        ('"1700000400"', None, 'timestamp: expected number, found string "1700000400"'),
        ("null", None, "timestamp: expected number, found null"),
        ("true", None, "timestamp: expected number, found boolean true"),
        ("253402300800", "s", "timestamp: 253402300800 is not an instant from 1970 to 9999"),
        ("9223372036854775808", "s", "timestamp: 9223372036854775808 is not an instant from 1970 to 9999"),
        ("99999999999999999999", "ms", "timestamp: 99999999999999999999 is not an instant from 1970 to 9999"),
        ("1e999999999", None, "timestamp: 1e999999999 is not an instant from 1970 to 9999"),
        ("NaN", None, "not JSON: NaN is not a JSON number"),
    ],
)
def test_other_times_make_the_record_bad(timestamp: str, unit: str | None, error: str) -> None:
    spec = PointsSpec(timestamps=unit)  # type: ignore[arg-type]
    assert error_of("telegraf", record('{"f":1}', timestamp=timestamp), spec) == error


M = '{"name":"m","fields":{"f":%d},"timestamp":1}'


@pytest.mark.parametrize(
    "text",
    [
        f"[{M % 1},{M % 2}]",
        f'{{"metrics":[{M % 1},{M % 2}]}}',
        f"{M % 1}\n{M % 2}",
        f"{M % 1}\r\n\n{M % 2}\n",
        f"[{M % 1}]\n{M % 2}",
        f'{{"metrics":[{M % 1}]}}\n\n[{M % 2}]',
        json.dumps([json.loads(M % 1), json.loads(M % 2)], indent=2),
    ],
)
def test_a_record_may_hold_several_metrics(text: str) -> None:
    single = (M % 3).encode()
    points = decode("telegraf", [single, text.encode(), single]).points
    assert [(row, value) for row, _, _, _, value in points] == [(0, 3.0), (1, 1.0), (1, 2.0), (2, 3.0)]


def test_the_same_series_may_occur_twice_in_a_record() -> None:
    lines = b'{"name":"m","fields":{"f":1},"timestamp":1}\n{"name":"m","fields":{"f":2},"timestamp":1}'
    assert [value for *_, value in decode("telegraf", [lines]).points] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", "value is empty"),
        (b"\n", "not JSON at character 1: Expecting value"),
        (b"garbage", "not JSON at character 0: Expecting value"),
        (b"cpu,host=a f=1 1", "not JSON at character 0: Expecting value"),
        (b"7", "expected an object, found number"),
        (b"[7]", "[0]: expected an object, found number"),
        (b'{"metrics":{}}', "metrics: expected array, found object"),
        (b'{"metrics":[{"name":"m"}]}', "metrics[0].fields: is missing"),
        (b'{"metrics":[' + (M % 1).encode() + b',{"name":"m","fields":{"f":NaN},"timestamp":1}]}', "not JSON: NaN"),
        (b'{"fields":{"f":1},"timestamp":1}', "name: is missing"),
        (b'{"name":"m","timestamp":1}', "fields: is missing"),
        (b'{"name":"m","fields":{"f":1}}', "timestamp: is missing"),
        (b'{"name":7,"fields":{"f":1},"timestamp":1}', "name: expected string, found number 7"),
        (b'{"name":"m","fields":[1],"timestamp":1}', "fields: expected object, found array"),
        (b'{"name":"m","tags":"a=b","fields":{"f":1},"timestamp":1}', 'tags: expected object, found string "a=b"'),
        (b'{"name":"m","tags":{"a":[]},"fields":{"f":1},"timestamp":1}', "tags.a: expected string, found array"),
        (b'{"name":"m","tags":{"a":{}},"fields":{"f":1},"timestamp":1}', "tags.a: expected string, found object"),
        (b'{"name":"m","fields":{"f":1},"timestamp":1', "not JSON at character 42: Expecting"),
        (b'{"name":"m","fields":{"f":1},"timestamp":1}{}', "not JSON at character 43: Extra data"),
        (b'{"name":"m","fields":{"f":1},"timestamp":1}\n{"na', "line 2: not JSON at character"),
        (b'{"name":"m","fields":{"f":1},"timestamp":1}\n{"name":"m"}', "line 2.fields: is missing"),
        (b'{"name":"m\xff","fields":{"f":1},"timestamp":1}', "value is not UTF-8 at byte 10"),
        (b'{"name":"m","fields":{"f":01},"timestamp":1}', "not JSON at character"),
        (b'{"name":"m","fields":{"f":+1},"timestamp":1}', "not JSON at character"),
        (b'{"name":"m","fields":{"f":1.},"timestamp":1}', "not JSON at character"),
        (b'{"name":"m","fields":{"f":1,},"timestamp":1}', "not JSON at character"),
        (b'{"name":"m","fields":{"f":NaN},"timestamp":1}', "not JSON: NaN is not a JSON number"),
        (b'{"name":"m","fields":{"f":-Infinity},"timestamp":1}', "not JSON: -Infinity is not a JSON number"),
        (b'{"name":"m","fields":{"f":1},"timestamp":01}', "not JSON at character"),
        (b'{"name":"m","fields":{"f":1,"f":2},"timestamp":1}', "fields.f: given twice"),
        (b'{"name":"m","fields":{"f":1},"fields":{"f":1},"timestamp":1}', "fields: given twice"),
        (b'{"name":"m","name":"m","fields":{"f":1},"timestamp":1}', "name: given twice"),
        (b'{"name":"m","fields":{"f":1},"timestamp":1,"timestamp":1}', "timestamp: given twice"),
        (b'{"name":"m","tags":{"a":"1","a":"1"},"fields":{"f":1},"timestamp":1}', "tags.a: given twice"),
        (b'{"name":"","fields":{"f":1},"timestamp":1}', "name: is empty"),
        ('{"name":"ü","fields":{"f":1},"timestamp":1}'.encode(), 'name: "ü" has no character that a metric name may'),
        ('{"name":"m","fields":{"ü":1},"timestamp":1}'.encode(), 'fields: "ü" has no character that a metric name may'),
        (b'{"name":"m","fields":{"a b":1,"ab":2},"timestamp":1}', 'fields: "a b" and "ab" both become "ab"'),
        (b'{"name":"m","fields":{"A":1,"a":"x"},"timestamp":1}', 'fields: "A" and "a" both become "a"'),
        (
            b'{"name":"m","tags":{"a b":"1","ab":"1"},"fields":{"f":1},"timestamp":1}',
            'tags: "a b" and "ab" both become',
        ),
        (b"[" * 600, "nested deeper than 500"),
        (b'{"x":{"fields":{"x":0.5}},"timestamp":1}', "name: is missing"),
    ],
)
def test_bad_records_have_a_reason(value: bytes, error: str) -> None:
    assert error_of("telegraf", value).startswith(error)


def test_half_a_surrogate_pair_is_bad_unless_it_is_deleted_anyway() -> None:
    value = record('{"f":1}', tags='{"a":"x\\ud800"}')
    assert error_of("telegraf", value, RAW) == "tags: holds half of a surrogate pair"
    assert decode("telegraf", [value]).points[0][2] == '{"a":"x"}'


def test_unknown_keys_are_ignored_at_any_position() -> None:
    text = b'{"x":{"fields":{"x":1},"timestamp":5},"name":"m","fields":{"f":1},"timestamp":2,"y":[null,"}"]}'
    assert decode("telegraf", [text, b'{"z":1,' + (M % 4).encode()[1:]]).points == [
        (0, "m.f", "{}", 2000, 1.0),
        (1, "m.f", "{}", 1000, 4.0),
    ]


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ('{"x":{"fields":{"q":7}},"fields": {"x":0.5},"name":"m","timestamp":5}', ("m.x", 5000, 0.5)),
        ('{"x":{"timestamp":5},"fields":{"f":1},"name":"m","timestamp": 1000}', ("m.f", 1_000_000, 1.0)),
        ('{"tags":{"timestamp":5},"fields":{"f":1},"name":"m","timestamp": 1000}', ("m.f", 1_000_000, 1.0)),
        ('{"fields":{"timestamp":3},"name":"m","timestamp":9}', ("m.timestamp", 9000, 3.0)),
    ],
)
def test_keys_count_only_where_they_belong(text: str, point: tuple[str, int, float]) -> None:
    [(_, metric, _, at_ms, value)] = decode("telegraf", [text.encode()]).points
    assert (metric, at_ms, value) == point


def test_concatenated_metrics_are_not_an_array() -> None:
    metric = (M % 1).encode()
    outcome = decode(
        "telegraf", [b"[" + metric + b"]", metric + b"," + metric, b'{"metrics":[%s]}' % metric, b"," + metric]
    )
    assert list(outcome.bad) == [1, 3]
    assert [row for row, *_ in outcome.points] == [0, 2]


def test_records_without_points_are_filtered() -> None:
    values = [None, b"[]", b'{"metrics":[]}', record("{}"), record('{"f":"x"}'), record('{"f":1e999}')]
    outcome = decode("telegraf", values)
    assert (outcome.points, outcome.bad, outcome.filtered) == ([], {}, 6)
    assert outcome.counts == PointCounts(non_numeric=1, non_finite=1)


def test_tombstones_can_be_bad() -> None:
    outcome = decode("telegraf", [None, record('{"f":1}')], tombstone="quarantine")
    assert outcome.bad == {0: "value is null (a tombstone)"}
    assert [row for row, *_ in outcome.points] == [1]


def test_missing_fields_of_a_bad_record_are_not_counted() -> None:
    outcome = decode("telegraf", [record('{"a":"x","b":1e999,"c":1,"C":2}')])
    assert (list(outcome.bad), outcome.counts) == ([0], PointCounts())


def test_payloads_are_unpacked() -> None:
    values = [gzip.compress(record('{"f":1}')), b"plain", None, gzip.compress(b"[]"), gzip.compress(record('{"f":2}'))]
    outcome = decode("telegraf", values, payload="gzip")
    assert [(row, value) for row, *_, value in outcome.points] == [(0, 1.0), (4, 2.0)]
    assert (list(outcome.bad), outcome.filtered) == ([1], 2)


def test_a_record_with_too_many_tags_is_bad() -> None:
    many = json.dumps({f"t{number}": "x" for number in range(65)})
    assert error_of("telegraf", record('{"f":1}', tags=many)) == "tags: 65 tags: a series has at most 64"
    fitting = json.dumps({f"t{number}": "x" for number in range(64)})
    assert len(decode("telegraf", [record('{"f":1}', tags=fitting)]).points) == 1
    # {"a":"..."} has 8 bytes around the value.
    assert len(decode("telegraf", [record('{"f":1}', tags=json.dumps({"a": "x" * (65536 - 8)}))]).points) == 1
    large = record('{"f":1}', tags=json.dumps({"a": "x" * (65536 - 7)}))
    assert error_of("telegraf", large) == "tags: 65537 bytes: a series has at most 65536"


def test_fields_and_names_have_bounds() -> None:
    most = {f"f{number}": number for number in range(10_000)}
    assert len(decode("telegraf", [record(json.dumps(most, separators=(",", ":")))]).points) == 10_000
    more = json.dumps(most | {"g": 1}, separators=(",", ":"))
    assert error_of("telegraf", record(more)) == "fields: 10001 fields: a metric has at most 10000"
    assert len(decode("telegraf", [record('{"f":1}', name=f'"{"n" * 4096}"')]).points) == 1
    assert error_of("telegraf", record('{"f":1}', name=f'"{"n" * 4097}"')) == "name: a name of more than 4096 bytes"
