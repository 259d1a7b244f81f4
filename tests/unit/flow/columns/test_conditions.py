"""Conditions give the answers of another SQL engine, and only those that fit the columns are accepted."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.flow.columns.conditions import check_condition, matches
from penstock.flow.rows import DecodedRows
from penstock.job.conditions import read_condition

SCHEMA = pa.schema([
    ("i", pa.int32()), ("l", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("f", pa.float64()),
    ("d", pa.decimal128(10, 2)), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("bytes", pa.binary()),
    ("meta", pa.struct([("op", pa.string())])), ("tags", pa.list_(pa.string())), ("unknown", pa.null()),
])  # fmt: skip
NUMBERS = st.none() | st.integers(-2, 2)
TEXTS = st.none() | st.sampled_from(["", "a", "b", "it's"])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, TEXTS, st.none() | st.booleans()), min_size=1, max_size=8)
OPERATORS = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
NUMBER = st.integers(-2, 2).map(str)
TEXT = st.sampled_from(["''", "'a'", "'b'", "'it''s'"])


def _in(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(values, min_size=1, max_size=3).map(", ".join)
    return st.builds(lambda no, items: f"{name} {no}in ({items})", st.sampled_from(["", "not "]), listed)


LEAVES = st.one_of(
    st.just("b"),
    st.builds(lambda operator, value: f"i {operator} {value}", OPERATORS, NUMBER | st.just("j")),
    st.builds(lambda operator, value: f"{value} {operator} i", OPERATORS, NUMBER),
    st.builds(lambda operator, value: f"s {operator} {value}", OPERATORS, TEXT),
    st.builds(lambda value: f"b = {value}", st.sampled_from(["true", "false"])),
    st.builds(lambda name, no: f"{name} is {no}null", st.sampled_from("ijsb"), st.sampled_from(["", "not "])),
    _in("i", NUMBER),
    _in("s", TEXT),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda one, word, other: f"{one} {word} {other}", inner, st.sampled_from(["and", "or"]), inner),
        inner.map(lambda one: f"not {one}"),
        inner.map(lambda one: f"({one})"),
    ),
    max_leaves=6,
)


def answers(text: str, rows: pa.RecordBatch) -> list[bool]:
    check_condition(read_condition(text), rows.schema)
    result: list[bool] = matches(read_condition(text), DecodedRows(rows, rows.select([]))).to_pylist()
    return result


@given(ROWS, CONDITIONS)
def test_conditions_have_the_answers_of_duckdb(values: list[tuple[object, ...]], text: str) -> None:
    schema = pa.schema([("i", pa.int32()), ("j", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])
    rows = pa.RecordBatch.from_pylist([dict(zip("ijsb", row, strict=True)) for row in values], schema)
    table = pa.Table.from_batches([rows])
    with duckdb.connect() as connection:
        connection.register("records", table)
        expected = connection.execute(f"select coalesce({text}, false) from records").fetchall()
    assert answers(text, rows) == [row[0] for row in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f < 0.5", [True, False, False]),
        ("d = 4.10", [True, False, False]),
        ("d in (4.1, 7)", [True, True, False]),
        ("day >= '2026-03-02'", [False, True, False]),
        ("at < '2026-03-02'", [True, False, False]),
        ("at = '2026-03-02T11:00:00+01:00'", [False, True, False]),
        ("bytes = 'xy'", [True, False, False]),
        ("meta.op != 'd'", [True, False, False]),
        ("i < l", [True, False, False]),
        ("b", [True, False, False]),
        ("unknown is null", [True, True, True]),
    ],
)
def test_values_are_compared_as_values_of_the_type_of_their_column(text: str, expected: list[bool]) -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC)
    first = {"i": 1, "l": 2, "s": "a", "b": True, "f": 0.25, "d": 4, "day": day.date(), "at": day, "bytes": b"xy"}
    other = {"i": 2, "l": 2, "f": 0.5, "b": False, "d": 7, "day": day.date().replace(day=2), "bytes": b"yx"}
    other["at"] = datetime(2026, 3, 2, 10, tzinfo=UTC)
    schema = SCHEMA.set(1, pa.field("l", pa.int32()))
    rows = pa.RecordBatch.from_pylist([first | {"meta": {"op": "c"}}, other | {"meta": {"op": "d"}}, {}], schema)
    d = pa.array(["4.10", "7.00", None]).cast(pa.decimal128(10, 2))
    assert answers(text, rows.set_column(5, "d", d)) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("s", "s is string, not true or false", "write s = ..."),
        ("i = 'x'", "i is int, and 'x' is not a value of this type", ""),
        ("i = 1.5", "i is int, and 1.5 is not a value of this type", ""),
        ("i = 3000000000", "i is int, and 3000000000 is not a value of this type", ""),
        ("s = 5", "s is string, and 5 is not a value of this type", "write '5'"),
        ("s = true", "s is string, and true is not a value of this type", "write 'true'"),
        ("b = 1", "b is boolean, and 1 is not a value of this type", ""),
        ("d = 4.105", "d is decimal(10,2), and 4.105 is not a value of this type", ""),
        ("at > 'monday'", "at is timestamp, and 'monday' is not a value of this type", ""),
        ("i = l", "i is int, and l is long", "put text in quotes: 'l'"),
        ("s = created", "there is no field created", "put text in quotes: 'created'"),
        ("i > 0 and not (st = 'x')", "the schema has no field st", ""),
        ("s = 'x' or meta.opp = 'd'", "the schema has no field meta.opp", "did you mean meta.op?"),
        ("meta = 'x'", "meta is {op: string}, which cannot be compared", ""),
        ("tags in ('x')", "tags is list<string>, which cannot be compared", ""),
        ("kafka.offset = 'x'", "kafka.offset is long, and 'x' is not a value of this type", ""),
        ("nothing is null", "the schema has no field nothing", ""),
    ],
)
def test_a_condition_that_does_not_fit_the_columns_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        check_condition(read_condition(text), SCHEMA)
    assert caught.value.primary == message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["unknown = 1", "unknown", "unknown.x = 'y'", "s = unknown", "tags is null"])
def test_a_column_whose_type_is_not_known_yet_is_not_refused(text: str) -> None:
    check_condition(read_condition(text), SCHEMA)
