"""Quantile sketches of a series in a window: they merge, so that a day's quantiles come from its minutes.

A sketch of at most `SKETCH_ITEMS` values is exact; beyond it a rank is off by about one percent, whatever the number
of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from datasketches import kll_doubles_sketch

SKETCH_ITEMS = 200


def sketched(values: pl.Series) -> pl.Series:
    """A sketch for each list of values."""
    return pl.Series([_sketch(each).serialize() for each in values], dtype=pl.Binary)


def merged(sketches: pl.Series) -> pl.Series:
    """One sketch for each list of sketches; null if one of them is, because nobody sketched its points."""
    return pl.Series([_merged(each) for each in sketches], dtype=pl.Binary)


def quantiles(sketches: pl.Series, ranks: Sequence[float]) -> list[pl.Series]:
    """The quantiles of these ranks, a column for each; null where there is no sketch.

    By nearest rank: the least value that at least this share of the values does not exceed.
    """
    unknown = [None] * len(ranks)
    rows = [
        unknown if each is None else kll_doubles_sketch.deserialize(each).get_quantiles(list(ranks), True)
        for each in sketches
    ]
    return [pl.Series([row[index] for row in rows], dtype=pl.Float64) for index in range(len(ranks))]


def _sketch(values: pl.Series) -> kll_doubles_sketch:
    sketch = kll_doubles_sketch(SKETCH_ITEMS)
    sketch.update(values.to_numpy(writable=True))
    return sketch


def _merged(sketches: Sequence[bytes | None]) -> bytes | None:
    known = [each for each in sketches if each is not None]
    if len(known) < len(sketches):
        return None
    if len(known) == 1:
        return known[0]
    whole = kll_doubles_sketch(SKETCH_ITEMS)
    for each in known:
        whole.merge(kll_doubles_sketch.deserialize(each))
    return bytes(whole.serialize())
