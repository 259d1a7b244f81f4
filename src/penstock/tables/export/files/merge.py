"""Many Parquet files become one, a batch of rows at a time; columns that a file lacks are null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import conflict, fit_columns, grown
from penstock.flow.write.parquet_file import ParquetFile
from penstock.lake.storage import Storage
from penstock.tables.export.files.data_files import DAMAGED_FILE

BATCH_BYTES_MAX = 16 * 1024**2
BATCH_ROWS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Output:
    """A merged file, staged."""

    path: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How the merged file is written."""

    compression: str
    row_group_bytes_max: int


def unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """All columns of the files, in the order and the spelling in which they came up."""
    whole = pa.schema([])
    for schema in schemas:
        found = conflict(whole, schema)
        if found is not None:
            raise InvariantError(
                "files of one type have columns that do not fit together",
                detail=f"{found.path} is {found.one} and {found.other}",
            )
        whole = grown(whole, schema.remove_metadata())
    return whole


def merge_files(
    storage: Storage,
    sources: Sequence[str],
    target: str,
    schema: pa.Schema,
    facts: Mapping[str, str],
    options: MergeOptions,
) -> Output:
    """Write the rows of all sources, in their order, to `target`; memory holds one row group and one batch."""
    file = ParquetFile(storage, target, schema, options.compression)
    try:
        for group in _row_groups(_rows(storage, sources, schema), options.row_group_bytes_max):
            file.write(pa.Table.from_batches(group, schema))
        file.note(facts)
        footer = file.complete()
    except BaseException:
        file.abandon()
        raise
    return Output(target, footer.num_rows, file.size_bytes)


def _row_groups(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= bytes_max:
            yield waiting
            waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def _rows(storage: Storage, sources: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in sources:
        with storage.open_reader(path) as source:
            try:
                # Without a pre-buffer only the column chunks of one row group are in memory.
                parquet = pq.ParquetFile(source, pre_buffer=False)
                for number in range(parquet.num_row_groups):
                    count = _batch_rows(parquet.metadata.row_group(number))
                    for batch in parquet.iter_batches(count, row_groups=[number]):
                        yield fit_columns(batch, schema)
            except pa.ArrowException as error:
                reason = f"cannot read {path} of {storage.url}"
                raise InvariantError(reason, detail=str(error), hint=DAMAGED_FILE) from error


def _batch_rows(row_group: pq.RowGroupMetaData) -> int:
    row_bytes = row_group.total_byte_size / max(1, row_group.num_rows)
    return max(1, min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / max(1.0, row_bytes))))
