"""The records of a quarantine, cut into runs of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.delta.table import Table
from penstock.lake.maintenance.compaction import Limit, gather
from penstock.logs.log import Partition, Slice
from penstock.tables.quarantine.rows import files_of, read_file, where

_KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which records to replay, and how many in one run."""

    error_contains: str = ""
    """A text that the record's error must have."""
    run_rows_max: int = 50_000
    run_bytes_max: int = 32 * 1024 * 1024
    """Passed by at most one row group; Spark sends a run's records to its tasks inside a message."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records of one run; a topic has one incarnation among them."""

    rows: pa.Table
    slices: tuple[Slice, ...]
    """From the first to the last of the records of each partition; most offsets between may not be there."""

    def within(self, slices: Sequence[Slice]) -> pa.Table:
        inside = pa.chunked_array([pa.repeat(False, self.rows.num_rows)])
        for piece in slices:
            inside = pc.or_(inside, _inside(self.rows, piece))
        return self.rows.filter(inside)


Choice = Callable[[pa.Table], pa.Table]
"""Which of the rows of a quarantine are replayed at all."""


def chunks_of(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[Chunk]:
    """The quarantine of one version, oldest files first; a file that a removal replaces is read to its end."""
    rows: Limit[pa.Table] = Limit(lambda piece: piece.num_rows, options.run_rows_max, firm=True)
    size: Limit[pa.Table] = Limit(lambda piece: piece.nbytes, options.run_bytes_max)
    for pieces in gather(_pieces(quarantine, choose, options), rows, size):
        yield from map(_chunk, _split_incarnations(pa.concat_tables(pieces)))


def _pieces(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[pa.Table]:
    """The chosen rows, cut so that a piece fits into a run."""
    for file in files_of(quarantine):
        for rows in read_file(quarantine, file):
            if options.error_contains:
                rows = rows.filter(pc.match_substring(rows.column("error"), options.error_contains))
            chosen = choose(rows)
            for start in range(0, chosen.num_rows, options.run_rows_max):
                yield chosen.slice(start, options.run_rows_max)


def _split_incarnations(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows, apart where a topic was recreated: the tasks of a batch know a topic by its name alone."""
    while rows.num_rows:
        first_ids = rows.group_by("topic").aggregate([("topic_id", "min")]).column("topic_id_min")
        is_first = pc.is_in(rows.column("topic_id"), value_set=first_ids)
        yield rows.filter(is_first)
        rows = rows.filter(pc.invert(is_first))


def _chunk(rows: pa.Table) -> Chunk:
    # As a log would give them.
    ordered = rows.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    ends = rows.group_by(["topic", "topic_id", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    slices = [
        Slice(
            Partition(row["topic"], row["topic_id"], row["partition"]),
            row["offset_min"],
            row["offset_max"] + 1,
            row["offset_min"],
        )
        for row in ends.to_pylist()
    ]
    return Chunk(ordered.select(_KAFKA_COLUMNS), tuple(sorted(slices, key=lambda piece: piece.partition)))


def _inside(rows: pa.Table, piece: Slice) -> pa.ChunkedArray:
    offsets = rows.column("offset")
    placed = where(rows, topic=piece.partition.topic, partition=piece.partition.number)
    return pc.and_(placed, pc.and_(pc.greater_equal(offsets, piece.read_from), pc.less(offsets, piece.end)))
