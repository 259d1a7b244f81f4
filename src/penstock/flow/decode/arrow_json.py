"""Whole arrays of JSON records through Arrow's reader: one record, one row, or an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.flow.decode.convert import fit, read_type
from penstock.flow.decode.new_types import known_fields, new_in_array, note_array
from penstock.flow.seen_types import NewFields, SeenTypes
from penstock.job.spec import NewColumnPolicy

_ROW_OF_ERROR = re.compile(r" in row (\d+)$")
_UNEXPECTED = {
    NewColumnPolicy.ADD: "infer",
    NewColumnPolicy.IGNORE: "ignore",
    NewColumnPolicy.QUARANTINE: "error",
    NewColumnPolicy.FAIL: "error",
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows in the schema's types, and the fields beyond the schema: None if they have to be looked for singly."""

    columns: pa.RecordBatch
    new_fields: NewFields | None


class ArrowReader:
    """Reads screened records; does not know maps."""

    def __init__(self, schema: pa.Schema, new_column: NewColumnPolicy) -> None:
        self._schema = schema
        self._new_column = new_column
        self._known = known_fields(schema)
        self._read_schema = pa.schema([(each.name, read_type(each.type)) for each in schema])

    def read(self, texts: pa.Array) -> Parsed:
        """Raises `pa.ArrowInvalid` if any record does not fit."""
        try:
            return self._read(texts, _UNEXPECTED[self._new_column])
        except pa.ArrowInvalid:
            if self._new_column is not NewColumnPolicy.ADD:
                raise
        # Values that conflict outside the schema fail the inference, but not the records.
        return Parsed(self._read(texts, "ignore").columns, None)

    def _read(self, texts: pa.Array, unexpected: str) -> Parsed:
        lines = _lines(texts)
        table = pj.read_json(
            pa.BufferReader(lines),
            # One block: at the end of a block the reader looks for the end of a line, which may be inside a record.
            pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            pj.ParseOptions(explicit_schema=self._read_schema, unexpected_field_behavior=unexpected),
        )
        # Screened records give one row each or this count differs: between two of them stands `}`, a line's end and
        # `{`, which no reader takes inside a string, nor behind a value that is still open.
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid(f"{len(texts)} records gave {table.num_rows} rows")
        columns = [fit(_whole(table.column(each.name)), each.type) for each in self._schema]
        return Parsed(pa.RecordBatch.from_arrays(columns, schema=self._schema), self._new_fields(table))

    def _new_fields(self, table: pa.Table) -> NewFields:
        found: NewFields = {}
        for name, column in zip(table.schema.names, table.columns, strict=True):
            if name not in self._known:
                found[name] = SeenTypes()
                note_array(found[name], _whole(column))
            elif (inner := new_in_array(_whole(column), self._known[name])) is not None:
                found[name] = inner
        return found


def row_of(error: pa.ArrowInvalid) -> int | None:
    """The row that an error of the reader names, if it names one."""
    found = _ROW_OF_ERROR.search(str(error))
    return int(found[1]) if found else None


def _lines(texts: pa.Array) -> pa.Buffer:
    """The texts as one buffer, a line's end behind each."""
    return pc.binary_join_element_wise(texts, "", "\n").buffers()[2]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
