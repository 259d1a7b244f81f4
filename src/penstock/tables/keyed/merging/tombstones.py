"""Deleted keys with the sequence of their delete, so that an older update cannot bring a row back (RULES K2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

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


def read_tombstones(flow: MergeFlow, paths: Iterable[str]) -> dict[str, pl.DataFrame]:
    """The deletes in each of the files."""
    store = store_of(flow)
    return {path: pl.DataFrame(pl.from_arrow(store.read(path))) for path in paths}


def newest(layout: Layout, tombstones: pl.DataFrame) -> pl.DataFrame:
    """Of each key the newest delete, in the order of the keys."""
    ordered = tombstones.sort([*layout.key_names, *order_columns(layout)])
    return ordered.unique(layout.key_names, keep="last", maintain_order=True)


def write_tombstones(
    flow: MergeFlow, bucket: int, deletes: pl.DataFrame, joined: Sequence[pl.DataFrame]
) -> Iterator[StagedFile]:
    """Stage the deletes of a batch, together with earlier ones whose time is not over."""
    if not len(deletes) and not joined:
        return iter(())
    layout, store = flow.store.layout, store_of(flow)
    names = [*layout.key_names, *order_columns(layout)]
    now = datetime.fromtimestamp(flow.now, UTC)
    rows = deletes.select(names).with_columns(pl.lit(now, pl.Datetime("us", "UTC")).alias(DELETED_AT))
    if joined:
        oldest = flow.now - flow.tombstone_retention_seconds
        rows = newest(layout, unexpired(pl.concat([rows, *joined]), oldest))
    return store.write(rows.to_arrow().cast(store.schema), bucket, flow.naming.fresh)


def unexpired(tombstones: pl.DataFrame, oldest: float) -> pl.DataFrame:
    """Those of deletes since then."""
    return tombstones.filter(pl.col(DELETED_AT).dt.epoch("us") >= oldest * 1_000_000)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as Delta has it: Polars speaks of large texts and views."""
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or kind == pa.binary_view() else kind
