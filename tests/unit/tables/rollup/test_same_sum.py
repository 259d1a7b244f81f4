"""Two sums are the same in any order of additions, and differ if a value is missing."""

from __future__ import annotations

import random

import polars as pl
import pytest

from penstock.tables.rollup.proof.windows import added_at_most, same_sum


def judged(values: list[float], one: float, other: float) -> bool:
    row = {"min": [min(values)], "max": [max(values)], "count": [len(values)], "one": [one], "other": [other]}
    result = pl.DataFrame(row).select(same_sum(pl.col("one"), pl.col("other"), added_at_most()))
    return bool(result.item())


@pytest.mark.parametrize("seed", range(20))
def test_values_that_cancel_out_have_the_same_sum_in_every_order(seed: int) -> None:
    rng = random.Random(seed)
    amounts = [rng.uniform(1e5, 1e7) for _ in range(20)]
    values = [*amounts, *(-amount for amount in amounts)]
    shuffled = rng.sample(values, len(values))
    assert judged(values, sum(shuffled), sum(shuffled[:13]) + sum(shuffled[13:]))
    assert not judged(values, sum(shuffled), sum(shuffled[:-1]))
