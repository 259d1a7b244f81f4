"""The decoder against a second one (`json_oracle`), record by record, over random documents, schemas and neighbours."""

from __future__ import annotations

import json
import os
import random
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.decode.json import reader
from penstock.flow.decode.json.new_fields import field_tree, in_record
from penstock.job.spec import DecodeSpec, NewColumnPolicy, Policies
from tests.support.tries import tries
from tests.unit.benchmarks.bad_records import ORDERS, orders
from tests.unit.flow.decode.hostile_records import HOSTILE, NESTED, hostile_records
from tests.unit.flow.decode.json_oracle import comparable, oracle
from tests.unit.flow.kafka_batches import decode_json, good_offsets, kafka_batch, types_of

NAMES = ["a", "b", "c", "ü"]
LEAVES = [
    pa.string(),
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(38, 10),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.binary(),
]
NUMBERS = ["0", "-0", "1", "-7", "127", "128", "2147483648", "9223372036854775807", "9223372036854775808", "1" * 40]
NUMBERS += HOSTILE
NUMBERS += ["1.0", "0.1", "1.005", "999.99", "1000", "16777217", "1e2", "1E-2", "3.4e39", "1e308", "1e309", "0e400"]
NUMBERS += ["NaN", "Infinity", "-Infinity", "Inf", "-Inf", "-NaN", "1e-400", "0.5e310", "9" * 400]
TEXTS = ["", "abc", "1", "1.5", " 1", "YWJj", "YWJ", "ü", "\u0000", "{", "}", "\n", '"', "\\", "😀", "NaN", "1e2", "5."]
TEXTS += ["2021-03-24", "2021-02-30", "2021-03-24T15:06:17Z", "2021-03-24 15:06:17.123456789", "0001-01-01T00:00:00Z"]
TEXTS += ["2021-03-24T15:06:17+01:00", "2400-01-01T00:00", "2021-03-24T24:00:00Z", "2021-03-24T15:06:17.1234567891Z"]


def structs(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from(NAMES), children, min_size=1, max_size=3)
    return fields.map(lambda named: pa.struct(list(named.items())))


def lists(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return children.map(pa.list_)


TYPES = st.recursive(st.sampled_from(LEAVES), lambda inner: structs(inner) | lists(inner), max_leaves=4)
SCHEMAS = st.dictionaries(st.sampled_from(NAMES), TYPES, min_size=1, max_size=3).map(
    lambda named: pa.schema(list(named.items()))
)
SCALARS = (
    st.sampled_from(NUMBERS)
    | st.sampled_from(["true", "false", "null"])
    | st.sampled_from(TEXTS).map(json.dumps)
    | st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False))
    | st.integers().map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
)
BLANK = st.sampled_from(["", "", "", " ", "\n", "\t\r\n"])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """An object as text, so that names may repeat and blanks stand anywhere."""
    members = draw(st.lists(st.tuples(st.sampled_from([*NAMES, "d"]), values), max_size=4))
    blank = draw(BLANK)
    inside = f"{blank},".join(f'"{name}":{blank}{value}' for name, value in members)
    return f"{{{blank}{inside}}}"


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda item: f"[{','.join(item)}]")


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=6)


@st.composite
def fitting(draw: st.DrawFn, kind: pa.DataType) -> str:
    """A value that mostly fits the type: random ones alone would nearly all be bad."""
    if draw(st.integers(0, 7)) == 0:
        return draw(SCALARS | VALUES)
    if pa.types.is_struct(kind):
        members = [f'"{child.name}":{draw(fitting(child.type))}' for child in kind]
        return "{" + ",".join(members) + "}"
    if pa.types.is_list(kind):
        return "[" + ",".join(draw(st.lists(fitting(kind.value_type), max_size=2))) + "]"
    if pa.types.is_boolean(kind):
        return draw(st.sampled_from(["true", "false", "null"]))
    if pa.types.is_integer(kind):
        return str(draw(st.integers(-128, 127)))
    if pa.types.is_floating(kind):
        return draw(st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(NUMBERS[:12]))
    if pa.types.is_decimal(kind):
        return draw(st.decimals(-999, 999, places=2).map(str))
    return json.dumps(draw(st.sampled_from(TEXTS)), ensure_ascii=False)


@st.composite
def records(draw: st.DrawFn, schema: pa.Schema) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return draw(objects(VALUES)).encode()
    return draw(fitting(pa.struct(list(schema)))).encode()


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes]]:
    schema = draw(SCHEMAS)
    return schema, draw(st.lists(records(schema), min_size=1, max_size=6))


def check_agreement(schema: pa.Schema, values: list[bytes], policy: NewColumnPolicy) -> None:
    decoded = decode_json(schema, values, new_column=policy)
    expected = [oracle(schema, value, known_only=policy == "quarantine") for value in values]
    good = [n for n, row in enumerate(expected) if row is not None]
    assert good_offsets(decoded) == [100 + n for n in good]
    columns = decoded.rows.columns
    for line, n in enumerate(good):
        row = [comparable(field.type, column[line]) for field, column in zip(schema, columns.columns, strict=True)]
        assert row == expected[n], values[n]
    if policy == "add":
        singly: NewFields = {}
        for n in good:
            add_fields(singly, in_record(values[n], field_tree(schema)))
        assert types_of(decoded.new_fields) == types_of(singly)


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_the_oracle_agrees_on_every_scalar_in_every_column(kind: pa.DataType) -> None:
    scalars = [*NUMBERS, *map(json.dumps, TEXTS), "true", "false", "null", "[]", "{}", "[1]", '{"a":1}']
    for schema in (pa.schema([("a", kind)]), pa.schema([("l", pa.list_(kind))])):
        shape = '{"a":%s}' if schema.names == ["a"] else '{"l":[%s]}'
        check_agreement(schema, [(shape % scalar).encode() for scalar in scalars], "ignore")


@settings(max_examples=tries(50))
@given(cases(), st.sampled_from(["add", "ignore", "quarantine"]))
def test_the_oracle_agrees_on_every_record(case: tuple[pa.Schema, list[bytes]], policy: NewColumnPolicy) -> None:
    check_agreement(*case, policy)


@settings(max_examples=tries(25))
@given(cases(), st.sampled_from(list(get_args(NewColumnPolicy))[:2]))
def test_the_outcome_of_a_record_does_not_depend_on_its_neighbours(
    case: tuple[pa.Schema, list[bytes]], policy: NewColumnPolicy
) -> None:
    schema, values = case
    together = decode_json(schema, values, new_column=policy)
    for number, value in enumerate(values):
        alone = decode_json(schema, [value], new_column=policy)
        assert (good_offsets(alone) == [100]) == (100 + number in good_offsets(together))


SEED = int(os.environ.get("PENSTOCK_FUZZ_SEED", "20240506"))
"""Another one looks elsewhere; a failure names it together with the batch."""


@pytest.mark.parametrize("policy", ["add", "ignore", "quarantine"])
@pytest.mark.parametrize("bad_share", [0.001, 0.05, 0.5, 1.0])
def test_hostile_records_among_good_ones_match_the_oracle(bad_share: float, policy: NewColumnPolicy) -> None:
    """Batches through one decoder, as in a task: what it has learned from one must not change the next."""
    seed = f"{SEED}-{bad_share}-{policy}"
    print(f"PENSTOCK_FUZZ_SEED={SEED}")
    random_source = random.Random(seed)
    decoder = decoder_for(DecodeSpec("json"), NESTED, Policies(new_column=policy))
    for count in (40, 1, 300, 60):
        values = hostile_records(random_source, count, bad_share)
        decoded = decoder.decode(kafka_batch(values))
        rows = {100 + n: oracle(NESTED, value, known_only=policy == "quarantine") for n, value in enumerate(values)}
        assert good_offsets(decoded) == [offset for offset, row in rows.items() if row is not None]
        for line, offset in enumerate(good_offsets(decoded)):
            columns = zip(NESTED, decoded.rows.columns.columns, strict=True)
            row = [comparable(field.type, column[line]) for field, column in columns]
            assert row == rows[offset], values[offset - 100]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each read by Arrow, as they happen."""
    reads: list[int] = []

    def counted(lines: pa.Buffer, count: int, schema: pa.Schema, unexpected: reader.Unexpected) -> pa.RecordBatch:
        reads.append(count)
        return whole(lines, count, schema, unexpected)

    whole = reader._rows
    monkeypatch.setattr(reader, "_rows", counted)
    return reads


@pytest.mark.parametrize("bad_share", [0.01, 0.1, 0.5])
def test_bad_records_cost_no_further_reads_of_their_batch(bad_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: Arrow's reader sees a batch a few times at most, and no record alone."""
    reads = count_reads(monkeypatch)
    values, count = orders(1500, bad_share, differing=True)
    decoder = decoder_for(DecodeSpec("json"), ORDERS, Policies(new_column="ignore"))
    assert len(decoder.decode(kafka_batch(values)).bad.errors) == count
    assert len(reads) <= 8


def test_many_duplicate_names_and_texts_that_only_python_takes_for_decimals_cost_few_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = count_reads(monkeypatch)
    good, _ = orders(900, 0.0, differing=False)
    twice = [b'%b, "%b": null}' % (order[:-1], ORDERS.names[n % 8].encode()) for n, order in enumerate(good[:90])]
    inside = [order.replace(b'"vip"', b'"vip": true, "vip"') for order in good[90:120]]
    escaped = [order.replace(b'"id"', b'"id": 1, "\\u0069d"') for order in good[120:150]]
    not_decimals = [b'{"tax": "%b"}' % text for text in (b"NaN", b"1_000", b" 1", b"Infinity", b"1." + b"0" * 80)]
    bad = [*twice, *inside, *escaped, *not_decimals * 6]
    decoder = decoder_for(DecodeSpec("json"), ORDERS, Policies(new_column="ignore"))
    decoded = decoder.decode(kafka_batch([value for pair in zip(good, bad, strict=False) for value in pair]))
    assert good_offsets(decoded) == [100 + 2 * n for n in range(len(bad))]
    assert set(decoded.bad.errors.to_pylist()) == {
        *(f"{name}: given twice" for name in [*ORDERS.names, "user.vip"]),
        "tax: expected decimal(12,4), found string",
    }
    assert len(reads) <= 12


@settings(max_examples=tries(25))
@given(SCHEMAS, st.lists(st.binary(max_size=12) | objects(VALUES).map(str.encode), max_size=5))
def test_no_bytes_break_the_decoder(schema: pa.Schema, values: list[bytes]) -> None:
    decode_json(schema, [value[: len(value) - 1] if len(value) % 3 == 0 else value for value in values])
