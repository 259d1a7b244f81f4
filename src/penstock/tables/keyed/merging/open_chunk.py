"""Reads an open file of a keyed table: all of it, row groups, or single rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import UserError
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.lake.delta.vectors import Rows

REPEATED_BYTES_MAX = 4
"""A text that is stored for itself has a length of 4 bytes: texts that need less on average repeat.

Measured with 500,000 texts: of those that repeat ten times, codes take 7 ms of CPU to read and texts 10; a thousand
times, 2 and 9; of texts that do not repeat, 67 and 18."""


@dataclass(frozen=True)
class OpenChunk:
    """Columns come in the order, spelling and types of the table; those that the file lacks are null."""

    source: IO[bytes]
    schema: pa.Schema

    @cached_property
    def footer(self) -> pq.FileMetaData:
        return self._parquet().metadata

    @cached_property
    def group_starts(self) -> Rows:
        """The number of the first row of each row group, and at the end the number of rows."""
        groups = range(self.footer.num_row_groups)
        return np.cumsum([0, *(self.footer.row_group(group).num_rows for group in groups)])

    def read(self, columns: Iterable[str] | None = None, groups: Sequence[int] | None = None) -> pa.Table:
        """These columns of these row groups; all of them if they are not stated."""
        return self._read(self.schema if columns is None else _chosen(self.schema, columns), groups)

    def read_codes(self, columns: Iterable[str], groups: Sequence[int]) -> pa.Table:
        """The same, with dictionaries of texts that repeat: they are read faster."""
        schema = _chosen(self.schema, columns)
        for number, field in enumerate(schema):
            is_text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
            if is_text and self._repeats(field.name, groups):
                schema = schema.set(number, field.with_type(pa.dictionary(pa.int32(), field.type)))
        return self._read(schema, groups)

    def read_at(self, rows: Rows, columns: Iterable[str] | None = None) -> pa.Table:
        """These rows in their order; other row groups are not read."""
        starts = self.group_starts
        groups, of_row = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_inverse=True)
        sizes = np.diff(starts)[groups]
        read = self.read(columns, groups.tolist())
        return read.take(pa.array(rows - starts[groups][of_row] + (np.cumsum(sizes) - sizes)[of_row]))

    def column_number(self, name: str) -> int:
        """The number of a column in the footer, where each leaf of a nested one counts."""
        numbers = range(self.footer.num_columns)
        return next(number for number in numbers if self.footer.schema.column(number).path == name)

    def _read(self, schema: pa.Schema, groups: Sequence[int] | None) -> pa.Table:
        coded = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        # Of few columns a request reads several row groups; whole rows would be held twice.
        parquet = self._parquet(coded, self.footer, pre_buffer=len(schema) < len(self.schema))
        wanted = {folded(name) for name in schema.names}
        names = [name for name in parquet.schema_arrow.names if folded(name) in wanted]
        chosen = [*range(self.footer.num_row_groups)] if groups is None else groups
        rows = joined([parquet.read_row_groups(chosen, columns=names, use_threads=False)])
        return pa.Table.from_batches([fit_columns(batch, schema) for batch in rows.to_batches()], schema)

    def _repeats(self, name: str, groups: Sequence[int]) -> bool:
        number = self.column_number(name)
        chunks = [self.footer.row_group(group).column(number) for group in groups]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        return bool(size < REPEATED_BYTES_MAX * sum(chunk.num_values for chunk in chunks))

    def _parquet(
        self, coded: Sequence[str] = (), footer: pq.FileMetaData | None = None, *, pre_buffer: bool = False
    ) -> pq.ParquetFile:
        return pq.ParquetFile(self.source, metadata=footer, read_dictionary=coded, pre_buffer=pre_buffer)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables in one piece. Raises `UserError` if a column has more bytes than Arrow can hold in one."""
    rows = pa.concat_tables(tables).combine_chunks()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if column.num_chunks > 1:
            raise UserError(
                f"{rows.num_rows} rows of one bucket have {column.nbytes >> 20} MiB in the column {name}: "
                "more than 2 GiB cannot be merged at once",
                hint="lower table.keyed.chunk_rows, and for a batch flush.max_bytes_per_batch",
            )
    return rows


def _chosen(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])
