"""Whether the files of a table are those that its commits left there, and hold together: as named, each key once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa

from penstock.flow.write.names import content_of
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.proof.files import named_paths
from penstock.tables.keyed.files import has_foreign_changes
from penstock.tables.keyed.layout import Layout, buckets_of, key_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.digest import digest_of
from penstock.tables.keyed.spec import KeyedSpec


def stored_store(spec: KeyedSpec, table: Table) -> ChunkStore:
    """Reads the files of a table: of the rows, or of tombstones."""
    schema = file_schema(table.schema)
    return ChunkStore(table.spec.path, dict(spec.storage_options), schema, spec.layout, spec.chunk_rows)


def foreign_faults(table: Table) -> Iterator[str]:
    """What another writer did to the files of a table."""
    strange = [file.path for file in table.active_files() if content_of(file.path) is None]
    if strange:
        yield named_paths("files were not written by Penstock", strange)
    elif has_foreign_changes(table):
        yield f"files of {table.spec.path} are not those that its commits left there: changed by another writer?"


def bucket_faults(store: ChunkStore, bucket: int, files: Sequence[ActiveFile]) -> Iterator[str]:
    """What is wrong with the rows of a bucket."""
    if not store.layout.has_bucket(bucket):
        yield f"{len(files)} files are in bucket {bucket}, which there is not"
        return
    frames = []
    for file in files:
        rows = store.read(file.path)
        keys = key_frame(store.layout, rows)
        faults = [*content_faults(file, rows), *_key_faults(store.layout, bucket, keys)]
        yield from (f"{file.path}: {fault}" for fault in faults)
        frames.append(keys)
    together = pl.concat(frames)
    twice = len(together) - together.n_unique(store.layout.key_names)
    if twice:
        yield f"bucket {bucket}: {twice} rows have a key that another row has too"


def content_faults(file: ActiveFile, rows: pa.Table) -> Iterator[str]:
    """Whether a file has the rows that its name tells, within its statistics."""
    content = content_of(file.path)
    if content is not None and digest_of(rows) != content.digest:
        yield "its rows are not those of its name"
    for name, span in file.spans.items():
        column = rows.column(name)
        nulls = file.nulls[name]
        outside = False
        if span is not None:
            values = pl.Series(pl.from_arrow(column))
            outside = bool(((values < span[0]) | (values > span[1])).any())
        if outside or nulls not in (None, column.null_count):
            yield f"{name} has values outside the statistics"


def _key_faults(layout: Layout, bucket: int, keys: pl.DataFrame) -> Iterator[str]:
    if any(keys[name].null_count() for name in keys.columns):
        yield "a part of a key is null"
        return
    if not keys.with_row_index("place").sort(layout.key_names, maintain_order=True)["place"].is_sorted():
        yield "rows are not in the order of their keys"
    if (buckets_of(layout, keys) != bucket).any():
        yield f"rows are not of bucket {bucket}"
