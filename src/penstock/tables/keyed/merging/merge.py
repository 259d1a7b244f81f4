"""One bucket of a batch: its runs meet the rows that are there, and the last write wins.

The runs are put in order first. Files that may hold one of their keys are asked for keys and sequences only; a file is
written anew if a row of it is replaced or deleted, each for itself, so that rows stay with those that came with them.
New keys make chunks of their own. Everything is worked out on row numbers; the rows themselves are only taken, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.names import Content, content_of
from penstock.lake.delta.files import ActiveFile
from penstock.tables.keyed.layout import DELETE, Layout, key_frame, newer, older, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, NewName, digest_of, file_schema
from penstock.tables.keyed.merging.fold import Combined, fold, merged_rows, newest_rows
from penstock.tables.keyed.merging.packing import Places, in_order, last_of_key, packed
from penstock.tables.keyed.merging.runs import RunPart, read_part
from penstock.tables.keyed.merging.tombstones import (
    DELETED_AT,
    deleted_now,
    newest,
    read_tombstones,
    tombstone_schema,
    write_tombstones,
)


class Meeting(StrEnum):
    """What becomes of the rows that are there when others come."""

    NEWER = "newer"
    """A row is replaced by a newer one of its key."""
    NOT_OLDER = "not older"
    """Also by one that is as new: files that are loaded again replace what they brought before."""
    PARTITIONS = "partitions"
    """All rows with a partition key that comes are replaced."""
    ALL = "all"
    """All rows of the table are replaced."""
    BULK = "bulk"
    """Rows are added without looking any up."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket that a batch touches."""

    bucket: int
    runs: tuple[RunPart, ...]
    files: tuple[ActiveFile, ...] = ()
    """Those that may hold keys of the runs."""
    tombstones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeFlow:
    """What every task of a merge needs to know; it travels to the workers."""

    store: ChunkStore
    name: NewName
    tombstones_url: str
    meeting: Meeting = Meeting.NEWER
    now: float = 0.0
    """When rows are deleted."""

    @property
    def tombstones(self) -> ChunkStore:
        schema = file_schema(tombstone_schema(self.store.layout, self.store.schema))
        return replace(self.store, table_url=self.tombstones_url, schema=schema)


class BucketReport(msgspec.Struct, frozen=True):
    """What became of a bucket."""

    bucket: int
    files: tuple[StagedFile, ...] = ()
    removed: tuple[str, ...] = ()
    """Paths of the files that the new ones replace."""
    skipped: tuple[tuple[PartitionKey, int], ...] = ()
    """Records that lost to a newer one, by partition."""
    tombstones: tuple[StagedFile, ...] = ()
    unread: int = 0
    """Rows that were found to be there already by the names of files alone."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows of the runs: as they are, and what tells them apart."""

    rows: pa.Table
    """In the columns of the table's files."""
    frame: pl.DataFrame
    """By key and order: parts of the key, order, `key` (a number for each key, ascending), `gone`, and `place`, the
    number of the row."""
    sources: tuple[PartitionKey, ...]
    source: Places
    """Of each row the number of its source."""

    def filter(self, kept: pl.Series | pl.Expr) -> Incoming:
        return replace(self, frame=self.frame.filter(kept))


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A file of which rows may be replaced: the keys that meet it, and beside each the number of its row there."""

    path: str
    keys: Places
    old: Places


def merge_bucket(flow: MergeFlow, plan: BucketPlan) -> BucketReport:
    """Merge the runs of a bucket into its files; what is written is staged and not yet committed."""
    incoming = read_incoming(flow.store, plan.runs)
    counted = np.bincount(incoming.source, minlength=len(incoming.sources))
    incoming, unread = _without_known(flow, plan, incoming)
    deletes = incoming.frame.filter("gone").unique("key", keep="last", maintain_order=True)
    if plan.tombstones:
        dead = pl.concat([read_tombstones(flow.tombstones, path) for path in plan.tombstones])
        incoming = _after_tombstones(flow, plan, dead, incoming)
    incoming, rewrites = (_met_partitions if flow.meeting is Meeting.PARTITIONS else _met)(flow, plan, incoming)
    files, removed, used = _written(flow, plan, incoming, rewrites)
    kept = np.bincount(incoming.source[used], minlength=len(incoming.sources))
    dead_now = deleted_now(deletes, flow.store.layout, flow.now)
    tombstones = write_tombstones(flow.tombstones, plan.bucket, dead_now, flow.name)
    lost = zip(incoming.sources, (counted - kept).tolist(), strict=True)
    skipped = tuple((key, count) for key, count in lost if count)
    return BucketReport(plan.bucket, files, removed, skipped, tombstones, unread)


def read_incoming(store: ChunkStore, runs: Sequence[RunPart]) -> Incoming:
    """The rows of all runs of a bucket, in the order of key and sequence."""
    layout = store.layout
    sources = tuple(dict.fromkeys(part.source for part in runs))
    batches = [read_part(store.storage, part) for part in runs]
    # The table may have got columns since the runs were written.
    fitted = [fit_columns(batch.drop_columns(DELETE), store.schema) for batch in batches]
    rows = pa.Table.from_batches(fitted).combine_chunks()
    frame = key_frame(layout, rows).hstack(order_frame(layout, rows))
    keys = packed([frame[name] for name in layout.key_names])
    source: Places = np.repeat([sources.index(part.source) for part in runs], [batch.num_rows for batch in batches])
    # Rows of one load have the same order: those of a later file are the newer ones.
    places = in_order(keys, [*(frame[name] for name in order_columns(layout)), pl.Series(source)])
    if layout.merge:
        # Values of several records make a row: those of one key have to be neighbours.
        rows, source = rows.take(pa.array(places)), source[places]
    gone = pl.Series("gone", pl.from_arrow(pa.chunked_array([batch.column(DELETE) for batch in batches])))
    ends = last_of_key(keys[places])
    frame = frame.with_columns(gone)[places].with_columns(
        pl.Series("key", np.cumsum(ends) - ends, pl.Int64),
        pl.Series("place", np.arange(len(places)) if layout.merge else places),
    )
    return Incoming(rows, frame, sources, source)


def _without_known(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, int]:
    """Leave out whole chunks that are there already, by the names of files (RULES K4): nothing is read for them.

    Not where rows are deleted or replaced within the batch: then the chunks are not cut as they were.
    """
    contents = {content for file in plan.files if (content := content_of(file.path)) is not None}
    frame = incoming.frame
    is_cut_alike = len(frame) and not frame["gone"].any() and frame["key"][-1] == len(frame) - 1
    if flow.meeting is Meeting.PARTITIONS or not contents or not is_cut_alike:
        return incoming, 0
    sizes = {content.rows for content in contents}
    known = np.zeros(len(frame), np.bool_)
    for first in range(0, len(frame), flow.store.chunk_rows):
        places = frame["place"][first : first + flow.store.chunk_rows]
        if len(places) in sizes:
            content = Content(len(places), digest_of(incoming.rows.take(places.to_arrow())))
            known[first : first + len(places)] = content in contents
    return incoming.filter(pl.Series(~known)), int(known.sum())


def _after_tombstones(flow: MergeFlow, plan: BucketPlan, dead: pl.DataFrame, incoming: Incoming) -> Incoming:
    """The rows that are not older than a delete of their key in an earlier batch.

    A key that has a row in spite of that got it from an overwrite. For later loads the delete does not count any more,
    only that row does.
    """
    layout = flow.store.layout
    orders = {name: f"{name}_dead" for name in order_columns(layout)}
    deletes = newest(layout, dead).drop(DELETED_AT).rename(orders)
    frame = incoming.frame.join(deletes, on=layout.key_names, how="left", maintain_order="left")
    alive = ~older(layout, "_dead").fill_null(False)
    if flow.meeting is Meeting.NOT_OLDER:
        dead_keys = frame.filter(~alive).unique("key", keep="first", maintain_order=True)
        held = [_old_rows(flow.store, file, dead_keys)["key"].to_list() for file in plan.files]
        alive = alive | pl.col("key").is_in([key for keys in held for key in keys])
    return replace(incoming, frame=frame.filter(alive).select(incoming.frame.columns))


def _met(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, list[_Rewrite]]:
    """The rows that are newer than those that are there, and the files of which rows are replaced.

    With partial updates an older row may have a value that the row there lacks: which ones count is seen later.
    """
    frame, merges = incoming.frame, flow.store.layout.merge
    stays = _stays(flow)
    last = frame.filter(last_of_key(frame["key"].to_numpy()))
    rewrites: list[_Rewrite] = []
    for file in plan.files:
        pairs = _old_rows(flow.store, file, last)
        if not merges and len(pairs):
            lost = pairs.filter(stays)["key"]
            frame = frame.filter(~pl.col("key").is_in(lost.implode())) if len(lost) else frame
            pairs = pairs.filter(~stays)
        if len(pairs):
            rewrites.append(_Rewrite(file.path, pairs["key"].to_numpy(), pairs["old"].to_numpy()))
    return replace(incoming, frame=frame), rewrites


def _stays(flow: MergeFlow) -> pl.Expr:
    """Whether a row that is there stays when the newest record of its key comes."""
    layout = flow.store.layout
    return older(layout, "_old") if flow.meeting is Meeting.NOT_OLDER else ~newer(layout, "_old")


def _met_partitions(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, list[_Rewrite]]:
    """All rows, and the files that hold rows of the same partition keys: those go."""
    layout = flow.store.layout
    names = layout.key_names[: len(layout.partition_keys)]
    rewrites = []
    for file in plan.files:
        there = key_frame(layout, flow.store.read(file.path, layout.columns)).with_row_index("old")
        gone = there.join(incoming.frame, on=names, how="semi") if names else there
        if len(gone):
            rewrites.append(_Rewrite(file.path, np.array([], np.int64), gone["old"].to_numpy()))
    return incoming, rewrites


def _old_rows(store: ChunkStore, file: ActiveFile, records: pl.DataFrame) -> pl.DataFrame:
    """The rows of a file whose keys come, one record for each, in the order of keys: `old` is the number of the row.

    Next to it are `key` and the order of the record, and the order of the row with the suffix `_old`.
    """
    layout, orders = store.layout, order_columns(store.layout)
    wanted = records.filter(_within(layout, file))
    # Without a key that may be there the file is not read.
    rows = store.read(file.path, layout.columns) if len(wanted) else store.schema.empty_table()
    there = key_frame(layout, rows)
    numbers = packed([wanted[name].append(there[name]) for name in layout.key_names])
    coming, held = numbers[: len(wanted)], numbers[len(wanted) :]
    at = np.minimum(np.searchsorted(coming, held), len(coming) - 1)
    old = np.flatnonzero(coming[at] == held) if len(held) else np.array([], np.int64)
    order = order_frame(layout, rows).rename({name: f"{name}_old" for name in orders})
    return wanted.select("key", *orders)[at[old]].hstack(order[old]).with_columns(pl.Series("old", old))


def _within(layout: Layout, file: ActiveFile) -> pl.Expr:
    """Whether a key can be in a file, by the bounds of its columns."""
    inside: pl.Expr = pl.lit(True)
    for name, part in zip(layout.key_names, layout.parts, strict=True):
        bounds = file.spans.get(part.column) if part.function == "column" else None
        if bounds is not None:
            inside = inside & (pl.col(name) >= bounds[0]) & (pl.col(name) <= bounds[1])
    return inside


def _written(
    flow: MergeFlow, plan: BucketPlan, incoming: Incoming, rewrites: list[_Rewrite]
) -> tuple[tuple[StagedFile, ...], tuple[str, ...], Places]:
    """Write what changes: files whose rows are replaced, and new keys.

    Returns the files, those that they replace, and the records that had an effect.
    """
    puts = fold(incoming.frame)
    files: list[StagedFile] = []
    removed: list[str] = []
    used: list[Places] = []
    for rewrite in rewrites:
        before = flow.store.read(rewrite.path)
        rows, effective = _replaced(flow, incoming, puts, rewrite, before)
        used.append(effective)
        if rows is not before:
            removed.append(rewrite.path)
            files += flow.store.write(rows, plan.bucket, flow.name)
    placed = np.concatenate([np.array([], np.int64), *(each.keys for each in rewrites)])
    fresh = _combined(flow, incoming, puts.filter(pl.Series(~np.isin(puts["key"].to_numpy(), placed))))
    used.append(fresh.used)
    rows = fresh.rows if fresh.alive.all() else fresh.rows.filter(pa.array(fresh.alive))
    files += flow.store.write(rows, plan.bucket, flow.name)
    return tuple(files), tuple(removed), np.concatenate(used)


def _combined(flow: MergeFlow, incoming: Incoming, puts: pl.DataFrame, base: pa.Table | None = None) -> Combined:
    if not flow.store.layout.merge:
        return newest_rows(incoming.rows, puts)
    ties_replace = flow.meeting is Meeting.NOT_OLDER
    return merged_rows(flow.store.layout, incoming.rows, puts, base, ties_replace=ties_replace)


def _replaced(
    flow: MergeFlow, incoming: Incoming, puts: pl.DataFrame, rewrite: _Rewrite, rows: pa.Table
) -> tuple[pa.Table, Places]:
    """The rows of a file, with others in the places of those that the batch replaces; deleted ones are gone.

    Without a change they are the same object. Also returns the records that had an effect.
    """
    kept = np.ones(rows.num_rows, np.bool_)
    kept[rewrite.old] = False
    if not len(rewrite.keys):
        return rows.filter(pa.array(kept)), rewrite.keys
    met = pl.DataFrame({"key": rewrite.keys, "old": rewrite.old})
    puts = puts.join(met, on="key", how="inner", maintain_order="left")
    old = puts["old"].to_numpy()
    base = rows.take(pa.array(old)) if flow.store.layout.merge else None
    fresh = _combined(flow, incoming, puts, base)
    if not fresh.changed.any():
        return rows, fresh.used
    kept[old] = fresh.alive
    places = np.arange(rows.num_rows)
    places[old[fresh.changed]] = rows.num_rows + np.flatnonzero(fresh.changed)
    both = pa.concat_tables([rows, fresh.rows]).combine_chunks()
    return both.take(pa.array(places[kept])), fresh.used
