"""The fast path against the exact one over hostile records, and both against what the records were written from."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.flow.points.decoder import PointsDecoder
from penstock.flow.points.metrics import BoundedCache
from penstock.job.spec import BlacklistEntry, DecodeFormat, DecodeSpec, PointsSpec, Policies
from tests.support.tries import tries
from tests.unit.flow.kafka_batches import kafka_batch
from tests.unit.flow.points.decoded import decode

EXAMPLES = tries(30)
SPECS = st.sampled_from(
    [
        PointsSpec(),
        PointsSpec(names="raw"),
        PointsSpec(timestamps="ms"),
        PointsSpec(blacklist=(BlacklistEntry("a$"), BlacklistEntry("", {"^a": "1"}))),
    ]
)
TEXTS = ["a", "A", "b", "a b", "ü", "", "fields", "timestamp", "tags", "name", "metrics", "1", "{", "}", ",", ":", "\0"]
TEXTS += [
    '"',
    "\\",
    "=",
    " ",
    "#",
    "\n",
    '"fields":{',
    '"timestamp":',
    '"fields":{"a":1}',
    "😀",
    "x" * 30,
    "NaN",
    "1.5",
    "\r",
    "a\t",
]
NUMBERS = [
    "0",
    "-0",
    "1",
    "-7",
    "1.5",
    "1e3",
    "1E-3",
    "01",
    "1.",
    ".5",
    "+1",
    "1e999",
    "NaN",
    "Infinity",
    "-",
    "1" * 25,
]
NUMBERS += [
    "1i",
    "1u",
    "-1i",
    "-1u",
    "9223372036854775808i",
    "true",
    "t",
    "null",
    "[]",
    "{}",
    '"x"',
    '"1"',
    "0x1",
    "1_0",
]
TIMES = [
    "0",
    "1",
    "1700000400",
    "1700000400123",
    "1700000400123456789",
    "9223372036854775808",
    "-1",
    "1.5",
    "1e9",
    "01",
]
TIMES += ["99999999999", "100000000000", '"1"', "null", "", "1 ", "253402300800000", "1}", "1,"]


def json_text(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    escaped = texts.map(lambda text: json.dumps(text))
    return escaped | texts.map(lambda text: json.dumps(text, ensure_ascii=False)) | texts.map(lambda text: f'"{text}"')


NAMES = json_text(st.sampled_from(TEXTS))


@st.composite
def json_objects(draw: st.DrawFn, values: st.SearchStrategy[str], size_max: int = 3) -> str:
    members = draw(st.lists(st.tuples(NAMES, values), max_size=size_max))
    comma = draw(st.sampled_from([",", ",", ",", ", ", " ,"]))
    colon = draw(st.sampled_from([":", ":", ":", ": "]))
    return "{" + comma.join(f"{name}{colon}{value}" for name, value in members) + "}"


@st.composite
def telegraf_metrics(draw: st.DrawFn) -> str:
    """An object with the keys of a metric, most of the time all of them and once."""
    parts = {
        "fields": draw(json_objects(st.sampled_from(NUMBERS[:7]) | st.sampled_from(NUMBERS))),
        "name": draw(st.sampled_from(['"m"', '"m"', '"m"', "7"]) | NAMES),
        "tags": draw(json_objects(NAMES | st.sampled_from(["1", "null", "{}"]), 2)),
        "timestamp": draw(st.sampled_from(TIMES[:5]) | st.sampled_from(TIMES)),
    }
    keys = draw(st.permutations(list(parts))) if draw(st.booleans()) else list(parts)
    if draw(st.integers(0, 9)) == 0:
        keys.pop()
    members = [f'"{key}":{parts[key]}' for key in keys]
    if draw(st.integers(0, 9)) == 0:
        members.insert(
            draw(st.integers(0, len(members))), draw(st.sampled_from([*members, '"x":{"fields":{"x":0.5}}']))
        )
    blank = draw(st.sampled_from(["", "", "", "", " ", "\n"]))
    return "{" + blank + f",{blank}".join(members) + "}" + draw(st.sampled_from(["", "", "\n", " ", "\r\n", "x"]))


@st.composite
def telegraf_records(draw: st.DrawFn) -> bytes:
    metrics = draw(st.lists(telegraf_metrics(), min_size=1, max_size=3))
    way = draw(st.integers(0, 9))
    if way == 0:
        return ("[" + ",".join(metrics) + "]").encode()
    if way == 1:
        return ('{"metrics":[' + ",".join(metrics) + "]}").encode()
    return ("\n".join(metrics) if way == 2 else metrics[0]).encode()


@st.composite
def influx_lines(draw: st.DrawFn) -> str:
    text = st.sampled_from(TEXTS) | st.sampled_from(["a", "b", "m"])
    escaped = text.map(lambda text: re.sub(r"([, =])", r"\\\1", text))
    name = draw(st.sampled_from(["m", "m", "m", "#m", "\tm"]) | text | escaped)
    tags = draw(st.lists(st.tuples(text | escaped, text | escaped), max_size=2))
    fields = draw(st.lists(st.tuples(text | escaped, st.sampled_from(NUMBERS)), min_size=1, max_size=3))
    parts = [
        name + "".join(f",{key}={value}" for key, value in tags),
        ",".join(f"{key}={value}" for key, value in fields),
        draw(st.sampled_from(TIMES[:5]) | st.sampled_from(TIMES)),
    ]
    return draw(st.sampled_from([" ", " ", " ", "  "])).join(parts[: draw(st.sampled_from([3, 3, 3, 3, 2, 1]))])


INFLUX_RECORDS = st.lists(influx_lines(), min_size=1, max_size=3).map(lambda lines: "\n".join(lines).encode())


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(telegraf_records(), min_size=1, max_size=6), SPECS)
@example(
    [b'{"fields":{"a":1},"name":"m","tags":{},"timestamp":1}\n', b'{"fields":{"a":1,"a":2},"name":"m","timestamp":1}'],
    PointsSpec(),
)
@example([b'{"x":{"fields":{"x":0.5}},"fields":{"a":1},"name":"m","timestamp":1}'], PointsSpec())
@example([b'{"fields":{"a":1},"name":"m\0","timestamp":1}'], PointsSpec())
def test_both_paths_of_telegraf_agree(values: list[bytes], spec: PointsSpec) -> None:
    decode("telegraf", values, spec)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(INFLUX_RECORDS, min_size=1, max_size=6), SPECS)
@example([b"m,a=\\ f=1 1", b'm f="a\nm f=1 1', b"#m f=1 1", b"m f=1 1\n\n"], PointsSpec())
def test_both_paths_of_line_protocol_agree(values: list[bytes], spec: PointsSpec) -> None:
    decode("influx", values, spec)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.lists(st.binary(max_size=40) | telegraf_records() | INFLUX_RECORDS, max_size=4), st.randoms(), SPECS)
@pytest.mark.parametrize("format_stated", ["telegraf", "influx"])
def test_no_bytes_break_a_decoder(
    format_stated: DecodeFormat, values: list[bytes], chance: random.Random, spec: PointsSpec
) -> None:
    decode(format_stated, [damaged(value, chance) for value in values], spec)


def damaged(value: bytes, chance: random.Random) -> bytes:
    """The record with a byte changed, lost or doubled."""
    if not value:
        return value
    at = chance.randrange(len(value))
    return value[:at] + chance.choice([b"", bytes([chance.randrange(256)]), value[at : at + 1] * 2]) + value[at + 1 :]


KEYS = st.text("abcdefgh_", min_size=1, max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60).map(float)
PLAIN = st.tuples(
    KEYS,
    st.dictionaries(KEYS, KEYS, max_size=3),
    st.dictionaries(KEYS, FINITE, min_size=1, max_size=4),
    st.integers(0, 10**10),
)
Plain = tuple[str, dict[str, str], dict[str, float], int]


def expected_points(metrics: Sequence[Plain]) -> list[tuple[int, str, str, int, float]]:
    return sorted(
        (row, f"{name}.{key}", json.dumps(tags, sort_keys=True, separators=(",", ":")), seconds * 1000, value)
        for row, (name, tags, fields, seconds) in enumerate(metrics)
        for key, value in fields.items()
    )


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.lists(PLAIN, max_size=8), st.randoms())
def test_telegraf_is_read_as_it_was_written(metrics: list[Plain], chance: random.Random) -> None:
    values = []
    for name, tags, fields, seconds in metrics:
        parts = {"fields": fields, "name": name, "tags": tags, "timestamp": seconds}
        keys = chance.sample(list(parts), 4)
        separators = chance.choice([(",", ":"), (", ", ": ")])
        values.append(json.dumps({key: parts[key] for key in keys}, separators=separators).encode())
    assert decode("telegraf", values).points == expected_points(metrics)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(st.lists(PLAIN, max_size=8))
def test_line_protocol_is_read_as_it_was_written(metrics: list[Plain]) -> None:
    values = [
        name.encode()
        + "".join(f",{key}={tag}" for key, tag in tags.items()).encode()
        + b" "
        + ",".join(f"{key}={value!r}" for key, value in fields.items()).encode()
        + f" {seconds}".encode()
        for name, tags, fields, seconds in metrics
    ]
    assert decode("influx", values, PointsSpec(timestamps="s")).points == expected_points(metrics)


@pytest.mark.parametrize(
    ("format_stated", "values"),
    [
        ("telegraf", [b'{"fields":{"a":1,"b":-2.5e3},"name":"m","tags":{"h":"x"},"timestamp":1}\n'] * 3),
        ("telegraf", [b'{"name":"m","tags":{"h":"x"},"timestamp":1,"fields":{"a":1}}'] * 3),
        ("telegraf", [b'{"fields":{"a":1},"name":"m","timestamp":1}\n{"fields":{"a":2},"name":"m","timestamp":1}']),
        ("telegraf", [b'{"fields":{"a":1},"name":"m","tags":{"h":"\\n","n":7},"x":[1],"timestamp":1}'] * 3),
        (
            "telegraf",
            [b'[{"fields":{"a":1},"name":"m","timestamp":1},{"fields":{"a":2},"name":"m","timestamp":1}]\n'] * 3,
        ),
        (
            "telegraf",
            [b'{"metrics":[{"name":"m","fields":{"a":1},"timestamp":1},{"name":"m","fields":{"b":2},"timestamp":1}]}'],
        ),
        ("telegraf", [b'{"fields":{"a,b:c":1,"s":"up 3 days, 2:15","t":true,"z":null},"name":"m","timestamp":1}'] * 3),
        ("influx", [b"m,h=x a=1,b=2i,c=3u,d=-1.5e3 1700000400123456789\nm a=1 1\n"] * 3),
        ("influx", [b'm,h=x a=t,b=2i,c="text",d=FALSE 1700000400123456789\n'] * 3),
    ],
)
def test_records_as_they_are_written_take_the_fast_path(
    format_stated: DecodeFormat, values: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = PointsDecoder(DecodeSpec(format_stated), Policies())
    monkeypatch.setattr("penstock.flow.points.decoder._ExactPoints.add", None)
    assert decoder.decode(kafka_batch(values)).points["row"].unique().sort().to_list() == list(range(len(values)))


@pytest.mark.parametrize("dense_max", [0, 10, 1000])
def test_many_series_are_distinguished_by_sorting(monkeypatch: pytest.MonkeyPatch, dense_max: int) -> None:
    monkeypatch.setattr("penstock.flow.points.fast._DENSE_MAX", dense_max)
    metrics: list[Plain] = [
        (f"m{number % 3}", {"h": f"{number % 5}"}, {f"f{number % 7}": 1.0, f"g{number % 2}": 2.0}, number)
        for number in range(100)
    ]
    values = [
        f"{name},h={tags['h']} {','.join(f'{key}={value}' for key, value in fields.items())} {seconds}".encode()
        for name, tags, fields, seconds in metrics
    ]
    outcome = decode("influx", [*values, b"m f=1,f=2 1"], PointsSpec(timestamps="s"))
    assert (outcome.points, list(outcome.bad)) == (expected_points(metrics), [100])


def test_a_decoder_works_after_its_cache_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.flow.points.metrics.TEXTS_KEPT_MAX", 4)
    values = [f"m,h={number % 7} f={number} 0".encode() for number in range(50)]
    assert decode("influx", values).points == sorted(
        (number, "m.f", f'{{"h":"{number % 7}"}}', 0, float(number)) for number in range(50)
    )


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.flow.points.metrics.TEXTS_KEPT_MAX", 3)
    parsed: list[str] = []

    def upper(text: str) -> str:
        parsed.append(text)
        return text.upper()

    memory = BoundedCache(upper)
    assert [memory[text] for text in ["a", "b", "a", "x" * 2000, "x" * 2000]] == ["A", "B", "A", "X" * 2000, "X" * 2000]
    assert parsed == ["a", "b", "x" * 2000, "x" * 2000]
    for number in range(20):
        assert memory[str(number)] == str(number)
        assert len(memory) <= 3
