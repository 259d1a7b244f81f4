"""Whether the files of a bucket hold together: sorted, within their statistics, as named, every key once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl
import pyarrow as pa

from penstock.tables.keyed.files import rows_key
from penstock.tables.keyed.layout import Layout, buckets_of, key_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, file_schema
from penstock.tables.keyed.merging.digest import digest_of
from penstock.tables.keyed.merging.plan import OldFile
from penstock.tables.keyed.spec import KeyedSpec


def stored_store(spec: KeyedSpec, schema: pa.Schema) -> ChunkStore:
    """Reads the files of a table."""
    return ChunkStore(spec.path, dict(spec.storage_options), file_schema(schema), spec.layout, spec.chunk_rows)


def bucket_faults(
    store: ChunkStore, bucket: int, files: Sequence[OldFile], numbers: Mapping[str, int]
) -> Iterator[str]:
    """What is wrong with a bucket."""
    frames = []
    for file in files:
        rows = store.read(file.path)
        keys = key_frame(store.layout, rows)
        yield from (f"{file.path}: {fault}" for fault in _file_faults(store.layout, bucket, file, rows, keys))
        frames.append(keys)
    if frames:
        together = pl.concat(frames)
        twice = len(together) - together.n_unique(store.layout.key_names)
        if twice:
            yield f"bucket {bucket}: {twice} rows have a key that another row has too"
    counted = [number for key, number in numbers.items() if key.endswith(rows_key("", bucket))]
    held = sum(each.rows for each in files)
    if held != sum(counted):
        yield f"bucket {bucket}: {held} rows, {sum(counted)} are counted: changed by another writer?"


def _file_faults(layout: Layout, bucket: int, file: OldFile, rows: pa.Table, keys: pl.DataFrame) -> Iterator[str]:
    if any(keys[name].null_count() for name in keys.columns):
        yield "a part of a key is null"
        return
    if not keys.with_row_index("place").sort(layout.key_names, maintain_order=True)["place"].is_sorted():
        yield "rows are not in the order of their keys"
    if (buckets_of(layout, keys) != bucket).any():
        yield f"rows are not of bucket {bucket}"
    if file.digest and digest_of(rows) != file.digest:
        yield "its rows are not those of its name"
    for name, part in zip(layout.key_names, layout.parts, strict=True):
        bounds = file.bounds.get(part.column) if part.function == "column" else None
        if bounds is not None and ((keys[name] < bounds[0]) | (keys[name] > bounds[1])).any():
            yield f"{part.column} has values outside the statistics"
