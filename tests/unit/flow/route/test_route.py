"""A record goes to the type that its route value means, whatever surrounds the value or is in other records."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.columns.kafka_fields import record_headers
from penstock.flow.columns.seen_types import from_json
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.route.fanout_flow import TypeFlow
from penstock.flow.route.field import FieldRouter, value_at
from penstock.flow.route.routes import UNKNOWN, PlainRouter, last_headers
from penstock.flow.rows import groups
from penstock.flow.write.report import UNROUTED
from penstock.job.spec import DecodeSpec, NewColumnPolicy, Policies, RouteSpec
from tests.support.tries import tries
from tests.unit.flow.route.fanouts import fanout_flow, kafka_part, run, type_flow

INT, TEXT = pa.int64(), pa.string()
META = pa.struct([("type", TEXT), ("n", INT)])
META_WITHOUT = pa.struct([("n", INT)])

# Values in their JSON spelling, many of which look like a route value where there is none.
LEAVES = [
    '"a"', '"b"', '"7"', '"zz"', '""', '"type"', '"\\u0061"', '"a\\"type\\":\\"b\\""', '"{\\"type\\": \\"b\\"}"',
    '"a\\\\"', '"\\ud83d\\ude00"', "7", "-0", "0", "-7", "7.0", "1.5", "7e0", "true", "false", "null",
    "123456789012345678901234567890", "[]", "{}", '["type", "a"]', '[{"type":"a"}]', '{"type":"b"}', '{"n":1}',
    '{"type":7}', '{"type":"a","type":"b"}', '{"deep":{"type":"a"}}', '{"type":null,"n":null}', '{"n":"x","type":"a"}',
]  # fmt: skip
NAMES = ['"type"', '"ty\\u0070e"', '"n"', '"meta"', '"other"', '"x type"']
NOT_RECORDS = [
    b"", b"  ", b"nope", b"[]", b'"type"', b'{"type":"a"', b'{"type":"a"}{"n":1}', b'{"type":"a",}', b'{"type":"\xff"}',
    b'{"type":"a","x":"\xff"}', b'{"type": "a", "n": }', b'{"type":"\\ud800"}',
]  # fmt: skip

blanks = st.sampled_from(["", "", "", " ", "\n\t "])
members = st.tuples(st.sampled_from(NAMES), blanks, blanks, st.sampled_from(LEAVES), blanks)


def spelled(parts: list[tuple[str, str, str, str, str]]) -> bytes:
    return ("{" + ",".join(f"{name}{one}:{two}{value}{three}" for name, one, two, value, three in parts) + "}").encode()


records = st.one_of(
    st.lists(members, max_size=4).map(spelled),
    st.lists(members, max_size=4).map(lambda others: spelled([('"type"', "", " ", '"a"', ""), *others])),
    st.sampled_from(NOT_RECORDS),
)


class Number(str):
    __slots__ = ()


class Members(dict[str, Any]):
    """The members of an object, and those of their names that stand there twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = {name for name in names if names.count(name) > 1}


def plainly_parsed(record: bytes) -> Members | None:
    try:
        parsed = json.loads(record.decode(), object_pairs_hook=Members, parse_int=Number, parse_float=Number)
    except ValueError:
        return None
    return parsed if isinstance(parsed, Members) else None


def fits(value: Any, kind: pa.DataType, known_only: bool) -> bool:
    """Whether a parsed value can stand in a column of the kind."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return isinstance(value, Members) and all_fit(value, list(kind), known_only)
    if kind == TEXT:
        return type(value) is str
    return isinstance(value, Number) and set(value) <= set("-0123456789") and abs(int(value)) < 2**63


def all_fit(members: Members, fields: list[pa.Field], known_only: bool) -> bool:
    if known_only and not set(members) <= {field.name for field in fields}:
        return False
    return all(
        item.name not in members.twice and fits(members.get(item.name), item.type, known_only) for item in fields
    )


def fate(record: bytes, path: tuple[str, ...], types: list[TypeFlow], known_only: bool) -> tuple[str, bool]:
    """The type of a record, and whether it becomes a row of it: read off the plain meaning of the job file."""
    result = plainly_parsed(record)
    if result is None:
        return UNROUTED, False
    value: Any = result
    for name in path:
        if not isinstance(value, Members):
            return UNROUTED, False
        if name in value.twice:
            return UNROUTED, False
        value = value.get(name)
    if isinstance(value, Number) and set(value) <= set("-0123456789"):
        text = str(int(value))
    elif type(value) is str:
        text = value
    else:
        return UNROUTED, False
    for item in types:
        if text in item.values:
            assert item.decoded is not None
            schema = with_route_field(list(item.decoded), path, INT if isinstance(value, Number) else TEXT)
            return item.name, all_fit(result, schema, known_only)
    return UNROUTED, False


def with_route_field(fields: list[pa.Field], path: tuple[str, ...], kind: pa.DataType) -> list[pa.Field]:
    """The job file names the route field, so it is known wherever the schema has a struct for it."""
    named = {field.name: field for field in fields}
    if path[0] not in named:
        return [*fields, pa.field(path[0], kind)] if len(path) == 1 else fields
    inside = named[path[0]].type
    if len(path) == 1 or not pa.types.is_struct(inside):
        return fields
    named[path[0]] = pa.field(path[0], pa.struct(with_route_field(list(inside), path[1:], kind)))
    return list(named.values())


TYPES = [
    type_flow("a", pa.schema([("type", TEXT), ("n", INT)]), values=("a", "-7")),
    type_flow("b", pa.schema([("n", INT)])),
    type_flow("seven", pa.schema([("n", INT), ("meta", META)]), values=("7", "a\\", "\U0001f600")),
    type_flow("zero", pa.schema([("type", INT), ("meta", META_WITHOUT)]), values=("0", 'a"type":"b"')),
]


@pytest.mark.parametrize("path", [("type",), ("meta", "type")])
@pytest.mark.parametrize("new_column", ["ignore", "add", "quarantine"])
@settings(max_examples=tries(25), deadline=None)
@given(batch=st.lists(records, min_size=1, max_size=60))
def test_the_outcome_of_a_record_depends_on_the_record_alone(
    path: tuple[str, ...], new_column: NewColumnPolicy, batch: list[bytes]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = Policies(new_column=new_column)
        flow = fanout_flow(Path(folder), TYPES, route=RouteSpec("field", path), on=on)
        outcome = run(flow, kafka_part(batch))
        result = {offset: (name, False) for name in outcome.shares for offset in outcome.bad(name)}
        for item in TYPES:
            offsets = outcome.offsets(item.name)
            assert offsets == sorted(offsets)
            result.update(dict.fromkeys(offsets, (item.name, True)))
    known_only = new_column == "quarantine"
    assert result == {100 + row: fate(record, path, TYPES, known_only) for row, record in enumerate(batch)}


@settings(max_examples=tries(30), deadline=None)
@given(st.lists(records, min_size=17, max_size=60), st.sampled_from([("type",), ("meta", "type")]))
def test_records_decoded_together_have_the_same_values_as_alone(batch: list[bytes], path: tuple[str, ...]) -> None:
    backwards = kafka_part(batch).take(pa.array(range(len(batch) - 1, -1, -1)))
    routed = FieldRouter(RouteSpec("field", path), {"a": ("a",)}, "plain").route_rest(backwards)
    assert routed.batch.column("offset").to_pylist() == sorted(routed.batch.column("offset").to_pylist())
    together = dict(zip(routed.batch.column("offset").to_pylist(), routed.values.to_pylist(), strict=True))
    together.update(
        dict(zip(routed.bad.kafka.column("offset").to_pylist(), routed.bad.errors.to_pylist(), strict=True))
    )
    alone: dict[int, str | None] = {}
    for row, record in enumerate(batch):
        try:
            alone[100 + row] = value_at(record, path)[0]
        except MisfitError as misfit:
            alone[100 + row] = str(misfit)
    assert together == alone


def new_fields_reported(folder: Path, values: list[bytes]) -> dict[str, set[str]]:
    outcome = run(fanout_flow(folder, TYPES), kafka_part(values))
    return {name: set(from_json(share.new_fields)) for name, share in outcome.shares.items()}


def test_a_record_that_mentions_another_type_adds_fields_to_its_own_type_only(tmp_path: Path) -> None:
    plain = b'{"type": "a", "seen": 1}'
    decoy = b'{"inner": {"type": "a"}, "type": "b", "secret": 1}'
    assert new_fields_reported(tmp_path, [plain, decoy]) == {"a": {"seen"}, "b": {"inner", "secret"}}


def test_a_record_that_mentions_another_type_is_no_record_of_that_type(tmp_path: Path) -> None:
    decoy = b'{"other": {"type": "a"}, "type": "b"}'
    types = [*TYPES[:1], type_flow("b", pa.schema([("other", pa.struct([("type", TEXT)]))]))]
    flow = fanout_flow(tmp_path, types, on=Policies(new_column="quarantine"))
    outcome = run(flow, kafka_part([b'{"type": "a"}', decoy]))
    assert (outcome.offsets("a"), outcome.offsets("b")) == ([100], [101])
    assert not outcome.shares["a"].failed


def test_records_that_looked_like_several_types_are_written_in_their_order(tmp_path: Path) -> None:
    values = [b'{"x": {"type": "b"}, "type": "a"}', b'{"x": {"type": "zz"}, "type": "a"}']
    outcome = run(fanout_flow(tmp_path, TYPES), kafka_part(values))
    assert outcome.offsets("a") == [100, 101]
    (file,) = outcome.shares["a"].files
    assert (outcome.written(file).rows, file.last_offset) == (2, 101)


def test_compressed_records_are_routed_by_content_and_quarantined_unchanged(tmp_path: Path) -> None:
    texts = [b'{"type": "a", "n": 1}', b'{"type": "a", "n": "x"}', b'{"type": "who"}', b"not JSON"]
    values = [*(gzip.compress(text) for text in texts), b"not gzip"]
    outcome = run(fanout_flow(tmp_path, TYPES, decode=DecodeSpec("json", "gzip")), kafka_part(values))
    assert outcome.offsets("a") == [100]
    assert set(outcome.bad("a")) == {101}
    assert set(outcome.bad()) == {102, 103, 104}
    (file,) = outcome.shares["a"].quarantine_files
    kept = pa.parquet.ParquetFile(Path(outcome.flow.quarantine_url) / file.path).read()
    assert kept["value"].to_pylist() == [values[1]]


@pytest.mark.parametrize("route", [RouteSpec("field", ("type",)), RouteSpec("key")], ids=["field", "key"])
def test_records_that_are_large_unpacked_are_routed_and_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: RouteSpec
) -> None:
    monkeypatch.setattr("penstock.flow.decode.outcome.PART_BYTES_MAX", 15_000)
    monkeypatch.setattr("penstock.flow.decode.outcome.PAYLOAD_BYTES_MAX", 30_000)
    names = ["a", "b", "a", "a", "b", "a", "a"]
    texts = [b'{"type": "%b", "n": %d}' % (name.encode(), number) for number, name in enumerate(names)]
    values = [gzip.compress(text + b" " * 10_000) for text in texts]
    values[3] = gzip.compress(b" " * 30_001)
    flow = fanout_flow(tmp_path, TYPES, decode=DecodeSpec("json", "gzip"), route=route)
    outcome = run(flow, kafka_part(values, keys=[name.encode() for name in names]))
    assert (outcome.offsets("a"), outcome.offsets("b")) == ([100, 102, 105, 106], [101, 104])
    bad = outcome.bad() if route.by == "field" else outcome.bad("a")
    assert bad == {103: "payload unpacks to more than 30000 bytes"}


def headers(*pairs: tuple[str, bytes | None]) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in pairs]


def test_the_last_header_of_the_name_counts() -> None:
    batch = kafka_part(
        [b"{}"] * 6,
        headers=[
            headers(("t", b"a"), ("u", b"x"), ("t", b"b")),
            None,
            headers(),
            headers(("u", b"x")),
            headers(("t", None)),
            headers(("t", b"a"), ("t", b"\xff")),
        ],
    )
    assert last_headers(record_headers(batch)[0], "t").to_pylist() == [b"b", None, None, None, None, b"\xff"]
    assert last_headers(record_headers(batch.slice(3))[0], "t").to_pylist() == [None, None, b"\xff"]
    assert last_headers(record_headers(batch.drop_columns(["headers"]))[0], "t").to_pylist() == [None] * 6
    router = PlainRouter(RouteSpec("header", ("t",)), {"A": ("a",), "B": ("b",)}, "plain")
    assert router.route(batch).codes.tolist() == [1, *[UNKNOWN] * 5]


def test_a_route_key_that_is_not_text_matches_no_type() -> None:
    router = PlainRouter(RouteSpec("key"), {"A": ("a", "ä"), "B": ("b",)}, "plain")
    batch = kafka_part([b"1"] * 5, keys=[b"b", "ä".encode(), b"\xff", None, b""])
    assert router.route(batch).codes.tolist() == [1, 0, UNKNOWN, UNKNOWN, UNKNOWN]


@given(st.lists(st.integers(-1, 5)))
def test_groups_hold_every_row_once_and_in_order(codes: list[int]) -> None:
    result = {code: rows.tolist() for code, rows in groups(pa.array(codes, pa.int16()).to_numpy())}
    assert result == {code: [row for row, item in enumerate(codes) if item == code] for code in set(codes)}


def shown_fate(folder: Path, value: bytes) -> str:
    outcome = run(fanout_flow(folder, TYPES), kafka_part([value]))
    return outcome.bad()[100]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"type": "other"}', 'its type "other" is not known'),
        (b'{"type": 12}', 'its type "12" is not known'),
        (b'{"n": 1}', "has no type: no text or whole number at type"),
        (b'{"type": 1.5}', "has no type: no text or whole number at type"),
        (b'{"type": "a", "type": "a"}', "type: given twice"),
        (b"nope", "not JSON at character 0: Expecting value"),
        (b"", "value is empty"),
        (b"[]", "expected an object"),
    ],
)
def test_a_record_without_a_type_has_a_reason(tmp_path: Path, value: bytes, reason: str) -> None:
    assert shown_fate(tmp_path, value) == reason


def test_a_long_type_is_clipped_in_the_reason(tmp_path: Path) -> None:
    assert len(shown_fate(tmp_path, json.dumps({"type": "x" * 500}).encode())) < 100


Spelling = Callable[[int], bytes]


@pytest.mark.parametrize("spelling", [lambda n: b'{"type": "a", "n": %d}' % n, lambda n: b'{"n":%d,"type":"a"}' % n])
def test_many_records_of_the_usual_spelling_keep_their_order(tmp_path: Path, spelling: Spelling) -> None:
    values = [spelling(number) for number in range(3_000)]
    values[1_500] = b'{"payload": {"type": "b"}, "type": "a", "n": 1500}'
    outcome = run(fanout_flow(tmp_path, TYPES), kafka_part(values[:2_000]), kafka_part(values[2_000:], 2_100))
    assert [row["n"] for row in outcome.rows("a")] == list(range(3_000))
