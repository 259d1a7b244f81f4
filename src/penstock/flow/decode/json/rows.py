"""The JSON decoder: Arrow's JSON reader for a whole batch, and msgspec to find the records that it refuses.

A batch without bad records is one call of Arrow's reader. If that fails, `screen` finds the bad records and Arrow reads
the others. If that fails too, some of them give a name twice, or hold something that only Arrow's reader refuses;
these are searched for. Every value comes from Arrow's reader, and a record is good if it reads the record alone: what
becomes of a record does not depend on its neighbours.

New fields (`on.new_column`), at every level: `add` reports what their values show; `ignore` drops them, `quarantine`
makes the record bad, `fail` raises an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import UserError
from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.json.column_types import Mark, Rows, fit, known_fields, read_type
from penstock.flow.decode.json.new_fields import in_columns, in_record
from penstock.flow.decode.json.rewriting import rewriter_for
from penstock.flow.decode.json.screen import UNKNOWN_FIELD, refuse_duplicates, screen_for
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, parse_object, too_deep
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.job.spec import NewColumnPolicy, TombstonePolicy, Wrapping

_BLANKS = " \t\r\n"
_GIVEN_TWICE = re.compile(r"Column\((?:.*/)?([^/]+)\) was specified twice in row \d+$", re.DOTALL)
_NAMES_TWICE_MAX = 4
"""Of one batch: beyond it, records with further names are found by reading parts of the batch."""
_REASON_CHARACTERS_MAX = 120


@dataclass(frozen=True, slots=True)
class _Rows:
    columns: pa.RecordBatch
    new_fields: NewFields


@dataclass(slots=True)
class _Candidates:
    """Records that may still become rows; `rows` are their numbers in the batch, `errors` why other rows are bad."""

    records: pa.Array
    rows: npt.NDArray[np.int64]
    errors: dict[int, str]

    def texts(self) -> pa.Array:
        return self.records.cast(pa.string())

    def is_marked(self, number: int) -> bool:
        return int(self.rows[number]) in self.errors

    def mark(self, numbers: Rows, reason: str) -> None:
        for row in self.rows[numbers].tolist():
            self.errors.setdefault(row, reason)

    def mark_each(self, reasons: Mapping[int, str]) -> None:
        self.errors.update(zip(self.rows[list(reasons)].tolist(), reasons.values(), strict=True))

    def drop_marked(self) -> pa.Array:
        """Keep only candidates without an error; returns which of them those are."""
        kept = np.isin(self.rows, list(self.errors), invert=True)
        self.records, self.rows = self.records.filter(pa.array(kept)), self.rows[kept]
        return pa.array(kept)


class JsonDecoder:
    """Decodes records that are one JSON object each."""

    def __init__(
        self,
        schema: pa.Schema,
        wrapping: Wrapping,
        tombstone: TombstonePolicy,
        new_column: NewColumnPolicy,
        loose: pa.Schema | None = None,
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        """`loose` is the schema, with texts that take any value. `reserved` are names in lower case of no new field."""
        self._schema = schema
        self._loose = schema if loose is None else loose
        self._wrapping = wrapping
        self._tombstone = tombstone
        self._new_column = new_column
        self._known = known_fields(schema)
        self._reserved = reserved
        self._known_only = new_column in (NewColumnPolicy.QUARANTINE, NewColumnPolicy.FAIL)
        self._adds = new_column is NewColumnPolicy.ADD
        self._unexpected = "error" if self._known_only else "ignore"
        self._narrow, self._wide = (
            pa.schema([(field.name, read_type(field.type, wide=wide)) for field in schema]) for wide in (False, True)
        )
        # Hints of earlier batches about what will fail. They never change a result.
        self._expects_bad = False
        self._names_twice: list[str] = []

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self._wrapping, self._tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        rows = None if self._expects_bad else self._read_all(records)
        errors = dict(opened.errors)
        if rows is not None:
            return gathered(batch, rows.columns, opened.rows, errors, opened, rows.new_fields)
        candidates = _Candidates(records, opened.rows, errors)
        rows = self._read_good(candidates)
        self._expects_bad = len(errors) > len(opened.errors)
        if not self._expects_bad:
            self._names_twice = []
        if self._new_column is NewColumnPolicy.FAIL:
            _refuse_new_fields(batch, errors)
        return gathered(batch, rows.columns, candidates.rows, errors, opened, rows.new_fields)

    def _read_all(self, records: pa.Array) -> _Rows | None:
        """All records as rows; None if one of them may be bad."""
        try:
            texts = self._rewritten(records, self._schema, _refuse).cast(pa.string())
            _refuse_non_objects(texts)
            table = _table(texts, self._narrow, "infer" if self._adds else self._unexpected)
            columns = self._columns(table, _refuse)
            return _Rows(columns, self._new_fields(table, _refuse) if self._adds else {})
        except pa.ArrowInvalid:
            return None

    def _read_good(self, candidates: _Candidates) -> _Rows:
        """The candidates that can be rows; the others are dropped with their reasons."""
        candidates.mark_each(screen_for(self._loose, self._known_only).bad(candidates.records))
        candidates.drop_marked()
        candidates.records = self._rewritten(candidates.records, self._loose, candidates.mark)
        for name in self._names_twice:
            self._mark_duplicates(name, candidates)
        candidates.drop_marked()
        table, inferred = self._readable(candidates)
        columns = self._columns(table, candidates.mark)
        new_fields: NewFields = {}
        if self._adds and inferred:
            new_fields = self._new_fields(table, candidates.mark)
        elif self._adds:
            new_fields = self._new_fields_singly(candidates)
        count = len(candidates.rows)
        columns = columns.filter(candidates.drop_marked())
        if new_fields and inferred and len(candidates.rows) < count:
            # What bad records hold must not count for the types of new fields.
            new_fields = self._new_fields(_table(candidates.texts(), self._wide, "infer"), _refuse)
        return _Rows(columns, new_fields)

    def _readable(self, candidates: _Candidates) -> tuple[pa.Table, bool]:
        """What Arrow reads, and whether it inferred new fields; the candidates that it refuses are dropped."""
        for _ in range(_NAMES_TWICE_MAX):
            try:
                return self._read(candidates)
            except pa.ArrowInvalid as error:
                twice = _GIVEN_TWICE.search(str(error))
            if twice is None or twice[1] in self._names_twice:
                break
            self._names_twice = [*self._names_twice, twice[1]][-_NAMES_TWICE_MAX:]
            self._mark_duplicates(twice[1], candidates)
            candidates.drop_marked()
        self._mark_unreadable(candidates, 0, len(candidates.rows))
        candidates.drop_marked()
        return self._read(candidates)

    def _read(self, candidates: _Candidates) -> tuple[pa.Table, bool]:
        texts = candidates.texts()
        if self._adds:
            # Values that conflict outside the schema fail the inference, but not the records.
            with suppress(pa.ArrowInvalid):
                return _table(texts, self._wide, "infer"), True
        return _table(texts, self._wide, self._unexpected), False

    def _mark_duplicates(self, name: str, candidates: _Candidates) -> None:
        """Mark the records with a duplicate name, if they hold this name more than once."""
        quoted = json.dumps(name, ensure_ascii=False).encode()
        for row, record in enumerate(candidates.records.to_numpy(zero_copy_only=False).tolist()):
            if record.count(quoted) > 1:
                try:
                    refuse_duplicates(parse_object(record), self._known)
                except MisfitError as misfit:
                    candidates.mark([row], str(misfit))

    def _mark_unreadable(self, candidates: _Candidates, start: int, end: int) -> None:
        """Mark the records that Arrow refuses alone, found by halves."""
        try:
            _table(candidates.texts()[start:end], self._wide, self._unexpected)
        except pa.ArrowInvalid as error:
            if end - start == 1:
                candidates.mark([start], f"not readable: {clipped(str(error), _REASON_CHARACTERS_MAX)}")
                return
            middle = (start + end) // 2
            self._mark_unreadable(candidates, start, middle)
            self._mark_unreadable(candidates, middle, end)

    def _rewritten(self, records: pa.Array, schema: pa.Schema, mark: Mark) -> pa.Array:
        rewriter = rewriter_for(schema)
        if not rewriter.needed:
            return records
        texts: list[bytes] = []
        for row, record in enumerate(records.to_numpy(zero_copy_only=False).tolist()):
            try:
                texts.append(rewriter.rewrite(record))
            except MisfitError as misfit:
                mark([row], str(misfit))
                texts.append(record)
        return pa.array(texts, pa.binary())

    def _columns(self, table: pa.Table, mark: Mark) -> pa.RecordBatch:
        columns = [fit(_whole(table.column(field.name)), field.type, mark, field.name) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _new_fields(self, table: pa.Table, mark: Mark) -> NewFields:
        columns = zip(table.schema.names, map(_whole, table.columns), strict=True)
        return in_columns(columns, self._known, self._reserved, mark)

    def _new_fields_singly(self, candidates: _Candidates) -> NewFields:
        new_fields: NewFields = {}
        for row, record in enumerate(candidates.records.to_pylist()):
            try:
                if not candidates.is_marked(row):
                    add_fields(new_fields, in_record(parse_object(record), self._known, self._reserved))
            except MisfitError as misfit:
                candidates.mark([row], str(misfit))
        return new_fields


def _refuse_new_fields(batch: pa.RecordBatch, errors: Mapping[int, str]) -> None:
    """Raise `UserError` if a record is bad because of a field that the schema lacks."""
    for row in sorted(errors):
        path = errors[row].removesuffix(f": {UNKNOWN_FIELD}")
        if path != errors[row]:
            topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
            raise UserError(
                f"{topic}/{partition} offset {offset}: the field {path} is not in the schema",
                hint="add the field to the schema, or set on.new_column to add, ignore or quarantine",
            )


def _refuse(_: Rows, reason: str) -> None:
    raise pa.ArrowInvalid(reason)


def _refuse_non_objects(texts: pa.Array) -> None:
    """Raise `pa.ArrowInvalid` unless each text is one object by its ends, and nests no deeper than Arrow's stack."""
    # Most records have no blanks around them, so the look without them comes first.
    if not _in_braces(texts) and not _in_braces(pc.utf8_trim(texts, _BLANKS)):
        raise pa.ArrowInvalid("not an object")
    # Where Arrow's reader infers types it descends by recursion: 50,000 open brackets end the process.
    lengths = pc.binary_length(texts)
    if (pc.max(lengths).as_py() or 0) > DEPTH_MAX:
        long = texts.filter(pc.greater(lengths, DEPTH_MAX))
        if any(too_deep(bytes(text.as_buffer())) for text in long):
            raise pa.ArrowInvalid(TOO_DEEP)


def _in_braces(texts: pa.Array) -> bool:
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return bool(pc.all(whole, min_count=0).as_py())


def _table(texts: pa.Array, schema: pa.Schema, unexpected: str) -> pa.Table:
    """The records as Arrow reads them. Raises `pa.ArrowInvalid` unless each gives one row."""
    if not len(texts):
        return schema.empty_table()
    lines = pc.binary_join_element_wise(texts, "", "\n").buffers()[2]
    table = pj.read_json(
        pa.BufferReader(lines),
        # One block: at the end of a block the reader looks for the end of a line, which may be inside a record.
        pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    # Between two records stands `}`, a line's end and `{`, which no reader takes inside a string, nor after a value
    # that is still open: so each record gives one row, or this count differs.
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid(f"{len(texts)} records gave {table.num_rows} rows")
    return table


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
