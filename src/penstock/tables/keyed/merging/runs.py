"""Writes the rows of a task as sorted runs, which the merge reads bucket by bucket.

A run is an Arrow file with a batch for each bucket, named like a staged file: no commit names it, and vacuum deletes it
once its slice is behind the position. The list of its buckets is reported in place of statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.decoder import Decoder, decoder_for
from penstock.flow.rows import DecodedRows
from penstock.flow.task import Flow
from penstock.flow.write.manifest import PartitionKey, RowWriter, StagedFile
from penstock.flow.write.report import UNROUTED
from penstock.job.expressions import fields as fields_of
from penstock.job.spec import JobSpec, TombstonePolicy
from penstock.logs.log import Partition
from penstock.storage import Storage, open_storage
from penstock.tables.keyed.generations import generations_of
from penstock.tables.keyed.layout import (
    DELETE,
    HIDDEN,
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
from penstock.tables.keyed.merging.packing import in_order, last_of_key, packed
from penstock.tables.keyed.spec import KeyedSpec

RUN_BYTES_MAX = 192 * 1024 * 1024
"""Bytes of rows that wait in memory for a run (I6)."""
TOMBSTONE_WITHOUT_KEY = "a record without a value: the key of its row is not known from its Kafka key alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFlow(Flow):
    """The input of the tasks of a keyed table."""

    layout: Layout
    generations: dict[PartitionKey, tuple[tuple[int, int], ...]]
    """By partition, pairs of a first offset and its generation (RULES K2)."""
    tombstones_delete: bool = False
    """Whether a record without a value gives the key of its row."""

    def decoder(self) -> Decoder:
        return decoder_for(self.decode, self.decoded, self.on, reserved=RESERVED, rare=self.on.rare_of(UNROUTED))

    def row_faults(self, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> dict[int, str]:
        faults = key_faults(self.layout, rows)
        if not self.tombstones_delete and "value" in kafka.schema.names and kafka.column("value").null_count:
            dead = pc.indices_nonzero(kafka.column("value").is_null()).to_pylist()
            faults |= dict.fromkeys(dead, TOMBSTONE_WITHOUT_KEY)
        return faults

    def completed(self, key: PartitionKey, rows: pa.RecordBatch, kafka: pa.RecordBatch) -> pa.RecordBatch:
        order = sequences(kafka.column("offset"), self.generations.get(key, ()))
        gone = deletions(self.layout, DecodedRows(rows, kafka))
        return rows.append_column(SEQUENCE, order).append_column(DELETE, gone)

    def open_rows(self, key: PartitionKey, name: NewName) -> RowWriter:
        storage = open_storage(self.table.table_url, self.table.storage_options)
        return RunWriter(self.layout, storage, key, name)


def keyed_flow(
    job: JobSpec[KeyedSpec], plain: Flow, numbers: Mapping[str, int], partitions: list[Partition]
) -> KeyedFlow:
    """The flow of records into runs; `numbers` are those of the table."""
    values = {field.name: getattr(plain, field.name) for field in fields(plain)}
    values["on"] = replace(plain.on, tombstone=tombstone_policy(job, job.table))
    generations = {
        (partition.topic, partition.number): generations_of(numbers, job.name, partition) for partition in partitions
    }
    by_key = is_known_by_key(job, job.table)
    return KeyedFlow(**values, layout=job.table.layout, generations=generations, tombstones_delete=by_key)


def tombstone_policy(job: JobSpec, spec: KeyedSpec) -> TombstonePolicy:
    """The policy for records without a value: a row without values, unless the job has `sql:`."""
    if spec.filter_tombstones:
        return "filter"
    return "quarantine" if job.sql else "row"


def is_known_by_key(job: JobSpec, spec: KeyedSpec) -> bool:
    """Whether a record without a value gives the key of its row: all key columns come from the Kafka key."""
    if job.sql is not None:
        return False
    needed = [name for name in spec.layout.columns if name not in HIDDEN]
    return all(name in job.columns and not list(fields_of(job.columns[name])) for name in needed)


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
        """Sort waiting rows by bucket, key and order; drop all but the newest of a key, unless updates are partial."""
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
        run_buckets, starts = np.unique(buckets.gather(places).to_numpy(), return_index=True)
        path = self._name()
        size_bytes = _write(self._storage, path, rows.take(pa.array(places)), [*starts.tolist(), len(places)])
        listed = json.dumps(run_buckets.tolist())
        self._files.append(StagedFile(*self._key, path, len(places), size_bytes, stats=listed))


@dataclass(frozen=True, slots=True)
class RunPart:
    """The rows of one bucket in a run."""

    path: str
    batch: int
    source: PartitionKey


def parts_by_bucket(runs: Iterable[StagedFile]) -> dict[int, tuple[RunPart, ...]]:
    """The parts of runs, by bucket."""
    parts: dict[int, tuple[RunPart, ...]] = {}
    for run in runs:
        for number, bucket in enumerate(json.loads(run.stats)):
            parts[bucket] = (*parts.get(bucket, ()), RunPart(run.path, number, (run.topic, run.partition)))
    return dict(sorted(parts.items()))


def read_part(storage: Storage, part: RunPart) -> pa.RecordBatch:
    with storage.open_reader(part.path) as file:
        rows = pa.ipc.open_file(pa.PythonFile(file, "r")).get_batch(part.batch)
    return rows.append_column(TIEBREAK, tiebreaks(rows.column(SEQUENCE), *part.source))


def _write(storage: Storage, path: str, rows: pa.Table, cuts: list[int]) -> int:
    """Write a batch of the rows between each two cuts; returns the size in bytes."""
    rows = rows.combine_chunks()
    sink = storage.open_writer(path)
    try:
        stream = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), 256 * 1024)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(stream, rows.schema, options=options) as writer:
            for start, end in pairwise(cuts):
                for batch in rows.slice(start, end - start).combine_chunks().to_batches():
                    writer.write_batch(batch)
        stream.flush()
        size_bytes = int(stream.tell())
        sink.close()
    except BaseException:
        sink.abandon()
        raise
    return size_bytes
