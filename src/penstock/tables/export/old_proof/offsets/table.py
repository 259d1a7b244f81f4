"""The files of a table, and the columns of their rows that tell where each came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.write.names import parse_staged_name
from penstock.lake.delta.active_files import ActiveFile, active_files, refuse_deletion_vectors
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError, Storage
from penstock.proof.files import GoneError
from penstock.tables.export.old_proof.offsets.owners import OriginColumns

ROWS_PER_BATCH = 256 * 1024


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active file of a table; what its commit or its name does not tell is None."""

    path: str
    rows: int | None
    size_bytes: int | None = None
    partition_values: Mapping[str, Any] = field(default_factory=dict)
    offsets: tuple[int, int] | None = None
    """Lowest and highest, as the footer tells them."""
    numbers: tuple[int, int] | None = None
    topic_id: str | None = None
    """Of all of its rows, where its name or footer tells; so is the number of the partition."""
    number: int | None = None
    moves_to: str | None = None
    """Where a staged file will be found once it is moved, which may happen at any time."""


def data_files(table: Table) -> list[DataFile]:
    """The files of the version that the table has loaded, as its log describes them."""
    with library_errors(table.spec.path):
        # Of a file with a deletion vector only some rows are there.
        refuse_deletion_vectors(table.handle, table.spec.path)
        names = table.handle.metadata().partition_columns
        return [_file(each, names) for each in active_files(table.handle)]


def _file(file: ActiveFile, names: Sequence[str]) -> DataFile:
    staged = parse_staged_name(file.path)
    return DataFile(
        path=file.path,
        rows=file.rows,
        size_bytes=file.size_bytes,
        partition_values={name: each.as_py() for name, each in zip(names, file.scalars, strict=True)},
        number=staged.partition if staged else None,
    )


def open_file(storage: Storage, file: DataFile) -> pq.ParquetFile:
    """The file where it is, or where it was moved meanwhile."""
    for path in (file.path, file.moves_to):
        if path is None:
            continue
        try:
            return pq.ParquetFile(storage.open_reader(path))
        except NotFoundError:
            pass
    raise GoneError(
        f"the file {file.path} of {storage.url} is gone",
        detail="the table names it; a vacuum that ran meanwhile may have taken it",
        hint="try again; if it stays, the table is damaged: restore the file",
    )


def column_statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """The least and the greatest value of a column in a row group; None where its footer does not tell."""
    chunks = (group.column(index) for index in range(group.num_columns))
    found = next((each.statistics for each in chunks if each.path_in_schema == column), None)
    return found if found is not None and found.has_min_max else None


def origin_frames(storage: Storage, file: DataFile, columns: OriginColumns, job: str) -> Iterator[pl.DataFrame]:
    """The origin columns of a file under the names partition, offset, topic and topic_id.

    Rows that name another job than `job` are left out.
    """
    parquet = open_file(storage, file)
    wanted = [name for name in parquet.schema_arrow.names if name in columns.names]
    for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
        frame = place_frame(batch, columns, file.partition_values)
        # Rows that are older than the column name no job.
        yield frame if columns.job is None else frame.filter(pl.col("job").fill_null(job) == job).drop("job")


def place_frame(batch: pa.RecordBatch, columns: OriginColumns, constants: Mapping[str, Any]) -> pl.DataFrame:
    """Where the rows came from, under the names partition, offset, topic, topic_id and job.

    `constants` are the partition values of their file: they have what is not among its columns.
    """
    named = {
        "partition": (columns.partition, pl.Int64),
        "offset": (columns.offset, pl.Int64),
        "topic": (columns.topic, pl.String),
        "topic_id": (columns.topic_id, pl.String),
        "job": (columns.job, pl.String),
    }
    series = []
    for role, (name, kind) in named.items():
        if name in batch.schema.names:
            series.append(pl.Series(pl.from_arrow(batch.column(name))).cast(kind).alias(role))
        elif name is not None:
            # A column of the partition values, or one that is younger than the file.
            series.append(pl.Series(role, [constants.get(name)], dtype=kind).new_from_index(0, len(batch)))
    return pl.DataFrame(series)


def by_place(frame: pl.DataFrame) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    """The rows of a frame, apart from each other by all that it tells but their offsets."""
    keys = [name for name in frame.columns if name not in ("offset", "row")]
    for part in frame.partition_by(keys, maintain_order=True):
        [values] = part.select(keys).head(1).to_dicts()
        yield values, part
