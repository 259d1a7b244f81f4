"""Merges the runs of a batch into one bucket: the last write wins.

The runs are sorted first. Of files that may have one of their keys, only keys and sequences are read. Where
few rows of a file are replaced or deleted, they are marked, and their new versions go to a new chunk with the new keys.
Where many are, the file is rewritten, by itself, so that rows written together stay together. The merge computes row
numbers; the rows themselves are copied once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.names import Content, content_of
from penstock.lake.compaction import CompactionLimits
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.vectors import bitmap_of
from penstock.tables.keyed.layout import DELETE, key_frame, older, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName, digest_of, file_schema
from penstock.tables.keyed.merging.fold import Combined, fold, merged_rows, newest_rows, without_same
from penstock.tables.keyed.merging.open_chunk import joined
from penstock.tables.keyed.merging.packing import Places, in_order, last_of_key, packed
from penstock.tables.keyed.merging.runs import RunPart, read_part
from penstock.tables.keyed.merging.search import old_rows
from penstock.tables.keyed.tombstones import (
    DELETED_AT,
    deleted_now,
    newest,
    read_tombstones,
    tombstone_schema,
    write_tombstones,
)

SMALL_ROWS = 8192
SMALL_BYTES = 16 * 1024 * 1024
MANY_SMALL = CompactionLimits(alike_min=8)
"""New versions of rows are in small files: so many of a bucket and of one size become one with the next batch."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket that a batch touches."""

    bucket: int
    runs: tuple[RunPart, ...]
    files: tuple[ActiveFile, ...] = ()
    """Files to merge with; an overwrite has none."""
    tombstones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeFlow:
    """The input of every task of a merge; it is sent to the workers."""

    store: ChunkStore
    name: NewName
    tombstones_url: str
    ties_replace: bool = False
    """Whether a row also replaces one of the same order: a reloaded file replaces its earlier rows."""
    rewrite_share: float = 0.0
    """Up to this share of the rows of a file are marked in a deletion vector; where more change, it is rewritten."""
    now: float = 0.0
    """The `deleted_at` of tombstones."""

    @property
    def tombstones(self) -> ChunkStore:
        schema = file_schema(tombstone_schema(self.store.layout, self.store.schema))
        return replace(self.store, table_url=self.tombstones_url, schema=schema)


class Mark(msgspec.Struct, frozen=True):
    """The rows of a file that are deleted from now on: all of them, also those of its vector before."""

    path: str
    rows: int
    bitmap: bytes


class BucketReport(msgspec.Struct, frozen=True):
    """The outcome of a bucket."""

    bucket: int
    files: tuple[StagedFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Paths of the files that the new ones replace."""
    skipped: tuple[tuple[PartitionKey, int], ...] = ()
    """Records that lost to a newer one, by partition."""
    tombstones: tuple[StagedFile, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows of the runs, and their keys and orders."""

    rows: pa.Table
    """In the columns of the table's files."""
    frame: pl.DataFrame
    """Sorted by key and order: parts of the key, order, `key` (an ascending number per key), `gone`, and `place`, the
    number of the row."""
    sources: tuple[PartitionKey, ...]
    source: Places
    """The index of the source of each row."""


Matches = list[tuple[ActiveFile, pl.DataFrame]]
"""Files with rows that may be replaced, each with the keys that it has, the numbers of their rows (`old`), and whether
the record has the order of the row (`tie`): a load may bring the same rows again."""


def merge_bucket(flow: MergeFlow, plan: BucketPlan) -> BucketReport:
    """Merge the runs of a bucket into its files; new files are staged, not committed."""
    incoming = read_incoming(flow.store, plan.runs)
    counted = np.bincount(incoming.source, minlength=len(incoming.sources))
    incoming = _without_present(flow, plan, incoming)
    deletes = incoming.frame.filter("gone").unique("key", keep="last", maintain_order=True)
    if plan.tombstones:
        dead = pl.concat([read_tombstones(flow.tombstones, path) for path in plan.tombstones])
        incoming = _after_tombstones(flow, plan, dead, incoming)
    incoming, matches = _matched(flow, plan, incoming)
    report, used = _written(flow, plan, incoming, matches)
    kept = np.bincount(incoming.source[used], minlength=len(incoming.sources))
    dead_now = deleted_now(deletes, flow.store.layout, flow.now)
    tombstones = write_tombstones(flow.tombstones, plan.bucket, dead_now, flow.name)
    lost = zip(incoming.sources, (counted - kept).tolist(), strict=True)
    skipped = tuple((key, count) for key, count in lost if count)
    return msgspec.structs.replace(report, skipped=skipped, tombstones=tombstones)


def read_incoming(store: ChunkStore, runs: Sequence[RunPart]) -> Incoming:
    """The rows of all runs of a bucket, in the order of key and sequence."""
    layout = store.layout
    sources = tuple(dict.fromkeys(part.source for part in runs))
    batches = [read_part(store.storage, part) for part in runs]
    # Columns may have been added to the table since the runs were written.
    fitted = [fit_columns(batch.drop_columns(DELETE), store.schema) for batch in batches]
    rows = joined([pa.Table.from_batches(fitted)])
    frame = key_frame(layout, rows).hstack(order_frame(layout, rows))
    keys = packed([frame[name] for name in layout.key_names])
    source: Places = np.repeat([sources.index(part.source) for part in runs], [batch.num_rows for batch in batches])
    # Rows of one load have the same order: those of a later file are the newer ones.
    places = in_order(keys, [*(frame[name] for name in order_columns(layout)), pl.Series(source)])
    if layout.merge:
        # Values of several records form a row: records of a key must be adjacent.
        rows, source = rows.take(pa.array(places)), source[places]
    gone = pl.Series("gone", pl.from_arrow(pa.chunked_array([batch.column(DELETE) for batch in batches])))
    ends = last_of_key(keys[places])
    frame = frame.with_columns(gone)[places].with_columns(
        pl.Series("key", np.cumsum(ends) - ends, pl.Int64),
        pl.Series("place", np.arange(len(places)) if layout.merge else places),
    )
    return Incoming(rows, frame, sources, source)


def _without_present(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> Incoming:
    """Drop whole chunks that the table already has, by the names of files (RULES K4), without reading them.

    Not if the batch deletes or replaces its own rows: then its chunks begin at other rows.
    """
    whole = (file.path for file in plan.files if file.vector is None)
    contents = {content for path in whole if (content := content_of(path)) is not None}
    frame = incoming.frame
    is_cut_alike = len(frame) and not frame["gone"].any() and frame["key"][-1] == len(frame) - 1
    if not contents or not is_cut_alike:
        return incoming
    sizes = {content.rows for content in contents}
    present = np.zeros(len(frame), np.bool_)
    for first in range(0, len(frame), flow.store.chunk_rows):
        places = frame["place"][first : first + flow.store.chunk_rows]
        if len(places) in sizes:
            content = Content(len(places), digest_of(incoming.rows.take(places.to_arrow())))
            present[first : first + len(places)] = content in contents
    return replace(incoming, frame=frame.filter(pl.Series(~present)))


def _after_tombstones(flow: MergeFlow, plan: BucketPlan, dead: pl.DataFrame, incoming: Incoming) -> Incoming:
    """The rows that are not older than a delete of their key in an earlier batch.

    A deleted key that has a row got it from an overwrite. Later loads compare with that row and ignore the delete.
    """
    layout = flow.store.layout
    orders = {name: f"{name}_dead" for name in order_columns(layout)}
    deletes = newest(layout, dead).drop(DELETED_AT).rename(orders)
    frame = incoming.frame.join(deletes, on=layout.key_names, how="left", maintain_order="left")
    alive = ~older(layout, "_dead").fill_null(False)
    if flow.ties_replace:
        dead_keys = frame.filter(~alive).unique("key", keep="first", maintain_order=True)
        held = [old_rows(flow.store, file, dead_keys)["key"].to_list() for file in plan.files]
        alive = alive | pl.col("key").is_in([key for keys in held for key in keys])
    return replace(incoming, frame=frame.filter(alive).select(incoming.frame.columns))


def _matched(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, Matches]:
    """The rows that are newer than those of the table, and the files with rows to replace.

    With partial updates an older row may have a value that the table's row lacks, so all are kept for the fold.
    """
    frame, merges = incoming.frame, flow.store.layout.merge
    stays = ~pl.col("newer") & ~pl.col("tie") if flow.ties_replace else ~pl.col("newer")
    last = frame.filter(last_of_key(frame["key"].to_numpy()))
    matches: Matches = []
    for file in plan.files:
        pairs = old_rows(flow.store, file, last)
        if not merges and len(pairs):
            lost = pairs.filter(stays)["key"]
            frame = frame.filter(~pl.col("key").is_in(lost.implode())) if len(lost) else frame
            pairs = pairs.filter(~stays)
        if len(pairs):
            matches.append((file, pairs))
    return replace(incoming, frame=frame), matches


def _written(flow: MergeFlow, plan: BucketPlan, incoming: Incoming, matches: Matches) -> tuple[BucketReport, Places]:
    """Mark replaced rows, or rewrite their files, and write new rows. Returns also the records that had an effect."""
    puts, store = fold(incoming.frame), flow.store
    files: list[StagedFile] = []
    removed: list[str] = []
    marks: list[Mark] = []
    used: list[Places] = []
    fresh: list[pa.Table] = []
    small = {file.path: file for file in _many_small(flow, plan)}
    there = pl.concat([pairs["key"] for _, pairs in matches]) if matches else pl.Series(dtype=pl.Int64)
    new = puts.filter(~pl.col("key").is_in(there.implode()))
    for file, pairs in matches:
        hits = puts.join(pairs, on="key", maintain_order="left")
        old = hits["old"].to_numpy()
        whole = store.read(file.path) if file.path in small or not _marks(flow, file, len(old)) else None
        base = None
        if store.layout.merge or pairs["tie"].any():
            base = store.read_at(file.path, old) if whole is None else whole.take(pa.array(old))
        combined = _combined(flow, incoming, hits, base)
        used.append(combined.used)
        count = int(np.count_nonzero(combined.changed))
        if not count:
            continue
        deleted = store.deleted(file)
        if whole is None or (file.path not in small and _marks(flow, file, count)):
            gone = np.concatenate([deleted, old[combined.changed]])
            marks.append(Mark(file.path, len(gone), bitmap_of(gone)))
            fresh.append(combined.rows.filter(pa.array(combined.changed & combined.alive)))
            continue
        removed.append(file.path)
        rows = _replaced(whole, old, combined, deleted)
        if small.pop(file.path, None) is None:
            files += store.write(rows, plan.bucket, flow.name)
        else:
            fresh.append(rows)
    inserts = _combined(flow, incoming, new)
    used.append(inserts.used)
    # Without updates the new rows are in order already.
    rows = inserts.rows if inserts.alive.all() else inserts.rows.filter(pa.array(inserts.alive))
    if rows.num_rows or fresh:
        fresh += map(store.left, small.values())
        removed += small
    rows = store.sorted([rows, *fresh]) if fresh else rows
    files += store.write(rows, plan.bucket, flow.name)
    return BucketReport(plan.bucket, tuple(files), tuple(removed), marks=tuple(marks)), np.concatenate(used)


def _many_small(flow: MergeFlow, plan: BucketPlan) -> list[ActiveFile]:
    """Small files that join the new rows of a batch, because their number makes every batch slower."""
    rows_max = min(flow.store.chunk_rows, SMALL_ROWS) if flow.rewrite_share else 0
    small = [file for file in plan.files if 0 < file.rows_left <= rows_max and file.size_bytes <= SMALL_BYTES]
    return next(iter(MANY_SMALL.worthwhile(small)), [])


def _marks(flow: MergeFlow, file: ActiveFile, count: int) -> bool:
    """Whether to mark so many rows of a file, instead of rewriting it."""
    return count <= flow.rewrite_share * (file.rows or 0) and count < file.rows_left


def _combined(flow: MergeFlow, incoming: Incoming, puts: pl.DataFrame, base: pa.Table | None = None) -> Combined:
    if not flow.store.layout.merge:
        combined = newest_rows(incoming.rows, puts)
        return combined if base is None else without_same(combined, base, np.arange(len(puts)))
    combined = merged_rows(flow.store.layout, incoming.rows, puts, base, ties_replace=flow.ties_replace)
    # With partial updates the records of a key are adjacent.
    keys = np.searchsorted(puts["last"].to_numpy(), combined.used)
    return combined if base is None else without_same(combined, base, keys)


def _replaced(rows: pa.Table, old: Places, fresh: Combined, deleted: Places) -> pa.Table:
    """The rows of a file, where the batch replaces or deletes those numbered `old`."""
    kept = np.ones(rows.num_rows, np.bool_)
    kept[deleted] = False
    kept[old] = fresh.alive
    places = np.arange(rows.num_rows)
    places[old[fresh.changed]] = rows.num_rows + np.flatnonzero(fresh.changed)
    both = joined([rows, fresh.rows])
    return both.take(pa.array(places[kept]))
