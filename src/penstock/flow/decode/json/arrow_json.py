"""Whole arrays of JSON records through Arrow's reader: one record, one row, or an error."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.flow.columns.seen_types import NewFields
from penstock.flow.decode.json.convert import Mark, fit, has_infinite, holds, read_type, wide_type
from penstock.flow.decode.json.new_types import known_fields, note_columns
from penstock.job.spec import NewColumnPolicy

_UNEXPECTED = {
    NewColumnPolicy.ADD: "infer",
    NewColumnPolicy.IGNORE: "ignore",
    NewColumnPolicy.QUARANTINE: "error",
    NewColumnPolicy.FAIL: "error",
}

_GIVEN_TWICE = re.compile(r"Column\(/([^/]+)\) was specified twice in row \d+$")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows in the schema's types, and the fields beyond the schema: None if they have to be looked for singly."""

    columns: pa.RecordBatch
    new_fields: NewFields | None


class ArrowReader:
    """Reads records that passed a screen; does not know maps."""

    def __init__(self, schema: pa.Schema, new_column: NewColumnPolicy) -> None:
        self._schema = schema
        self._new_column = new_column
        self._known = known_fields(schema)
        self._floating = [index for index, kind in enumerate(schema.types) if holds(kind, pa.types.is_floating)]
        self._read_schema = pa.schema([(each.name, read_type(each.type)) for each in schema])
        self._wide_schema = pa.schema([(each.name, wide_type(each.type)) for each in schema])

    def read(self, texts: pa.Array) -> Parsed:
        """Raises `pa.ArrowInvalid` if any record does not fit."""
        table = self._table(texts, self._read_schema, _UNEXPECTED[self._new_column])
        return Parsed(self._columns(table), self._new_fields(table))

    def read_fitting(self, texts: pa.Array, *, long_decimals: bool) -> tuple[Parsed, dict[int, str]]:
        """The records that fit, and the numbers of the others with the field that holds a decimal of too many digits.

        Raises `pa.ArrowInvalid` if anything else is wrong with any of them. `long_decimals` is whether some are
        expected: to look for them takes longer.
        """
        if not long_decimals and self._wide_schema != self._read_schema:
            try:
                return self.read(texts), {}
            except pa.ArrowInvalid as error:
                if given_twice(error):
                    raise
        try:
            return self._read_fitting(texts, _UNEXPECTED[self._new_column])
        except pa.ArrowInvalid as error:
            if self._new_column is not NewColumnPolicy.ADD or given_twice(error):
                raise
        # Values that conflict outside the schema fail the inference, but not the records.
        parsed, misfits = self._read_fitting(texts, "ignore")
        return Parsed(parsed.columns, None), misfits

    def _read_fitting(self, texts: pa.Array, unexpected: str) -> tuple[Parsed, dict[int, str]]:
        table = self._table(texts, self._wide_schema, unexpected)
        misfits: dict[int, str] = {}
        columns = self._columns(table, misfits)
        if not misfits:
            return Parsed(columns, self._new_fields(table)), {}
        kept = np.ones(len(texts), np.bool_)
        kept[list(misfits)] = False
        fitting = pa.array(kept)
        if table.num_columns > len(self._schema):
            # What the others hold besides must not count for the types of new fields.
            table = self._table(texts.filter(fitting), self._wide_schema, unexpected)
        return Parsed(columns.filter(fitting), self._new_fields(table)), misfits

    def _table(self, texts: pa.Array, schema: pa.Schema, unexpected: str) -> pa.Table:
        lines = _lines(texts)
        table = pj.read_json(
            pa.BufferReader(lines),
            # One block: at the end of a block the reader looks for the end of a line, which may be inside a record.
            pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
        # Screened records give one row each or this count differs: between two of them stands `}`, a line's end and
        # `{`, which no reader takes inside a string, nor after a value that is still open.
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid(f"{len(texts)} records gave {table.num_rows} rows")
        return table

    def _columns(self, table: pa.Table, misfits: dict[int, str] | None = None) -> pa.RecordBatch:
        """The columns of the schema; with `misfits`, rows with decimals of too many digits are noted there."""
        columns = [
            fit(_whole(table.column(each.name)), each.type, None if misfits is None else _mark(misfits, each.name))
            for each in self._schema
        ]
        if any(has_infinite(columns[index]) for index in self._floating):
            # Written so, or a number too large for its column: only the exact path can tell.
            raise pa.ArrowInvalid("an infinite number")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _new_fields(self, table: pa.Table) -> NewFields:
        found: NewFields = {}
        note_columns(found, zip(table.schema.names, map(_whole, table.columns), strict=True), self._known)
        return found


def _mark(misfits: dict[int, str], name: str) -> Mark:
    return lambda rows: misfits.update(dict.fromkeys(rows.tolist(), name))


def given_twice(error: pa.ArrowInvalid) -> str | None:
    """The field of the top level that a record gives twice, if that is what the reader found."""
    found = _GIVEN_TWICE.search(str(error))
    return found[1] if found else None


def _lines(texts: pa.Array) -> pa.Buffer:
    """The texts as one buffer, a line's end after each."""
    return pc.binary_join_element_wise(texts, "", "\n").buffers()[2]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
