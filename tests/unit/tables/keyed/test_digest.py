"""Digests of chunks: equal for equal rows in any memory layout; different for any other."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.keyed.merging.chunks import digest_of

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("flag", pa.bool_()),
        ("real", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 3)),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ("pairs", pa.map_(pa.string(), pa.int64())),
    ]
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | st.integers(-(2**63), 2**63 - 1),
            "small": st.none() | st.integers(-300, 300),
            "text": st.none() | TEXT,
            "data": st.none() | st.binary(max_size=4),
            "flag": st.none() | st.booleans(),
            "real": st.none() | st.floats(allow_nan=False),
            "day": st.none() | st.dates(),
            "at": st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
            "price": st.none() | st.decimals(-1000, 1000, places=3).map(lambda it: it.quantize(Decimal("0.001"))),
            "inner": st.none()
            | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | st.lists(TEXT, max_size=3)}),
            "pairs": st.none() | st.lists(st.tuples(TEXT, st.integers(0, 9)), max_size=2),
        }
    ),
    min_size=1,
    max_size=8,
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_digests_of_released_chunks_do_not_change() -> None:
    rows = pa.table({"text": ["a", None, "bc"], "number": pa.array([1, 2, None], pa.int64())})
    assert digest_of(rows) == "a027f9dc258536e72ac3ff5f6b998d1e"


@given(rows=ROWS)
def test_rows_have_one_digest_in_memory_sliced_and_read_back(tmp_path_factory: Any, rows: list[dict[str, Any]]) -> None:
    whole = table(rows)
    path: Path = tmp_path_factory.mktemp("digest") / "file"
    pq.write_table(whole, path, store_schema=False)
    around = pa.concat_tables([table(rows[:1]), whole, table(rows[-1:])]).combine_chunks()
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert digest_of(whole) == digest_of(around.slice(1, len(rows))) == digest_of(pieces)
    assert digest_of(pq.read_table(path).cast(SCHEMA)) == digest_of(whole)


@given(one=ROWS, other=ROWS)
def test_other_rows_have_another_digest(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    same = table(one).to_pylist() == table(other).to_pylist()
    faces = repr(table(one).to_pylist()) == repr(table(other).to_pylist())
    assert (digest_of(table(one)) == digest_of(table(other))) == faces or (same and not faces)


def test_a_column_without_a_value_does_not_count_and_order_does() -> None:
    rows = pa.table({"a": [1, 2]})
    assert digest_of(rows) == digest_of(rows.append_column("b", pa.nulls(2, pa.string())))
    assert digest_of(rows) != digest_of(pa.table({"a": [2, 1]}))
    assert digest_of(pa.table({"a": ["x", "yz"]})) != digest_of(pa.table({"a": ["xy", "z"]}))


def test_a_null_mask_is_not_read_as_values() -> None:
    """Without a frame, the mask and the values of one member can be read as the values of another."""
    kind = pa.struct([("a", pa.int8()), ("b", pa.int8())])

    def chunk(a: list[int | None], b: list[int | None]) -> pa.Table:
        return pa.table({"it": pa.array([{"a": x, "b": y} for x, y in zip(a, b, strict=True)], kind)})

    one = chunk([None] * 7 + [9], [2, 3, 4, 5, 6, 7, -128, 8])
    other = chunk([9, 1, 2, 3, 4, 5, 6, 7], [8] + [None] * 7)
    assert digest_of(one) != digest_of(other)
    lists = pa.list_(pa.int8())
    few = pa.table({"it": pa.array([[None] * 7 + [9]], lists)})
    many = pa.table({"it": pa.array([[9, 1, 2, 3, 4, 5, 6, 7]], lists)})
    assert digest_of(few) != digest_of(many)


def test_a_member_without_a_value_does_not_count() -> None:
    """A struct may get members later: the digests of its earlier files stay."""
    young = pa.struct([("a", pa.int64())])
    grown = pa.struct([("b", pa.string()), ("a", pa.int64())])
    values = [{"a": 1}, None, {"a": None}]
    assert digest_of(pa.table({"it": pa.array(values, young)})) == digest_of(pa.table({"it": pa.array(values, grown)}))
    within = [[{"a": 1}, None], [], None]
    lists = [pa.table({"it": pa.array(within, pa.list_(kind))}) for kind in (young, grown)]
    assert digest_of(lists[0]) == digest_of(lists[1])


TINY = st.none() | st.integers(-2, 1) | st.just(-128)
TINY_KIND = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8())), ("c", pa.bool_())])
TINY_ROWS = st.lists(
    st.none()
    | st.fixed_dictionaries({"a": TINY, "b": st.none() | st.lists(TINY, max_size=9), "c": st.none() | st.booleans()}),
    min_size=8,
    max_size=9,
)


@given(one=TINY_ROWS, other=TINY_ROWS)
def test_small_nested_chunks_have_one_digest_only_if_they_are_equal(one: list[Any], other: list[Any]) -> None:
    digests = [digest_of(pa.table({"it": pa.array(rows, TINY_KIND)})) for rows in (one, other)]
    assert (digests[0] == digests[1]) == (one == other or not any(one + other))
