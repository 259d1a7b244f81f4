"""What is verified: the tables of a job as their kind describes them, their files, and the places of their rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import TransientError
from penstock.flow.columns.fitting import folded
from penstock.flow.stage import Stage
from penstock.flow.write.manifest import Ranges, StagedFile
from penstock.flow.write.names import parse_staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import TaskReport, decode_report
from penstock.job.kafka_types import place_columns
from penstock.job.spec import JobSpec
from penstock.lake.compaction import batch_rows
from penstock.lake.delta.files import refuse_deletion_vectors
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.opening import open_table
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Partition, Slice
from penstock.proof.findings import VALUES_OF_SQL, Unproven, Violation
from penstock.proof.numbers import UNKNOWN_TOPIC, CommittedSlice, Slices, States, TopicIncarnations, spans
from penstock.storage import NotFoundError, Storage, open_storage

SAMPLE_RECORDS = 10_000
OFFSETS_PER_PASS_MAX = 8_000_000

Progress = Callable[[str, int, int], None]
"""Called with the step, how many items are done, and their total."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which records have their values compared: about so many, drawn with the seed, or all of them (None)."""

    records: int | None = SAMPLE_RECORDS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """How far a verification goes, and in which steps."""

    deep: bool = True
    """Whether offsets of the log's records are read."""
    progress: Progress | None = None
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX
    values: Sample | None = None
    """Which records are decoded again to compare values; None: none."""
    published: bool = False
    """Whether the topic is read that the table is published to."""

    def report(self, step: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


OffsetRanges = Mapping[Partition, tuple[int, int]]


def windows_of(ranges: OffsetRanges, offsets_max: int) -> Iterator[OffsetRanges]:
    """Cut ranges into windows of so many offsets, with a part of every partition in each."""
    count = max(1, -(-sum(hi - lo for lo, hi in ranges.values()) // offsets_max))
    for number in range(count):
        yield {
            partition: (lo + (hi - lo) * number // count, lo + (hi - lo) * (number + 1) // count)
            for partition, (lo, hi) in ranges.items()
        }


ROWS_PER_BATCH = 256 * 1024
FOOTERS_AT_ONCE = 16
NAMES_SHOWN_MAX = 5


class GoneError(TransientError):
    """A file that was there a moment ago was deleted: vacuum or compaction ran meanwhile."""


_GONE = "files that the table names were deleted"


PlaceColumns = Mapping[str, str]
"""The columns that show the place of a row's record: `partition` and `offset`, maybe `topic` and `topic_id`."""

QUARANTINE_PLACE = {name: name for name in ("partition", "offset", "topic", "topic_id")}


def place_of(job: JobSpec, schema: pa.Schema) -> PlaceColumns | None:
    """The columns in which the job keeps the place of its rows; None if partition or offset is not kept."""
    spelled = {folded(name): name for name in schema.names}
    kept: dict[str, str] = {}
    for part, name in place_columns(job.columns, job.sql.select if job.sql is not None else ()):
        if folded(name) in spelled:
            kept.setdefault(part, spelled[folded(name)])
    return kept if {"partition", "offset"} <= kept.keys() else None


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active file; None where its commit, its name or its footer does not state it."""

    path: str
    rows: int | None
    size_bytes: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    """As spelled in the log of the table."""
    staged_as: str | None = None
    """The name under which a file was staged that has another one now."""
    offsets: tuple[int, int] | None = None
    """Lowest and highest; None also if there may be nulls."""

    @property
    def topic_id(self) -> str | None:
        """The topic id of all its rows, if they are those of one slice."""
        name = parse_staged_name(self.staged_as or self.path)
        return None if name is None else name.topic_id


@dataclass(frozen=True, slots=True)
class RowSource:
    """The files of one table, of one type of an export, or of a quarantine."""

    storage: Storage
    files: Sequence[DataFile]
    place: PlaceColumns | None
    """None: rows do not carry their place."""
    schema: pa.Schema
    """The schema of the files: without the columns that are partition values."""
    name: str = ""
    """The name of the type; empty for the only table of a job."""
    ends: Mapping[Partition, int] | None = None
    """Positions of a type that may lag behind those of the job; None: those of the job."""
    faults: tuple[str, ...] = ()
    """What is wrong with files, once they were examined."""

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files)


def table_source(table: DeltaLog, place: PlaceColumns | None, *, reads_vectors: bool = False) -> RowSource:
    """The files of the version that the table has loaded, each examined."""
    with library_errors(table.spec.path):
        # Of a file with a deletion vector only some rows count.
        if not reads_vectors:
            refuse_deletion_vectors(table.handle, table.spec.path)
        columns = table.handle.metadata().partition_columns
    files = [
        DataFile(file.path, file.rows, file.size_bytes, dict(zip(columns, file.values, strict=True)))
        for file in table.active_files()
    ]
    body = pa.schema([column for column in table.schema if column.name not in columns])
    return examined(RowSource(table.storage(), files, place, body), files_now(table))


def quarantine_source(job: JobSpec, url: str, table: DeltaLog | None, pending: Sequence[DataFile]) -> RowSource:
    """The job's rows in quarantine, with `pending` files that are not yet appended (RULES Q1).

    `url` is where the quarantine of the job lies, also while it has no table.
    """
    storage = open_storage(url, job.table.storage_options)
    sources = [examined(RowSource(storage, pending, QUARANTINE_PLACE, QUARANTINE_SCHEMA))]
    sources += [] if table is None else [table_source(table, QUARANTINE_PLACE)]
    faults = tuple(f"quarantine: {fault}" for source in sources for fault in source.faults)
    return replace(sources[0], files=[file for source in sources for file in source.files], faults=faults)


def files_now(table: DeltaLog) -> Callable[[], Collection[str]]:
    """Asks which files the newest version of a table names."""
    return lambda: {file.path for file in open_table(table.spec, table.job).active_files()}


def examined(source: RowSource, active_now: Callable[[], Collection[str]] | None = None) -> RowSource:
    """Read the footer of every file: the source with those that can be read, and what is wrong with the others.

    A file that was deleted and that `active_now` no longer names was compacted and vacuumed meanwhile: the
    verification starts again (`GoneError`).
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        results = list(pool.map(lambda file: _examine(source, file), source.files))
    paths: dict[str, list[str]] = {}
    for file, (_, fault) in zip(source.files, results, strict=True):
        paths.setdefault(fault, []).append(file.path)
    if _GONE in paths and active_now is not None and not set(paths[_GONE]) <= set(active_now()):
        raise GoneError(f"files of {source.storage.url} were vacuumed while they were verified")
    faults = tuple(named_paths(fault, names) for fault, names in sorted(paths.items()) if fault)
    return replace(source, files=[file for file, _ in results if file is not None], faults=faults)


def _examine(source: RowSource, file: DataFile) -> tuple[DataFile | None, str]:
    try:
        with source.storage.open_reader(file.path) as reader:
            size_bytes = reader.seek(0, os.SEEK_END)
            reader.seek(0)
            footer = pq.read_metadata(reader)
    except NotFoundError:
        return None, _GONE
    except (pa.ArrowException, OSError):
        return None, "files cannot be read"
    offsets = extent(footer, (source.place or {}).get("offset", ""), range(footer.num_row_groups))
    readable = replace(file, rows=footer.num_rows, offsets=offsets)
    if file.rows not in (None, footer.num_rows):
        return readable, "files have another number of rows than was committed"
    return readable, "files have another size than was committed" if file.size_bytes not in (None, size_bytes) else ""


def extent(footer: pq.FileMetaData, column: str, groups: Iterable[int]) -> tuple[int, int] | None:
    """The least and the greatest value of a column by the footer; None where it has none, or there are nulls."""
    values: list[int] = []
    for group in map(footer.row_group, groups):
        chunks = (group.column(index) for index in range(group.num_columns))
        statistics = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)
        if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
            return None
        values += [int(statistics.min), int(statistics.max)]
    return (min(values), max(values)) if values else None


def named_paths(what: str, paths: Iterable[str]) -> str:
    """A fault of files with some of their names."""
    names = sorted(paths)
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{len(names)} {what}: {', '.join(names[:NAMES_SHOWN_MAX])}{more}"


def _read(
    source: RowSource, file: DataFile, columns: Collection[str], offsets: Ranges | None
) -> Iterator[pa.RecordBatch]:
    try:
        parquet = pq.ParquetFile(source.storage.open_reader(file.path))
    except NotFoundError as error:
        raise GoneError(f"the file {file.path} was deleted while it was verified", hint="try again") from error
    place = source.place or {}
    names = [name for name in parquet.schema_arrow.names if name in place.values() or name in columns]
    for number in range(parquet.num_row_groups):
        span = extent(parquet.metadata, place.get("offset", ""), [number])
        if span is None or offsets is None or any(lo <= span[1] and span[0] < hi for lo, hi in offsets):
            rows = batch_rows(parquet.metadata.row_group(number)) if columns else ROWS_PER_BATCH
            yield from parquet.iter_batches(rows, row_groups=[number], columns=names)


def _places(batch: pa.RecordBatch, place: PlaceColumns, file: DataFile) -> pl.DataFrame:
    """The columns partition and offset, and topic and topic_id if they are kept; null where not known."""
    columns = []
    for role, name in {"partition": "", "offset": "", **place}.items():
        if name in batch.schema.names:
            column = pl.Series(pl.from_arrow(batch.column(name)))
        else:
            # A partition value, or a column that is younger than the file.
            column = pl.Series([file.partition_values.get(name)], dtype=pl.String).new_from_index(0, len(batch))
        columns.append(column.cast(pl.Int64 if role in ("partition", "offset") else pl.String).alias(role))
    return pl.DataFrame(columns)


PLACE_REMEDY = "remove `place: none` before the first run; a table without the columns takes them with the next run"


class NoPartition(Enum):
    """Why rows belong to no partition of the job."""

    OTHER_JOB = "of another job on the same table"
    UNKNOWN = "of a partition that the job never read"
    NO_PLACE = "without a place, or compacted together with rows of an earlier incarnation of their topic"


PlacedRows = tuple[Partition | NoPartition, pl.DataFrame]
"""Rows of a partition with their `offset`, or why they have none."""
Rewrite = Callable[[Slice, str, str], Stage]
"""The stage for a slice that writes below the first folder, and bad records below the second."""


def staged_files(stage: Stage, records: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, StagedFile]]:
    """Run a stage here: the files that it writes, each with its type."""
    for report in stage(records):
        for shares in decode_report(report.column(0)[0].as_py(), TaskReport).shares.values():
            yield from ((name, file) for name, share in shares.items() for file in share.files)


@dataclass(frozen=True)
class Subject:
    """One version of the table or tables of a job, as its kind describes it for the checks."""

    job: JobSpec
    version: int
    states: States
    slices: Slices
    incarnations: TopicIncarnations
    quarantine: RowSource
    replay_unfinished: bool = False
    sources: tuple[RowSource, ...] = ()
    """Every table with a row per record; none of a kind whose rows are not records."""
    rows_written: Mapping[str, int] = field(default_factory=dict)
    """How many rows each source has by its own totals."""
    rows_unplaced: int = 0
    """How many rows are missing that a person may have deleted as designed, with their days, or that were lost."""
    faults: tuple[str, ...] = ()
    """What else is wrong with the rows; `violation` is the first of them that carries its place."""
    violation: Violation | None = None
    warnings: tuple[str, ...] = ()
    rewrite: Rewrite | Unproven = VALUES_OF_SQL
    """How to write rows again to compare values, or why that cannot be done."""
    every_record_has_a_row: bool = True
    """Whether a record that is not in quarantine must give a row when it is written again."""
    job_slices: tuple[States, Slices] | None = None
    """States and slices of the job log, where other logs count what became of the records."""

    @cached_property
    def spans(self) -> Mapping[Partition, tuple[CommittedSlice, ...]]:
        return {partition: spans(self.slices, partition, state) for partition, state in self.states.items()}

    @cached_property
    def ranges(self) -> OffsetRanges:
        """Origin and position of each partition, in order; `(0, 0)` if it has none."""
        return {
            partition: (pieces[0].start, pieces[-1].end) if pieces else (0, 0)
            for partition, pieces in sorted(self.spans.items())
        }

    @property
    def quarantine_faults(self) -> list[str]:
        """What is wrong with the files of the quarantine, or with the number of its rows."""
        rows, faults = self.quarantine.rows, list(self.quarantine.faults)
        counted = sum(state.totals.quarantined - state.totals.replayed for state in self.states.values())
        if rows != counted and not self.replay_unfinished:
            faults.append(f"the quarantine has {rows} rows, {counted} are counted")
        return faults

    def quarantined_offsets(self) -> dict[Partition, list[int]]:
        """The offsets of the quarantined records of each partition."""
        offsets: dict[Partition, list[int]] = {partition: [] for partition in self.states}
        for file in self.quarantine.files:
            for _, placed in self.placed_rows(self.quarantine, file):
                for partition, rows in placed:
                    if isinstance(partition, Partition):
                        offsets[partition] += rows["offset"].to_list()
        return offsets

    @cached_property
    def _by_number(self) -> Mapping[int, Sequence[Partition]]:
        by_number: dict[int, list[Partition]] = {}
        for partition in self.states:
            by_number.setdefault(partition.number, []).append(partition)
        return by_number

    def find(self, topic_id: str | None, topic: str | None, number: int | None) -> Partition | NoPartition:
        """The one partition that fits what rows state of their place; the name of a staged file states the topic id."""
        others = self.incarnations.other_ids
        if number is None or (topic_id is None and topic is None and others):
            return NoPartition.NO_PLACE
        # Any topic may have had an incarnation whose name is unknown.
        fitting = [
            partition
            for partition in self._by_number.get(number, ())
            if topic_id in (None, partition.topic_id) and (topic is None or partition.topic in (topic, UNKNOWN_TOPIC))
        ]
        if fitting:
            return fitting[0] if len(fitting) == 1 else NoPartition.NO_PLACE
        other_job = others if topic_id is None else topic_id in others
        return NoPartition.OTHER_JOB if other_job else NoPartition.UNKNOWN

    def placed_rows(
        self, source: RowSource, file: DataFile, columns: Collection[str] = (), offsets: Ranges | None = None
    ) -> Iterator[tuple[pa.RecordBatch, list[PlacedRows]]]:
        """The batches of a file, each with its rows by partition, in which `row` is their number in the batch.

        A batch has the place columns and these ones, as far as the file has them. With `offsets` only row groups are
        read that may hold some of them.
        """
        for batch in _read(source, file, columns, offsets):
            places = _places(batch, source.place or {}, file).with_row_index("row")
            keys = [name for name in places.columns if name in ("topic", "topic_id", "partition")]
            placed: list[PlacedRows] = []
            for rows in places.partition_by(keys, maintain_order=True):
                values = rows.row(0, named=True)
                partition = self.find(values.get("topic_id") or file.topic_id, values.get("topic"), values["partition"])
                without = rows if partition is NoPartition.NO_PLACE else rows.filter(pl.col("offset").is_null())
                placed += [(partition, rows.drop_nulls("offset"))] if len(without) < len(rows) else []
                placed += [(NoPartition.NO_PLACE, without)] if len(without) else []
            yield batch, placed
