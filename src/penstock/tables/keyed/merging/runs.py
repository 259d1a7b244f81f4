"""The rows of a task as sorted runs: what the merge reads, bucket by bucket.

A run is an Arrow file with a batch for each bucket, under the name of a staged file: no commit names it, and vacuum
deletes it once its slice is behind the position. A directory of its buckets travels with it, for the driver's plan.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
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
    DELETE,
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
from penstock.tables.keyed.merging.chunks import NewName
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
        return decoder_for(self.decode, self.decoded, self.on, reserved=RESERVED)

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

    def open_rows(self, key: PartitionKey, name: NewName) -> RowWriter:
        storage = open_storage(self.table.table_url, self.table.storage_options)
        return RunWriter(self.layout, storage, key, name)


class RunWriter:
    """Sorts the rows of one partition in a task and writes them to runs, a new one whenever memory is used up."""

    def __init__(self, layout: Layout, storage: Storage, key: PartitionKey, name: NewName) -> None:
        self._layout = layout
        self._storage = storage
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
        """Sort what waits by bucket, key and order; of each key only the newest stays, unless updates are partial."""
        if not self._waiting:
            return
        rows, layout = pa.Table.from_batches(self._waiting), self._layout
        self._waiting, self._waiting_bytes = [], 0
        keys = key_frame(layout, rows)
        buckets = buckets_of(layout, keys)
        numbers = packed([buckets, *keys])
        places = in_order(numbers, order_frame(layout, rows, within_partition=True).get_columns())
        if not layout.merge:
            places = places[last_of_key(numbers[places])]
        directory = _directory(layout, keys.with_columns(buckets), places)
        path = self._name()
        size_bytes = _write(self._storage, path, rows.take(pa.array(places)), directory["rows"].to_list())
        sink = io.BytesIO()
        directory.write_ipc_stream(sink)
        contents = base64.b64encode(sink.getvalue()).decode()
        self._files.append(StagedFile(*self._key, path, len(places), size_bytes, stats=contents))


@dataclass(frozen=True, slots=True)
class RunPart:
    """The rows of one bucket in a run."""

    path: str
    batch: int
    source: PartitionKey
    bounds: Mapping[str, Any]
    """The least and the greatest value of the key columns that are bounded: `low.<name>`, `high.<name>`."""


def parts_by_bucket(runs: Iterable[StagedFile]) -> dict[int, tuple[RunPart, ...]]:
    """What runs hold, by bucket."""
    parts: dict[int, list[RunPart]] = {}
    for run in runs:
        directory = pl.read_ipc_stream(io.BytesIO(base64.b64decode(run.stats)))
        for number, entry in enumerate(directory.iter_rows(named=True)):
            parts.setdefault(entry[BUCKET], []).append(RunPart(run.path, number, (run.topic, run.partition), entry))
    return {bucket: tuple(held) for bucket, held in sorted(parts.items())}


def read_part(storage: Storage, part: RunPart) -> pa.RecordBatch:
    with storage.open_reader(part.path) as file:
        rows = pa.ipc.open_file(pa.PythonFile(file, "r")).get_batch(part.batch)
    return rows.append_column(TIEBREAK, tiebreaks(rows.column(SEQUENCE), *part.source))


def _directory(layout: Layout, frame: pl.DataFrame, places: Places) -> pl.DataFrame:
    """A row for each bucket of a run: those that are left out share their keys with others that are not."""
    parts = zip(layout.key_names, layout.parts, strict=True)
    of_column = {part.column: name for name, part in parts if part.function == "column"}
    low = [pl.col(of_column[name]).min().alias(f"low.{name}") for name in layout.bounded]
    high = [pl.col(of_column[name]).max().alias(f"high.{name}") for name in layout.bounded]
    _, rows = np.unique(frame[BUCKET].gather(places).to_numpy(), return_counts=True)
    return frame.group_by(BUCKET).agg(*low, *high).sort(BUCKET).with_columns(pl.Series("rows", rows, pl.Int64))


def _write(storage: Storage, path: str, rows: pa.Table, counts: Iterable[int]) -> int:
    """Write a batch of so many rows for each bucket; returns how many bytes they are."""
    rows = rows.combine_chunks()
    sink = storage.open_writer(path)
    try:
        stream = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), 256 * 1024)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(stream, rows.schema, options=options) as writer:
            first = 0
            for count in counts:
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
