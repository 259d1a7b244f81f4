"""Digests of rows: 64 bits per row, the same for the same values, whatever file or batch they stand in. Pure.

Two different rows have the same digest by accident once in 2^64. Digests are good within one process only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

Digests = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(0xC2B2AE3D27D4EB4F)
_SEED = 7


def text_digest(text: str | None) -> np.uint64:
    found: np.uint64 = column_digests(pa.array([text], pa.string()))[0]
    return found


def row_digests(columns: Mapping[str, Digests], names: Iterable[str], constant: np.uint64) -> Digests:
    """One digest per row out of those of its columns; `constant` stands for what all of the rows have in common."""
    total: Digests = np.zeros(len(next(iter(columns.values()))) if columns else 0, dtype=np.uint64)
    for name in names:
        total = total + _mixed(columns[name] ^ text_digest(name))
    # Mixed once more: digests of rows are added up, and values must not move from one row to another unseen.
    return _mixed(total + constant)


def column_digests(values: pa.Array) -> Digests:
    """A digest per value; nested values are taken apart."""
    kind = values.type
    if pa.types.is_struct(kind):
        total: Digests = np.full(len(values), _EMPTY, dtype=np.uint64)
        for number in range(kind.num_fields):
            child = column_digests(pc.struct_field(values, number))
            total = _mixed(total ^ child) + np.uint64(number)
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        total = _list_digests(values)
    else:
        total = pl.Series(pl.from_arrow(values)).hash(_SEED).to_numpy().astype(np.uint64)
    if values.null_count:
        total = np.where(values.is_null().to_numpy(zero_copy_only=False), _NULL, total)
    return total


def _list_digests(values: pa.Array) -> Digests:
    """The items of each list with their places in it, added up."""
    if pa.types.is_map(values.type):
        pairs = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(pairs))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    items = column_digests(pc.list_flatten(values))
    owners = np.repeat(np.arange(len(values)), lengths)
    starts = np.cumsum(lengths) - lengths
    places = (np.arange(len(items)) - np.repeat(starts, lengths)).astype(np.uint64)
    total: Digests = np.full(len(values), _EMPTY, dtype=np.uint64) + lengths.astype(np.uint64)
    np.add.at(total, owners, _mixed(items ^ _mixed(places + np.uint64(1))))
    return _mixed(total)


def _mixed(numbers: Digests) -> Digests:
    """The finaliser of splitmix64."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Digests = mixed ^ (mixed >> np.uint64(31))
    return found
