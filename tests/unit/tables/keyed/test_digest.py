"""Digests of chunks: equal for equal rows, whatever they lie in; different for any other."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.keyed.merging.digest import digest_of

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


def test_a_digest_of_a_released_chunk_stays_what_it_was() -> None:
    rows = pa.table({"text": ["a", None, "bc"], "number": pa.array([1, 2, None], pa.int64())})
    assert digest_of(rows) == "54c535e6e45e0e77fe9797b6ffbac0a8"


@given(rows=ROWS)
def test_rows_have_one_digest_in_memory_cut_out_and_read_back(
    tmp_path_factory: Any, rows: list[dict[str, Any]]
) -> None:
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
