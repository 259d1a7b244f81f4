"""Folds the records of a key into its row. Pure.

Either the newest record is the row, or, with partial updates, each value is that of the newest record that has one. In
both cases only the order of the records matters, not the batches in which they arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.spans import Mask
from penstock.tables.keyed.layout import SEQUENCES, Layout, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import digest_of
from penstock.tables.keyed.merging.packing import Places, last_of_key, packed

PUTS = {"key": pl.Int64, "first": pl.Int64, "last": pl.Int64, "dead": pl.Int64, "alive": pl.Boolean}


@dataclass(frozen=True, slots=True)
class Combined:
    """The result for each key, in order."""

    rows: pa.Table
    alive: Mask
    """Whether a key has a row."""
    changed: Mask
    """Whether its row changed or was deleted."""
    used: Places
    """The records that had an effect."""


def fold(frame: pl.DataFrame) -> pl.DataFrame:
    """Fold records that are in the order of key and sequence to a row for each `key`.

    A key is `alive` if its last record does not delete it. Its values come from the records `first` to `last`. `dead`
    is the last record that deletes the key, or -1.
    """
    key, gone, place = (frame[name].to_numpy() for name in ("key", "gone", "place"))
    ends = last_of_key(key)
    index = np.arange(len(key))
    starts = index[np.concatenate([[True], ends[:-1]])[: len(key)]]
    dead = np.maximum.accumulate(np.where(gone, index, -1))[ends]
    deleted = dead >= starts
    first = np.where(deleted, np.minimum(dead + 1, index[ends]), starts)
    puts = {
        "key": key[ends],
        "first": place[first],
        "last": place[ends],
        "dead": np.where(deleted, place[dead], -1),
        "alive": ~gone[ends],
    }
    return pl.DataFrame(puts, schema=PUTS)


def newest_rows(records: pa.Table, puts: pl.DataFrame) -> Combined:
    """The newest record of each key."""
    last = puts["last"].to_numpy()
    return Combined(records.take(pa.array(last)), puts["alive"].to_numpy(), np.ones(len(puts), np.bool_), last)


def merged_rows(
    layout: Layout, records: pa.Table, puts: pl.DataFrame, base: pa.Table | None = None, *, ties_replace: bool = False
) -> Combined:
    """The newest value of each key and column after the last delete.

    `base` has the existing row of each key. Its values have the order of the row, except those that `_sequences`
    names: they are older. With `ties_replace` a record also replaces values of the same order.
    """
    ranks = _Ranks.of(layout, records, records.slice(0, 0) if base is None else base)
    first, last, dead_at, inserts = (puts[name].to_numpy() for name in ("first", "last", "dead", "alive"))
    there = np.zeros(len(puts), np.int64) if base is None else ranks.base
    dead = np.where(dead_at >= 0, ranks.records[dead_at], 0)
    newest = np.maximum(ranks.records[last], there)
    taken, dropped = np.zeros(len(puts), np.bool_), np.zeros(len(puts), np.bool_)
    used = np.zeros(records.num_rows, np.bool_)
    columns, older = [], []
    for name in records.schema.names:
        if name == SEQUENCES:
            continue
        column = records.column(name)
        at = np.where(inserts, _newest_values(column, first, last), -1)
        new_ranks = np.where(at >= 0, ranks.records[at], 0)
        old_ranks = np.zeros(len(puts), np.int64) if base is None else ranks.of_values(base, name)
        kept = np.where(old_ranks > dead, old_ranks, 0)
        takes = (new_ranks >= kept if ties_replace else new_ranks > kept) & (new_ranks > 0)
        taken |= takes
        dropped |= kept < old_ranks
        used[at[takes]] = True
        winner = np.where(takes, new_ranks, kept)
        both = column if base is None else pa.chunked_array([*column.chunks, *base.column(name).chunks])
        places = np.where(takes, at, np.where(winner > 0, records.num_rows + np.arange(len(puts)), 0))
        columns.append(both.take(pa.array(places, mask=winner == 0)))
        rows = np.flatnonzero((winner > 0) & (winner < newest))
        older.append((name, rows, winner[rows]))
    used[dead_at[(dead_at >= 0) & (dropped | (there == 0))]] = True
    kind = records.schema.field(SEQUENCES).type
    columns.insert(records.schema.get_field_index(SEQUENCES), ranks.listed(older, len(puts), kind))
    rows = pa.Table.from_arrays(columns, schema=records.schema)
    return Combined(rows, inserts | (there > dead), taken | dropped, np.flatnonzero(used))


def without_same(combined: Combined, base: pa.Table, keys: Places) -> Combined:
    """Without changes to rows that are in the table already; `keys` has the index of the key of each used record."""
    changed = combined.changed & ~(combined.alive & same_rows(combined.rows, base))
    return replace(combined, changed=changed, used=combined.used[changed[keys]])


def same_rows(rows: pa.Table, others: pa.Table) -> Mask:
    """Whether rows are the same bit for bit; those with nested values are, or are not, all together."""
    same = np.ones(rows.num_rows, np.bool_)
    for name in rows.schema.names:
        one, other = rows.column(name), others.column(name)
        if pa.types.is_nested(one.type):
            some = pc.or_(one.is_valid(), other.is_valid())
            if digest_of(rows.select([name]).filter(some)) != digest_of(others.select([name]).filter(some)):
                same &= ~some.to_numpy()
            continue
        if pa.types.is_floating(one.type):
            # Zeros of both signs are equal numbers, and NaN is not equal to itself.
            bits = pa.int32() if one.type.bit_width == 32 else pa.int64()
            one, other = (column.combine_chunks().view(bits) for column in (one, other))
        are_null = pc.and_(one.is_null(), other.is_null())
        same &= pc.coalesce(pc.equal(one, other), are_null).to_numpy(zero_copy_only=False)
    return same


def _newest_values(column: pa.ChunkedArray, first: Places, last: Places) -> Places:
    """The last record of each key that has a value; -1 if none has."""
    present = column.is_valid().to_numpy()
    newest: Places = np.maximum.accumulate(np.where(present, np.arange(len(column)), -1))
    at = newest[last] if len(last) else np.array([], np.int64)
    return np.where(at >= first, at, -1)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Orders as numbers from 1 on, newer ones are greater; 0 is older than all."""

    records: Places
    base: Places
    older_rows: Places
    """For each value of the base with an order of its own, the number of its row."""
    older_names: pa.Array
    older: Places
    orders: pl.DataFrame
    """At index rank - 1."""

    @classmethod
    def of(cls, layout: Layout, records: pa.Table, base: pa.Table) -> _Ranks:
        lists = base.column(SEQUENCES).combine_chunks()
        items = pc.list_flatten(lists)
        named = {name: pl.Series(pl.from_arrow(pc.struct_field(items, name))) for name in order_columns(layout)}
        frames = [order_frame(layout, records), order_frame(layout, base), pl.DataFrame(named)]
        orders = pl.concat(frames)
        _, first, ranks = np.unique(packed(orders.get_columns()), return_index=True, return_inverse=True)
        ranks = ranks.reshape(-1).astype(np.int64) + 1
        counts = np.cumsum([len(frame) for frame in frames])
        rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        of_records, of_base, older, _ = np.split(ranks, counts)
        return cls(of_records, of_base, rows, pc.struct_field(items, "column"), older, orders[first])

    def of_values(self, base: pa.Table, name: str) -> Places:
        """The rank of each value in a column of the base; 0 for null."""
        ranks = self.base.copy()
        of_column = pc.equal(self.older_names, name).to_numpy(zero_copy_only=False)
        ranks[self.older_rows[of_column]] = self.older[of_column]
        return np.where(base.column(name).is_valid().to_numpy(), ranks, 0)

    def listed(self, older: list[tuple[str, Places, Places]], count: int, kind: pa.DataType) -> pa.Array:
        """The column `_sequences`: for each row the columns with an older value, and the order of the value."""
        columns_of, rows_of, ranks_of = zip(*older, strict=True)
        rows = np.concatenate(rows_of)
        names = np.repeat(np.array(columns_of, np.object_), [len(held) for held in rows_of])
        orders = self.orders[np.concatenate(ranks_of) - 1]
        by_row = np.argsort(rows, kind="stable")
        columns = [column.combine_chunks() for column in orders[by_row].to_arrow().columns]
        fields = zip([pa.array(names[by_row], pa.string()), *columns], kind.value_type, strict=True)
        arrays = [column.cast(field.type) for column, field in fields]
        items = pa.StructArray.from_arrays(arrays, fields=list(kind.value_type))
        lengths = np.bincount(rows, minlength=count)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=pa.array(lengths == 0))
