"""The files of a table or of its quarantine, and the columns of their rows that tell where each row came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import TransientError
from penstock.flow.columns.fitting import folded
from penstock.flow.write.names import parse_staged_name
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import active_paths, refuse_deletion_vectors
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table, open_table
from penstock.lake.storage import NotFoundError, Storage, open_storage
from penstock.logs.log import Partition

ROWS_PER_BATCH = 256 * 1024
FOOTERS_AT_ONCE = 16
NAMES_SHOWN_MAX = 5


class GoneError(TransientError):
    """A file that was there a moment ago was deleted: vacuum or compaction ran meanwhile."""


_GONE = "files that the table names are gone"


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """The columns of rows that tell the place of their record in the log."""

    partition: str
    offset: str
    topic: str | None = None
    topic_id: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """By what they tell."""
        names = {"partition": self.partition, "offset": self.offset, "topic": self.topic, "topic_id": self.topic_id}
        return {role: name for role, name in names.items() if name is not None}


QUARANTINE_PLACE = PlaceColumns("partition", "offset", "topic", "topic_id")


def place_of(job: JobSpec, schema: pa.Schema) -> PlaceColumns | None:
    """The columns in which the job keeps the place of its rows; None if partition or offset is not kept."""
    spelled = {folded(name): name for name in schema.names}
    kept: dict[str, str] = {}
    for part, name in place_columns(job.columns, job.sql.select if job.sql is not None else ()):
        if folded(name) in spelled:
            kept.setdefault(part, spelled[folded(name)])
    if "partition" not in kept or "offset" not in kept:
        return None
    return PlaceColumns(kept["partition"], kept["offset"], kept.get("topic"))


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active file; None where its commit or its footer does not tell."""

    path: str
    rows: int | None
    size_bytes: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    """As the log of the table spells them."""
    topic_id: str | None = None
    """Of all of its rows, if its name tells."""
    offsets: tuple[int, int] | None = None
    """Lowest and highest by its footer; None if there may be nulls. So are the numbers of partitions."""
    numbers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RowSource:
    """The files of one table, of one type of an export, or of a quarantine."""

    storage: Storage
    files: Sequence[DataFile]
    place: PlaceColumns | None
    """None: rows do not carry their place."""
    schema: pa.Schema
    """Of the files: without the columns that are partition values."""
    name: str = ""
    """Of the type; empty for the only table of a job."""
    ends: Mapping[Partition, int] | None = None
    """Positions of a type that may lag behind those of the job, or be ahead of them; None: those of the job."""
    again: Mapping[Partition, int] = field(default_factory=dict)
    """Up to where a type that was added later read records again: other types or the quarantine may have them too."""
    faults: tuple[str, ...] = ()
    """What is wrong with files, once they were examined."""

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files)


def table_source(table: Table, place: PlaceColumns | None, name: str = "") -> RowSource:
    """The files of the version that the table has loaded, each examined."""
    with library_errors(table.spec.path):
        # Of a file with a deletion vector only some rows count.
        refuse_deletion_vectors(table.handle, table.spec.path)
        columns = table.handle.metadata().partition_columns
    files = [
        data_file(file.path, file.rows, file.size_bytes, dict(zip(columns, file.values, strict=True)))
        for file in table.active_files()
    ]
    body = pa.schema([column for column in table.schema if column.name not in columns])
    return examined(RowSource(table.storage(), files, place, body, name), files_now(table))


def data_file(
    path: str, rows: int | None, size_bytes: int | None = None, values: Mapping[str, str | None] | None = None
) -> DataFile:
    staged = parse_staged_name(path)
    return DataFile(path, rows, size_bytes, values or {}, None if staged is None else staged.topic_id)


def files_now(table: Table) -> Callable[[], Collection[str]]:
    """Asks which files the newest version of a table names."""
    return lambda: active_paths(open_table(table.spec, table.job).handle)


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
    place = source.place
    offsets, numbers = (extent(footer, name) for name in ((place.offset, place.partition) if place else ("", "")))
    readable = replace(file, rows=footer.num_rows, offsets=offsets, numbers=numbers)
    if file.rows not in (None, footer.num_rows):
        return readable, "files have another number of rows than was committed"
    return readable, "files have another size than was committed" if file.size_bytes not in (None, size_bytes) else ""


def extent(footer: pq.FileMetaData, column: str, groups: Iterable[int] | None = None) -> tuple[int, int] | None:
    """The least and the greatest value of a column by the footer; None where it does not tell, or there are nulls."""
    values: list[int] = []
    for number in range(footer.num_row_groups) if groups is None else groups:
        group = footer.row_group(number)
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


def open_file(source: RowSource, file: DataFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source.storage.open_reader(file.path))
    except NotFoundError as error:
        raise GoneError(f"the file {file.path} was deleted while it was verified", hint="try again") from error


def read_places(source: RowSource, file: DataFile) -> Iterator[pl.DataFrame]:
    """The places of the rows of a file."""
    if source.place is not None:
        parquet = open_file(source, file)
        kept = [name for name in parquet.schema_arrow.names if name in source.place.names.values()]
        for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=kept):
            yield place_frame(batch, source.place, file)


def place_frame(batch: pa.RecordBatch, place: PlaceColumns, file: DataFile) -> pl.DataFrame:
    """The columns partition and offset, and topic and topic_id as far as they are kept."""
    columns = []
    for role, name in place.names.items():
        if name in batch.schema.names:
            column = pl.Series(pl.from_arrow(batch.column(name)))
        else:
            # A partition value, or a column that is younger than the file.
            column = pl.Series([file.partition_values.get(name)], dtype=pl.String).new_from_index(0, len(batch))
        columns.append(column.cast(pl.Int64 if role in ("partition", "offset") else pl.String).alias(role))
    return pl.DataFrame(columns)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The job's rows in quarantine, with those that it has yet to take (RULES Q1)."""

    source: RowSource
    rows: int
    pending: int
    """Rows of files that a data commit listed and the quarantine table has yet to take."""
    faults: tuple[str, ...] = ()

    @staticmethod
    def of(job: JobSpec, url: str, table: Table | None, pending: Sequence[DataFile]) -> Quarantine:
        """Examine every file; `url` is where the quarantine of the job lies, also while it has no table."""
        storage = open_storage(url, job.table.storage_options)
        listed = examined(RowSource(storage, pending, QUARANTINE_PLACE, QUARANTINE_SCHEMA))
        if table is None:
            faults = tuple(f"quarantine: {fault}" for fault in listed.faults)
            return Quarantine(listed, 0, listed.rows, faults)
        taken = table_source(table, QUARANTINE_PLACE)
        faults = tuple(f"quarantine: {fault}" for fault in (*taken.faults, *listed.faults))
        both = replace(taken, files=[*taken.files, *listed.files])
        return Quarantine(both, taken.rows, listed.rows, faults)

    def places(self, partitions: Collection[Partition]) -> dict[Partition, list[int]]:
        """The offsets of quarantined records of these partitions."""
        found: dict[Partition, list[int]] = {partition: [] for partition in partitions}
        known = {(partition.topic_id, partition.number): partition for partition in partitions}
        for file in self.source.files:
            for frame in read_places(self.source, file):
                for (topic_id, number), rows in frame.group_by("topic_id", "partition"):
                    if (partition := known.get((str(topic_id), number))) is not None:
                        found[partition] += rows["offset"].to_list()
        return found
