"""The records of a quarantine, cut into runs of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.delta.table import Table
from penstock.lake.maintenance.compaction import Limit, gather
from penstock.logs.log import Partition, Slice
from penstock.tables.quarantine.rows import own_files, own_rows, where

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
    rows: Limit[pa.Table] = Limit(lambda piece: piece.num_rows, options.run_rows_max, firm=True)
    size: Limit[pa.Table] = Limit(lambda piece: piece.nbytes, options.run_bytes_max)
    for pieces in gather(_pieces(quarantine, choose, options), rows, size):
        yield from map(_chunk, _lives_apart(pieces))


def _pieces(quarantine: Table, choose: Choice, options: ReplayOptions) -> Iterator[pa.Table]:
    """Rows cut so that a piece fits into a run and is of one life of one topic."""
    for file in own_files(quarantine):
        for rows in own_rows(quarantine, file):
            if options.error_contains:
                rows = rows.filter(pc.match_substring(rows.column("error"), options.error_contains))
            chosen = choose(rows)
            for life in chosen.select(["topic", "topic_id"]).group_by(["topic", "topic_id"]).aggregate([]).to_pylist():
                mine = chosen.filter(where(chosen, **life))
                for start in range(0, mine.num_rows, options.run_rows_max):
                    yield mine.slice(start, options.run_rows_max)


def _lives_apart(pieces: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """The pieces, apart where a topic was recreated between them."""
    met: dict[str, list[str]] = {}
    apart: dict[int, list[pa.Table]] = {}
    for piece in pieces:
        topic, topic_id = piece["topic"][0].as_py(), piece["topic_id"][0].as_py()
        lives = met.setdefault(topic, [])
        if topic_id not in lives:
            lives.append(topic_id)
        apart.setdefault(lives.index(topic_id), []).append(piece)
    yield from apart.values()


def _chunk(pieces: Sequence[pa.Table]) -> Chunk:
    rows = pa.concat_tables(pieces)
    # As a log would give them.
    ordered = rows.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    ends = rows.group_by(["topic", "topic_id", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    slices = [
        Slice(
            Partition(each["topic"], each["topic_id"], each["partition"]),
            each["offset_min"],
            each["offset_max"] + 1,
            each["offset_min"],
        )
        for each in ends.to_pylist()
    ]
    return Chunk(ordered.select(_KAFKA_COLUMNS), tuple(sorted(slices, key=lambda each: each.partition)))


def _inside(rows: pa.Table, piece: Slice) -> pa.ChunkedArray:
    offsets = rows.column("offset")
    placed = where(rows, topic=piece.partition.topic, partition=piece.partition.number)
    return pc.and_(placed, pc.and_(pc.greater_equal(offsets, piece.read_from), pc.less(offsets, piece.end)))
