"""Deleted keys with the order of their delete, so that an older update cannot bring a row back (RULES K2)."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pyarrow as pa

from penstock.flow.write.manifest import StagedFile
from penstock.tables.keyed.layout import BUCKET, Layout, key_frame, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName

DELETED_AT = "deleted_at"


def tombstone_schema(layout: Layout, schema: pa.Schema) -> pa.Schema:
    """The columns of the table of tombstones next to a table of this schema."""
    empty = schema.empty_table()
    columns = key_frame(layout, empty).hstack(order_frame(layout, empty)).to_arrow().schema
    plain = [pa.field(column.name, _plain(column.type)) for column in columns]
    return pa.schema([*plain, pa.field(DELETED_AT, pa.timestamp("us", "UTC")), pa.field(BUCKET, pa.int32())])


def read_tombstones(store: ChunkStore, path: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(store.read(path)))


def newest(layout: Layout, tombstones: pl.DataFrame) -> pl.DataFrame:
    """Of each key the newest delete, in the order of the keys."""
    ordered = tombstones.sort([*layout.key_names, *order_columns(layout)])
    return ordered.unique(layout.key_names, keep="last", maintain_order=True)


def deleted_now(deletes: pl.DataFrame, layout: Layout, now: float) -> pl.DataFrame:
    """The tombstones of deletes."""
    at = pl.lit(datetime.fromtimestamp(now, UTC), pl.Datetime("us", "UTC")).alias(DELETED_AT)
    return deletes.select(*layout.key_names, *order_columns(layout)).with_columns(at)


def retained(layout: Layout, tombstones: pl.DataFrame, oldest: float) -> pl.DataFrame:
    """Of each key the newest delete, without those from before `oldest`."""
    return newest(layout, tombstones.filter(pl.col(DELETED_AT).dt.epoch("us") >= oldest * 1_000_000))


def write_tombstones(store: ChunkStore, bucket: int, tombstones: pl.DataFrame, name: NewName) -> tuple[StagedFile, ...]:
    return tuple(store.write(tombstones.to_arrow().cast(store.schema), bucket, name))


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as Delta has it: Polars has large texts and views."""
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or kind == pa.binary_view() else kind
