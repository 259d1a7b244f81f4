"""The records of a quarantine, cut into runs of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.delta.table import Table
from penstock.logs.log import Partition, Slice
from penstock.tables.quarantine.rows import own_files, own_rows, partitions_of, where

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
    """The records of one run; a topic has one life among them."""

    rows: pa.Table
    slices: tuple[Slice, ...]
    """From the first to the last of the records of each partition; most offsets between may not be there."""

    def within(self, slices: Sequence[Slice]) -> pa.Table:
        wanted = pa.chunked_array([pa.repeat(False, self.rows.num_rows)])
        for each in slices:
            wanted = pc.or_(wanted, _inside(self.rows, each))
        return self.rows.filter(wanted)


Choice = Callable[[pa.Table], pa.Table]
"""Which of the rows of a quarantine are replayed at all."""


def chunks_of(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[Chunk]:
    """The quarantine of one version, oldest files first; a file that a removal replaces is read to its end."""
    gathering = _Gathering(options)
    for file in own_files(quarantine):
        for rows in own_rows(quarantine, file):
            if options.error_contains:
                rows = rows.filter(pc.match_substring(rows.column("error"), options.error_contains))
            for piece, lives in _pieces(choose(rows), options.run_rows_max):
                if not gathering.takes(piece, lives):
                    yield gathering.chunk()
                    gathering = _Gathering(options)
                gathering.add(piece, lives)
    if gathering.pieces:
        yield gathering.chunk()


@dataclass(slots=True)
class _Gathering:
    """Pieces of the quarantine on their way into a chunk."""

    options: ReplayOptions
    pieces: list[pa.Table] = field(default_factory=list)
    lives: dict[str, str] = field(default_factory=dict)

    def takes(self, piece: pa.Table, lives: dict[str, str]) -> bool:
        rows = piece.num_rows + sum(each.num_rows for each in self.pieces)
        size_bytes = sum(each.nbytes for each in self.pieces)
        one_life = all(self.lives.get(topic, topic_id) == topic_id for topic, topic_id in lives.items())
        return not self.pieces or (
            rows <= self.options.run_rows_max and size_bytes < self.options.run_bytes_max and one_life
        )

    def add(self, piece: pa.Table, lives: dict[str, str]) -> None:
        self.pieces.append(piece)
        self.lives |= lives

    def chunk(self) -> Chunk:
        rows = pa.concat_tables(self.pieces)
        # As a log would give them.
        ordered = rows.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
        return Chunk(ordered.select(_KAFKA_COLUMNS), tuple(_span(rows, each) for each in partitions_of(rows)))


def _pieces(rows: pa.Table, rows_max: int) -> Iterator[tuple[pa.Table, dict[str, str]]]:
    """Rows cut so that a piece fits into a run and has one life per topic."""
    lives = rows.select(["topic", "topic_id"]).group_by(["topic", "topic_id"]).aggregate([]).to_pylist()
    for life in lives:
        mine = rows if len(lives) == 1 else rows.filter(where(rows, **life))
        for start in range(0, mine.num_rows, rows_max):
            yield mine.slice(start, rows_max), {life["topic"]: life["topic_id"]}


def _span(rows: pa.Table, partition: Partition) -> Slice:
    mine = where(rows, topic=partition.topic, partition=partition.number)
    ends = pc.min_max(rows.filter(mine).column("offset")).as_py()
    return Slice(partition, ends["min"], ends["max"] + 1, ends["min"])


def _inside(rows: pa.Table, piece: Slice) -> pa.ChunkedArray:
    offsets = rows.column("offset")
    placed = where(rows, topic=piece.partition.topic, partition=piece.partition.number)
    return pc.and_(placed, pc.and_(pc.greater_equal(offsets, piece.read_from), pc.less(offsets, piece.end)))
