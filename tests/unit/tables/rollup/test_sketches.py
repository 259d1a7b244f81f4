"""Quantiles are nearest ranks: the least value that at least the asked share of the values does not exceed."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.rollup.aggregate import SKETCH_ITEMS, merged_sketches, quantiles, sketched

VALUES = st.floats(-1e6, 1e6)


def found(lists: list[list[float]], ranks: list[float]) -> list[float]:
    """The quantiles of all values, sketched list by list and merged."""
    parts = sketched(pl.Series(lists, dtype=pl.List(pl.Float64)))
    whole = merged_sketches(pl.Series([parts.to_list()], dtype=pl.List(pl.Binary)))
    return [column[0] for column in quantiles(whole, ranks)]


@pytest.mark.parametrize(
    ("values", "rank", "wanted"),
    [([1.0, 7.0], 0.5, 1.0), ([1.0, 7.0], 0.51, 7.0), ([1.0, 2.0, 3.0, 4.0], 0.25, 1.0), ([5.0], 0.99, 5.0)],
)
def test_a_quantile_is_the_value_of_the_nearest_rank(values: list[float], rank: float, wanted: float) -> None:
    assert found([values], [rank]) == [wanted]


@given(st.lists(st.lists(VALUES, min_size=1, max_size=40), min_size=1, max_size=5), st.sampled_from([0.25, 0.5, 0.75]))
def test_of_few_values_it_is_exact_however_they_were_merged(lists: list[list[float]], rank: float) -> None:
    values = sorted(each for values in lists for each in values)
    assert len(values) <= SKETCH_ITEMS
    assert found(lists, [rank]) == [values[math.ceil(rank * len(values)) - 1]]
