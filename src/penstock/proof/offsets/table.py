"""The files of a table, and the columns of their rows that tell where each came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import TransientError, UserError
from penstock.flow.write.names import parse_staged_name
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError, Storage
from penstock.proof.offsets.owners import OriginColumns

ROWS_PER_BATCH = 256 * 1024


class GoneError(TransientError):
    """A file that was there a moment ago is gone: vacuum or compaction ran meanwhile, or somebody deleted it."""


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


def active_files(table: Table) -> list[DataFile]:
    """The files of the version that the table has loaded, as its log describes them."""
    with library_errors(table.spec.path):
        _refuse_deletion_vectors(table)
        actions = pa.table(table.handle.get_add_actions(flatten=True)).to_pylist()
    return [_file(each) for each in actions]


def _refuse_deletion_vectors(table: Table) -> None:
    """Refuse to count rows of which only some are there."""
    if "deletionVectors" not in (table.handle.protocol().reader_features or ()):
        return
    if any(batch.num_rows for batch in table.handle.deletion_vectors()):
        raise UserError(
            f"the table at {table.spec.path} has files with deletion vectors, which verify does not read",
            detail="another writer deleted single rows",
            hint="run `REORG TABLE ... APPLY (PURGE)` with Spark, then verify again",
        )


def _file(action: Mapping[str, Any]) -> DataFile:
    prefix = "partition."
    staged = parse_staged_name(action["path"])
    return DataFile(
        # The library gives the name on disk percent-encoded.
        path=unquote(action["path"]),
        rows=action["num_records"],
        size_bytes=action["size_bytes"],
        partition_values={key[len(prefix) :]: value for key, value in action.items() if key.startswith(prefix)},
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


def origin_frames(
    storage: Storage, file: DataFile, columns: OriginColumns, job: str | None = None
) -> Iterator[pl.DataFrame]:
    """The origin columns of a file under the names partition, offset, topic and topic_id.

    Rows that name another job than `job` are left out.
    """
    parquet = open_file(storage, file)
    roles = {
        role: name
        for role, name in (
            ("partition", columns.partition),
            ("offset", columns.offset),
            ("topic", columns.topic),
            ("topic_id", columns.topic_id),
        )
        if name is not None
    }
    types = {"partition": pl.Int64, "offset": pl.Int64, "topic": pl.String, "topic_id": pl.String}
    present = set(parquet.schema_arrow.names)
    wanted = [name for name in (*roles.values(), columns.job) if name in present]
    for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
        batch = _of_job(batch, columns.job, job)
        series = []
        for role, name in roles.items():
            if name in present:
                one = pl.Series(role, pl.from_arrow(batch.column(name)))
            else:
                # A column of the partition values, or one that is younger than the file.
                one = pl.Series(role, [file.partition_values.get(name)], dtype=types[role]).new_from_index(
                    0, len(batch)
                )
            series.append(one.cast(types[role]).rename(role))
        yield pl.DataFrame(series)


def _of_job(batch: pa.RecordBatch, column: str | None, job: str | None) -> pa.RecordBatch:
    if column is None or job is None or column not in batch.schema.names:
        return batch
    # Rows that are older than the column name no job.
    return batch.filter(pc.fill_null(pc.equal(batch.column(column), job), True))
