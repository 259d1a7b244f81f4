"""Keys encoded as numbers: they have the order of the keys, for all types and ranges of values."""

from __future__ import annotations

from datetime import UTC, date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.keyed.merging.packing import in_order, last_of_key, packed

LONG = st.integers(-(2**63), 2**63 - 1)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "long": (pl.Int64, LONG | st.integers(-3, 3)),
    "byte": (pl.Int8, st.integers(-128, 127)),
    "text": (pl.String, st.text(max_size=3) | st.sampled_from(["a", "b", "ä", "\U0010ffff"])),
    "bytes": (pl.Binary, st.binary(max_size=2)),
    "flag": (pl.Boolean, st.booleans()),
    "day": (pl.Date, st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "time": (pl.Datetime("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    row = st.tuples(*(KINDS[kind][1] for kind in kinds))
    return kinds, draw(st.lists(row, max_size=30))


def columns_of(kinds: list[str], rows: list[tuple[Any, ...]]) -> list[pl.Series]:
    return [pl.Series([row[at] for row in rows], dtype=KINDS[kind][0]) for at, kind in enumerate(kinds)]


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Texts as tables order them: by their bytes."""
    return tuple(value.encode() if isinstance(value, str) else value for value in row)


@given(tables())
def test_numbers_compare_as_the_rows_do(sample: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    kinds, rows = sample
    numbers = packed(columns_of(kinds, rows))
    distinct = sorted(set(map(comparable, rows)))
    assert [distinct.index(comparable(row)) for row in rows] == np.unique(numbers, return_inverse=True)[1].tolist()


@given(st.lists(st.tuples(st.integers(0, 3), LONG, st.integers(0, 2)), max_size=40))
def test_rows_of_one_key_are_in_their_order_and_equal_ones_as_they_came(rows: list[tuple[int, int, int]]) -> None:
    key, *order = (pl.Series([row[at] for row in rows], dtype=pl.Int64) for at in range(3))
    numbers = packed([key])
    places = in_order(numbers, order)
    assert places.tolist() == sorted(range(len(rows)), key=lambda place: (*rows[place], place))
    kept = [rows[place][0] for place in places[last_of_key(numbers[places])]]
    assert kept == sorted({row[0] for row in rows})


def test_null_sorts_before_every_value() -> None:
    assert np.argsort(packed([pl.Series(["b", None, "a"])])).tolist() == [1, 2, 0]
    assert np.argsort(packed([pl.Series([5, None, -(2**62)])])).tolist() == [1, 2, 0]
    assert packed([pl.Series([None, None], dtype=pl.Int64)]).tolist() == [0, 0]


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows_keep_their_order(count: int) -> None:
    rows = pl.Series([date(2026, 1, 1) + timedelta(days=number) for number in range(count)], dtype=pl.Date)
    assert in_order(packed([rows]), [rows]).tolist() == list(range(count))
