"""Encodes keys as integers in the order of the keys; rows are sorted, compared and looked up by these. Pure.

Measured with keys of (device, time): a fifth of the CPU time of a sort by the columns themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.flow.spans import Mask

Numbers: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]

NUMBERS_MAX = 1 << 64


def packed(columns: Sequence[pl.Series]) -> Numbers:
    """A number for each row, in the order of the rows: by the first column, then by the next. Null comes first."""
    numbers, count = np.zeros(len(columns[0]), np.uint64), 1
    for column in columns:
        codes, width = _codes(column)
        if count * width > NUMBERS_MAX:
            numbers, count = _ranks(numbers)
        if count * width > NUMBERS_MAX:
            codes, width = _ranks(codes)
        numbers = numbers * np.uint64(width) + codes
        count *= width
    return numbers


def in_order(keys: Numbers, order: Sequence[pl.Series]) -> Places:
    """The row numbers sorted by key, then by order, then as they came."""
    places: Places = np.argsort(keys, kind="stable")
    ends = last_of_key(keys[places])
    if ends.all():
        return places
    # Most keys occur once: only the others are sorted by order.
    shared = np.flatnonzero(~ends | ~np.concatenate([[True], ends[:-1]]))
    rivals = places[shared]
    age = packed([column.gather(rivals) for column in order])
    places[shared] = rivals[np.lexsort((age, keys[rivals]))]
    return places


def last_of_key(keys: Numbers) -> Mask:
    """Whether a row is the last of its key; rows of a key must be adjacent."""
    ends = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=ends[:-1])
    return ends


def _codes(column: pl.Series) -> tuple[Numbers, int]:
    """Numbers in the order of the values, and an upper bound of them."""
    if not column.null_count():
        return _value_codes(column)
    values, count = _value_codes(column.drop_nulls())
    codes = np.zeros(len(column), np.uint64)
    codes[column.is_not_null().to_numpy()] = values + np.uint64(1)
    return codes, count + 1


def _value_codes(column: pl.Series) -> tuple[Numbers, int]:
    if not len(column):
        return np.zeros(0, np.uint64), 1
    if column.dtype in (pl.String, pl.Binary):
        return _text_codes(column)
    whole = np.asarray(column.to_physical().cast(pl.Int64).to_numpy(), np.int64)
    low, high = int(whole.min()), int(whole.max())
    if high - low + 1 >= NUMBERS_MAX // 2:
        return _ranks(whole)
    return (whole - low).astype(np.uint64), high - low + 1


def _text_codes(column: pl.Series) -> tuple[Numbers, int]:
    """Each distinct text is ranked once, however many rows have it."""
    encoded = column.to_arrow().dictionary_encode()
    texts = pl.Series(pl.from_arrow(encoded.dictionary))
    ranks = np.empty(len(texts), np.uint64)
    ranks[texts.arg_sort().to_numpy()] = np.arange(len(texts), dtype=np.uint64)
    return ranks[encoded.indices.to_numpy()], len(texts)


def _ranks(values: Numbers | Places) -> tuple[Numbers, int]:
    """Numbers without gaps, so that they are as small as can be."""
    distinct, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.uint64).reshape(-1), len(distinct)
