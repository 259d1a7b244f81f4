"""One bucket of a batch: its runs meet the rows that are there, and the last write wins.

The runs are put in order first. Files that may hold one of their keys are asked for keys and sequences only; a file is
written anew if a row of it is replaced or deleted, each for itself, so that rows stay with those that came with them.
New keys make chunks of their own. Everything is worked out on row numbers; the rows themselves are only taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.tables.keyed.layout import Layout, key_frame, newer, order_columns, order_frame
from penstock.tables.keyed.merging.chunks import cut
from penstock.tables.keyed.merging.digest import digest_of
from penstock.tables.keyed.merging.fold import Folded, fold
from penstock.tables.keyed.merging.plan import BucketPlan, BucketReport, Meeting, MergeFlow, OldFile, report_batch
from penstock.tables.keyed.merging.runs import DELETE, last_of_key, read_parts
from penstock.tables.keyed.merging.tombstones import known_tombstones, write_tombstones

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Incoming:
    """The rows of the runs, by key and order: as they are, and what tells them apart."""

    rows: pa.Table
    """In the columns of the table's files."""
    frame: pl.DataFrame
    """Parts of the key, order, `key` (a number for each key), `gone`, `source`, and `place`, the number of the row."""
    sources: tuple[PartitionKey, ...]

    def filter(self, kept: pl.Series | pl.Expr) -> Incoming:
        return Incoming(self.rows, self.frame.filter(kept), self.sources)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A file of which rows are replaced: the keys that meet it, with the numbers of its rows."""

    file: OldFile
    met: pl.DataFrame
    """`key` and `old`, the number of the row in the file."""


@dataclass(frozen=True, slots=True)
class MergeStage:
    """What the tasks of a merge run: each gets the number of a plan."""

    flow: MergeFlow
    plans: tuple[BucketPlan, ...]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield report_batch(merge_bucket(self.flow, self.plans[number]))


def merge_bucket(flow: MergeFlow, plan: BucketPlan) -> BucketReport:
    """Merge the runs of a bucket into its files; what is written is staged and not yet committed."""
    layout = flow.store.layout
    incoming = read_incoming(flow, plan)
    counted = np.bincount(incoming.frame["source"], minlength=len(incoming.sources))
    incoming, unread = _without_known(flow, plan, incoming)
    deletes = _newest_deletes(layout, incoming)
    incoming = _after_tombstones(flow, plan, incoming)
    incoming, rewrites = _MEETINGS[flow.meeting](flow, plan, incoming)
    folded = fold(layout, incoming.frame)
    files, removed, added = _written(flow, plan, incoming, folded, rewrites)
    kept = np.bincount(incoming.frame["source"].filter(folded.counts), minlength=len(incoming.sources))
    tombstones = _tombstones(flow, plan, deletes)
    lost = zip(incoming.sources, (counted - kept).tolist(), strict=True)
    skipped = tuple((key, count) for key, count in lost if count)
    return BucketReport(plan.bucket, files, removed, added, skipped, tombstones, unread)


def read_incoming(flow: MergeFlow, plan: BucketPlan) -> Incoming:
    """The rows of all runs of the bucket, in the order of key and sequence."""
    layout, schema = flow.store.layout, flow.store.schema
    sources = tuple(dict.fromkeys(part.source for part in plan.runs))
    batches = read_parts(flow.store.storage, plan.runs)
    origin = [
        pa.repeat(sources.index(part.source), batch.num_rows) for part, batch in zip(plan.runs, batches, strict=True)
    ]
    rows = pa.Table.from_batches([_fitted(batch, schema) for batch in batches]).combine_chunks()
    gone = pa.chunked_array([batch.column(DELETE) for batch in batches])
    frame = key_frame(layout, rows).hstack(order_frame(layout, rows))
    frame = frame.with_columns(
        pl.Series("gone", pl.from_arrow(gone)),
        pl.Series("source", pl.from_arrow(pa.chunked_array(origin))).cast(pl.Int64),
    )
    frame = frame.with_row_index("place").sort([*layout.key_names, *order_columns(layout), "source", "place"])
    rows = rows.take(frame["place"].to_arrow())
    ends = last_of_key(layout, frame).to_numpy()
    numbers = np.cumsum(np.concatenate([[False], ends[:-1]])).astype(np.int64)
    frame = frame.with_columns(pl.Series("key", numbers), pl.int_range(pl.len()).cast(pl.Int64).alias("place"))
    return Incoming(rows, frame, sources)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a run in the columns that the table has now: others may have added some."""
    names = [name for name in batch.schema.names if name != DELETE]
    return fit_columns(batch.select(names), schema)


def _without_known(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, int]:
    """Leave out whole chunks that are there already, told by the names of files (RULES K4): nothing is read for them.

    Not where rows are deleted or replaced within the batch: then the chunks are not cut as they were.
    """
    digests = {(each.rows, each.digest) for each in plan.files if each.digest}
    sizes = {rows for rows, _ in digests}
    frame = incoming.frame
    looked_up = flow.meeting in (Meeting.NEWER, Meeting.NOT_OLDER)
    if not looked_up or not digests or frame["gone"].any() or (len(frame) and frame["key"][-1] != len(frame) - 1):
        return incoming, 0
    known = np.zeros(len(frame), np.bool_)
    first = 0
    for chunk in cut(incoming.rows, flow.store.chunk_rows):
        if chunk.num_rows in sizes and (chunk.num_rows, digest_of(chunk)) in digests:
            known[first : first + chunk.num_rows] = True
        first += chunk.num_rows
    return incoming.filter(pl.Series(~known)), int(known.sum())


def _newest_deletes(layout: Layout, incoming: Incoming) -> pl.DataFrame:
    gone = incoming.frame.filter(pl.col("gone"))
    return gone.unique("key", keep="last", maintain_order=True)


def _after_tombstones(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> Incoming:
    """The rows that are not older than a delete of their key that was seen before."""
    layout = flow.store.layout
    known = known_tombstones(flow, plan.tombstones)
    if known is None:
        return incoming
    renamed = known.rename({name: f"{name}_dead" for name in order_columns(layout)})
    frame = incoming.frame.join(renamed, on=layout.key_names, how="left", maintain_order="left")
    first, *_ = order_columns(layout)
    swapped = newer_than_mine(layout, "_dead")
    frame = frame.filter(pl.col(f"{first}_dead").is_null() | ~swapped)
    return Incoming(incoming.rows, frame.select(incoming.frame.columns), incoming.sources)


def newer_than_mine(layout: Layout, other: str) -> pl.Expr:
    """Whether the order in the columns with this suffix comes after the row's own."""
    same = pl.all_horizontal([pl.col(name) == pl.col(f"{name}{other}") for name in order_columns(layout)])
    return ~newer(layout, other) & ~same


def _met(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, list[_Rewrite]]:
    """The rows that are newer than those that are there, and the files of which rows are replaced."""
    layout = flow.store.layout
    keys = incoming.frame.unique("key", keep="first", maintain_order=True).select("key", *layout.key_names)
    lost = np.zeros(len(incoming.frame), np.bool_)
    rewrites: list[_Rewrite] = []
    for file in plan.files:
        old = _old_keys(flow, file, keys)
        if old is None:
            continue
        mine = incoming.frame.select("key", *order_columns(layout))
        beside = mine.join(old, on="key", how="left", suffix="_old", maintain_order="left")
        stays = ~newer(layout, "_old") if flow.meeting is Meeting.NEWER else newer_than_mine(layout, "_old")
        older = beside.select((pl.col("old").is_not_null() & stays).alias("it"))["it"].to_numpy()
        wins = beside.filter(pl.col("old").is_not_null() & pl.Series(~older))["key"].unique()
        lost |= older
        if len(wins):
            rewrites.append(_Rewrite(file, old.filter(pl.col("key").is_in(wins.implode())).select("key", "old")))
    return incoming.filter(pl.Series(~lost)), rewrites


def _met_partitions(flow: MergeFlow, plan: BucketPlan, incoming: Incoming) -> tuple[Incoming, list[_Rewrite]]:
    """All rows, and the files that hold rows of the same partition keys: those go."""
    layout = flow.store.layout
    names = layout.key_names[: len(layout.partition_keys)]
    rewrites = []
    for file in plan.files:
        there = key_frame(layout, flow.store.read(file.path, layout.columns)).with_row_index("old")
        gone = there.join(incoming.frame, on=names, how="semi") if names else there
        if len(gone):
            old = gone.select(pl.lit(-1, pl.Int64).alias("key"), pl.col("old").cast(pl.Int64))
            rewrites.append(_Rewrite(file, old))
    return incoming, rewrites


def _old_keys(flow: MergeFlow, file: OldFile, keys: pl.DataFrame) -> pl.DataFrame | None:
    """Which keys of the batch a file holds: `key`, `old` and the order of the rows; None if it holds none."""
    layout = flow.store.layout
    candidates = keys.filter(_within(layout, file))
    if not len(candidates):
        return None
    rows = flow.store.read(file.path, layout.columns)
    there = key_frame(layout, rows).hstack(order_frame(layout, rows)).with_row_index("old")
    found = there.join(candidates, on=layout.key_names, how="inner")
    return found.select("key", pl.col("old").cast(pl.Int64), *order_columns(layout)) if len(found) else None


def _within(layout: Layout, file: OldFile) -> pl.Expr:
    """Whether a key can be in a file, by the bounds of its columns."""
    inside: pl.Expr = pl.lit(True)
    for name, part in zip(layout.key_names, layout.parts, strict=True):
        bounds = file.bounds.get(part.column) if part.function == "column" else None
        if bounds is not None:
            inside = inside & (pl.col(name) >= bounds[0]) & (pl.col(name) <= bounds[1])
    return inside


def _written(
    flow: MergeFlow, plan: BucketPlan, incoming: Incoming, folded: Folded, rewrites: list[_Rewrite]
) -> tuple[tuple[StagedFile, ...], tuple[str, ...], int]:
    """Write what changes: files whose rows are replaced, small ones that are put together, and new keys."""
    files: list[StagedFile] = []
    removed: list[str] = []
    placed: list[pl.Series] = []
    by_path = {each.file.path: each for each in rewrites}
    joined: list[pa.Table] = []
    gone = 0
    for path in [*by_path, *sorted(plan.joined - by_path.keys())]:
        rewrite = by_path.get(path)
        rows = flow.store.read(path)
        removed.append(path)
        gone += rows.num_rows
        if rewrite is not None:
            placed.append(rewrite.met["key"])
            rows = flow.store.sorted(_replaced(incoming, folded, rewrite, rows))
        if path in plan.joined:
            joined.append(rows)
        else:
            files += flow.store.write(rows, plan.bucket, flow.naming.fresh)
    if joined:
        together = flow.store.sorted(pa.concat_tables(joined).combine_chunks())
        files += flow.store.write(together, plan.bucket, flow.naming.fresh)
    fresh = folded.puts if not placed else folded.puts.filter(~pl.col("key").is_in(pl.concat(placed).implode()))
    files += flow.store.write(folded.rows(incoming.rows, fresh), plan.bucket, flow.naming.fresh)
    return tuple(files), tuple(removed), sum(file.rows for file in files) - gone


def _replaced(incoming: Incoming, folded: Folded, rewrite: _Rewrite, rows: pa.Table) -> pa.Table:
    """The rows of a file with those that the batch replaces; deleted ones are gone."""
    kept = np.ones(rows.num_rows, np.bool_)
    kept[rewrite.met["old"].to_numpy()] = False
    puts = folded.puts.join(rewrite.met, on="key", how="inner", maintain_order="left")
    fresh = folded.rows(incoming.rows, puts, rows)
    return pa.concat_tables([rows.filter(pa.array(kept)), fresh]).combine_chunks()


def _tombstones(flow: MergeFlow, plan: BucketPlan, deletes: pl.DataFrame) -> tuple[StagedFile, ...]:
    if not len(deletes):
        return ()
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    return tuple(write_tombstones(flow, plan.bucket, deletes, now))


_Meet = Callable[[MergeFlow, BucketPlan, Incoming], tuple[Incoming, list[_Rewrite]]]
_MEETINGS: Mapping[Meeting, _Meet] = {
    Meeting.NEWER: _met,
    Meeting.NOT_OLDER: _met,
    Meeting.PARTITIONS: _met_partitions,
    Meeting.NONE: lambda flow, plan, incoming: (incoming, []),
}
