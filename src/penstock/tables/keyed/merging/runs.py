"""The rows of a task as sorted runs: what the merge reads, bucket by bucket.

A run is an Arrow file with a batch for each bucket, under the name of a staged file: no commit names it, and vacuum
takes it once its slice is behind the position. What it holds is told with it, so that the driver can plan the merge.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode import Decoder, decoder_for
from penstock.flow.task import Flow, RowWriter
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.lake.storage import Storage, open_storage
from penstock.tables.keyed.layout import (
    BUCKET,
    RESERVED,
    SEQUENCE,
    TIEBREAK,
    Layout,
    buckets_of,
    deletions,
    key_faults,
    key_frame,
    order_frame,
    sequences,
    tiebreaks,
)
from penstock.tables.keyed.layout import DELETE as DELETE
from penstock.tables.keyed.merging.packing import Places, in_order, last_of_key, packed

RUN_BYTES_MAX = 192 * 1024 * 1024
"""Of rows that wait in memory for a run (I6)."""
TOMBSTONE_WITHOUT_KEY = "a record without a value: the key of its row cannot be told from its Kafka key alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFlow(Flow):
    """What the tasks of a keyed table need to know."""

    layout: Layout
    generations: dict[PartitionKey, tuple[tuple[int, int], ...]]
    """By partition, from which offset on the log is in which generation (RULES K2)."""
    tombstones_delete: bool = False
    """Whether the key of a row can be told from the record without its value."""

    def decoder(self) -> Decoder:
        return decoder_for(self.decode, self.decoded, self.on, stated=self.stated, reserved=RESERVED)

    def row_faults(self, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> dict[int, str]:
        faults = key_faults(self.layout, rows)
        if not self.tombstones_delete and "value" in kafka.schema.names and kafka.column("value").null_count:
            dead = pc.indices_nonzero(kafka.column("value").is_null()).to_pylist()
            faults |= dict.fromkeys(dead, TOMBSTONE_WITHOUT_KEY)
        return faults

    def completed(self, key: PartitionKey, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> pa.RecordBatch:
        order = sequences(kafka.column("offset"), self.generations.get(key, ()))
        gone = deletions(self.layout, rows, kafka)
        return rows.append_column(SEQUENCE, order).append_column(DELETE, gone)

    def open_rows(self, key: PartitionKey, name: Callable[[], str]) -> RowWriter:
        return RunWriter(RunTarget(self.layout, self.table.table_url, self.table.storage_options), key, name)


@dataclass(frozen=True, slots=True)
class RunTarget:
    """The table whose folder runs are written to."""

    layout: Layout
    table_url: str
    storage_options: Mapping[str, str]


class RunWriter:
    """Sorts the rows of a partition of a task and writes them to runs, as many as memory makes needful."""

    def __init__(self, target: RunTarget, key: PartitionKey, name: Callable[[], str]) -> None:
        self._target = target
        self._key = key
        self._name = name
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._files: list[StagedFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= RUN_BYTES_MAX:
            self._spill()

    def finish(self) -> tuple[StagedFile, ...]:
        self._spill()
        return tuple(self._files)

    def abandon(self) -> None:
        self._waiting.clear()

    def _spill(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        layout = self._target.layout
        # A replay counts every record that it takes out of quarantine, also one that another replaces at once.
        kept = sorted_rows(layout, rows, last_only=not layout.merge)
        storage = open_storage(self._target.table_url, self._target.storage_options)
        path = self._name()
        size_bytes = _write(storage, path, rows.take(pa.array(kept.places)), kept.directory)
        told = encode_directory(kept.directory)
        self._files.append(StagedFile(*self._key, path, len(kept.places), size_bytes, stats=told))


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows in the order of bucket, key and sequence: which they were, and what of them is in which bucket."""

    places: Places
    directory: pl.DataFrame


def sorted_rows(layout: Layout, rows: pa.Table, *, last_only: bool) -> Sorted:
    """Sort rows; with `last_only` of each key only the newest stays."""
    keys = key_frame(layout, rows)
    buckets = buckets_of(layout, keys)
    numbers = packed([buckets, *keys])
    places = in_order(numbers, order_frame(layout, rows, within_partition=True).get_columns())
    if last_only:
        places = places[last_of_key(numbers[places])]
    return Sorted(places, _directory(layout, keys.with_columns(buckets), places))


@dataclass(frozen=True, slots=True)
class RunPart:
    """The rows of one bucket in a run."""

    path: str
    batch: int
    source: PartitionKey


def parts_of(file: StagedFile) -> Iterator[tuple[dict[str, Any], RunPart]]:
    """What a run holds: of each bucket its rows and the bounds of its keys, with the part itself."""
    for number, entry in enumerate(decode_directory(file.stats).iter_rows(named=True)):
        yield entry, RunPart(file.path, number, (file.topic, file.partition))


def superseded(file: StagedFile) -> int:
    """How many records were left out of a run because another of the same run replaces them."""
    found = decode_directory(file.stats)["superseded"]
    return int(found[0]) if len(found) else 0


def read_parts(storage: Storage, parts: tuple[RunPart, ...]) -> list[pa.RecordBatch]:
    """The rows of one bucket in each of its runs, which are of one partition each."""
    found = []
    for part in parts:
        with storage.open_reader(part.path) as file:
            rows = pa.ipc.open_file(pa.PythonFile(file, "r")).get_batch(part.batch)
        found.append(rows.append_column(TIEBREAK, tiebreaks(rows.column(SEQUENCE), *part.source)))
    return found


def _directory(layout: Layout, frame: pl.DataFrame, places: Places) -> pl.DataFrame:
    """A row for each bucket of a run: those that are left out share their keys with others that are not."""
    parts = zip(layout.key_names, layout.parts, strict=True)
    of_column = {part.column: name for name, part in parts if part.function == "column"}
    low = [pl.col(of_column[name]).min().alias(f"low.{name}") for name in layout.bounded]
    high = [pl.col(of_column[name]).max().alias(f"high.{name}") for name in layout.bounded]
    _, rows = np.unique(frame[BUCKET].gather(places).to_numpy(), return_counts=True)
    bounds = frame.group_by(BUCKET).agg(*low, *high).sort(BUCKET)
    counts = pl.Series("rows", rows, pl.Int64)
    lost = pl.lit(len(frame) - len(places), pl.Int64).alias("superseded")
    return bounds.with_columns(counts, lost)


def encode_directory(directory: pl.DataFrame) -> str:
    sink = io.BytesIO()
    directory.write_ipc_stream(sink)
    return base64.b64encode(sink.getvalue()).decode()


def decode_directory(text: str) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(base64.b64decode(text)))


def _write(storage: Storage, path: str, rows: pa.Table, directory: pl.DataFrame) -> int:
    """Write a batch for each bucket; returns how many bytes they are."""
    rows = rows.combine_chunks()
    sink = storage.open_writer(path)
    try:
        stream = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), 256 * 1024)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(stream, rows.schema, options=options) as writer:
            first = 0
            for count in directory["rows"]:
                for batch in rows.slice(first, count).combine_chunks().to_batches():
                    writer.write_batch(batch)
                first += count
        stream.flush()
        size_bytes = int(stream.tell())
        sink.close()
    except BaseException:
        sink.abandon()
        raise
    return size_bytes
