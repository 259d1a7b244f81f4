"""Deleted keys with the sequence of their delete, so that an older update cannot bring a row back (RULES K2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pyarrow as pa

from penstock.flow.write.manifest import StagedFile
from penstock.tables.keyed.layout import BUCKET, Layout, key_frame, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.merging.plan import MergeFlow

DELETED_AT = "deleted_at"


def tombstone_schema(layout: Layout, schema: pa.Schema) -> pa.Schema:
    """The columns of the table of tombstones beside a table of this schema."""
    empty = schema.empty_table()
    found = key_frame(layout, empty).hstack(order_frame(layout, empty)).to_arrow().schema
    kinds = [pa.field(each.name, _plain(each.type)) for each in found]
    return pa.schema([*kinds, pa.field(DELETED_AT, pa.timestamp("us", "UTC")), pa.field(BUCKET, pa.int32())])


def store_of(flow: MergeFlow) -> ChunkStore:
    """Where tombstones are."""
    schema = tombstone_schema(flow.store.layout, flow.store.schema)
    kept = pa.schema([each for each in schema if each.name != BUCKET])
    return replace(flow.store, table_url=flow.tombstones_url, schema=kept)


def known_tombstones(flow: MergeFlow, paths: tuple[str, ...]) -> pl.DataFrame | None:
    """The newest delete of each key; None if there is none."""
    if not paths:
        return None
    store, layout = store_of(flow), flow.store.layout
    frames = [pl.DataFrame(pl.from_arrow(store.read(path))) for path in paths]
    return newest(layout, pl.concat(frames)).drop(DELETED_AT)


def newest(layout: Layout, tombstones: pl.DataFrame) -> pl.DataFrame:
    """Of each key the newest delete, in the order of the keys."""
    ordered = tombstones.sort([*layout.key_names, *order_columns(layout)])
    return ordered.unique(layout.key_names, keep="last", maintain_order=True)


def write_tombstones(flow: MergeFlow, bucket: int, gone: pl.DataFrame, deleted_at: pa.Scalar) -> Iterator[StagedFile]:
    """Stage what is remembered of deleted keys."""
    layout, store = flow.store.layout, store_of(flow)
    names = [*layout.key_names, *order_columns(layout)]
    rows = gone.select(names).to_arrow().append_column(DELETED_AT, pa.repeat(deleted_at, len(gone)))
    return store.write(rows.cast(store.schema), bucket, flow.naming.fresh)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as Delta has it: Polars speaks of large texts and views."""
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or kind == pa.binary_view() else kind
