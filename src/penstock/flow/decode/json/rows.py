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
from penstock.flow.decode.json.read_columns import Mark, Rows, fit, in_columns, in_record, known_fields, read_type
from penstock.flow.decode.json.screen import UNKNOWN_FIELD, duplicate_name, rewriter_for, screen_for
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, parse_object, too_deep, without_constants
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.job.spec import NewColumnPolicy, TombstonePolicy, Wrapping

_GIVEN_TWICE = re.compile(r"Column\((?:.*/)?([^/]+)\) was specified twice in row \d+$", re.DOTALL)
_NAMES_TWICE_MAX = 4
"""Of one batch: beyond it, every record is searched for duplicate names."""
_REASON_CHARACTERS_MAX = 120


@dataclass(slots=True)
class _Candidates:
    """Records that may still become rows, as Arrow reads them.

    `rows` are their numbers in the batch, `errors` says why other rows of it are bad.
    """

    texts: pa.Array
    rows: npt.NDArray[np.int64]
    errors: dict[int, str]

    def mark(self, numbers: Rows, reason: str) -> None:
        for row in self.rows[numbers].tolist():
            self.errors.setdefault(row, reason)

    def drop(self, reasons: Mapping[int, str]) -> None:
        self.errors.update(zip(self.rows[list(reasons)].tolist(), reasons.values(), strict=True))
        self.drop_marked()

    def drop_marked(self) -> pa.Array:
        """Keep only candidates without an error; returns which of them those are."""
        kept = np.isin(self.rows, list(self.errors), invert=True)
        if not kept.all():
            self.texts, self.rows = self.texts.filter(pa.array(kept)), self.rows[kept]
        return pa.array(kept)


@dataclass
class JsonDecoder:
    """Decodes records that are one JSON object each."""

    schema: pa.Schema
    wrapping: Wrapping
    tombstone: TombstonePolicy
    new_column: NewColumnPolicy
    reserved: frozenset[str] = frozenset()
    """Names in lower case that no new field may have."""

    def __post_init__(self) -> None:
        self._known = known_fields(self.schema)
        self._known_only = self.new_column in (NewColumnPolicy.QUARANTINE, NewColumnPolicy.FAIL)
        self._adds = self.new_column is NewColumnPolicy.ADD
        self._unexpected = "error" if self._known_only else "ignore"
        self._narrow, self._wide = (
            pa.schema([(field.name, read_type(field.type, field.name, wide=wide)) for field in self.schema])
            for wide in (False, True)
        )
        # A hint of the last batch about whether reading all at once will fail. It never changes a result.
        self._expects_bad = False

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self.wrapping, self.tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        candidates = _Candidates(records, opened.rows, dict(opened.errors))
        if not self._expects_bad:
            with suppress(pa.ArrowInvalid):
                columns, new_fields = self._read_all(records)
                return gathered(batch, columns, opened.rows, opened.errors, opened, new_fields)
        columns, new_fields = self._read_good(candidates)
        self._expects_bad = len(candidates.errors) > len(opened.errors)
        if self.new_column is NewColumnPolicy.FAIL:
            _refuse_new_fields(batch, candidates.errors)
        return gathered(batch, columns, candidates.rows, candidates.errors, opened, new_fields)

    def _read_all(self, records: pa.Array) -> tuple[pa.RecordBatch, NewFields]:
        """All records as rows. Raises `pa.ArrowInvalid` if one of them may be bad."""
        texts = self._texts(records, _refuse)
        _refuse_non_objects(texts)
        table = _table(texts, self._narrow, "infer" if self._adds else self._unexpected)
        return self._columns(table, _refuse), self._new_fields(table, _refuse) if self._adds else {}

    def _read_good(self, candidates: _Candidates) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates that can be rows; the others are dropped with their reasons."""
        candidates.drop(screen_for(self.schema, self._known_only, strict=False).bad(candidates.texts))
        candidates.texts = self._texts(candidates.texts, candidates.mark)
        candidates.drop_marked()
        table, inferred = self._readable(candidates)
        count = len(candidates.rows)
        columns = self._columns(table, candidates.mark)
        new_fields = self._new_fields(table, candidates.mark) if self._adds and inferred else {}
        columns = columns.filter(candidates.drop_marked())
        if self._adds and not inferred:
            new_fields = self._new_fields_singly(candidates)
            columns = columns.filter(candidates.drop_marked())
        elif new_fields and len(candidates.rows) < count:
            # What bad records hold must not count for the types of new fields.
            new_fields = self._new_fields(_table(candidates.texts, self._wide, "infer"), _refuse)
        return columns, new_fields

    def _readable(self, candidates: _Candidates) -> tuple[pa.Table, bool]:
        """What Arrow reads, and whether it inferred new fields; the candidates that it refuses are dropped."""
        names: set[str] = set()
        while True:
            try:
                return self._read(candidates.texts)
            except pa.ArrowInvalid as error:
                twice = _GIVEN_TWICE.search(str(error))
            if twice is None or twice[1] in names or len(names) == _NAMES_TWICE_MAX:
                break
            names.add(twice[1])
            self._drop_duplicates(candidates, json.dumps(twice[1], ensure_ascii=False).encode())
        self._drop_duplicates(candidates, b"")
        if not rewriter_for(self.schema).needed:
            strict = screen_for(self.schema, self._known_only, strict=True)
            candidates.drop(strict.bad(candidates.texts.cast(pa.binary())))
        self._mark_unreadable(candidates, 0, len(candidates.rows))
        candidates.drop_marked()
        return self._read(candidates.texts)

    def _read(self, texts: pa.Array) -> tuple[pa.Table, bool]:
        if self._adds:
            # Values that conflict outside the schema fail the inference, but not the records.
            with suppress(pa.ArrowInvalid):
                return _table(texts, self._wide, "infer"), True
        return _table(texts, self._wide, self._unexpected), False

    def _drop_duplicates(self, candidates: _Candidates, part: bytes) -> None:
        """Drop the records that give the name of a field twice, if they hold this part more than once."""
        reasons: dict[int, str] = {}
        for row, record in enumerate(candidates.texts.cast(pa.binary()).to_pylist()):
            if record.count(part) > 1:
                reason = duplicate_name(without_constants(record).strip(), self._known)
                if reason is not None:
                    reasons[row] = reason
        candidates.drop(reasons)

    def _mark_unreadable(self, candidates: _Candidates, start: int, end: int) -> None:
        """Mark the records that Arrow refuses alone, found by halves."""
        try:
            _table(candidates.texts[start:end], self._wide, self._unexpected)
        except pa.ArrowInvalid as error:
            if end - start == 1:
                candidates.mark([start], f"not readable: {clipped(str(error), _REASON_CHARACTERS_MAX)}")
                return
            middle = (start + end) // 2
            self._mark_unreadable(candidates, start, middle)
            self._mark_unreadable(candidates, middle, end)

    def _texts(self, records: pa.Array, mark: Mark) -> pa.Array:
        """The records as Arrow can read them."""
        rewriter = rewriter_for(self.schema)
        if not rewriter.needed:
            return records.cast(pa.string())
        texts: list[bytes] = []
        for row, record in enumerate(records.to_pylist()):
            try:
                texts.append(rewriter.rewrite(record))
            except MisfitError as misfit:
                mark([row], str(misfit))
                texts.append(b"{}")
        return pa.array(texts, pa.binary()).cast(pa.string())

    def _columns(self, table: pa.Table, mark: Mark) -> pa.RecordBatch:
        columns = [fit(_whole(table.column(field.name)), field.type, mark, field.name) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _new_fields(self, table: pa.Table, mark: Mark) -> NewFields:
        columns = zip(table.schema.names, map(_whole, table.columns), strict=True)
        return in_columns(columns, self._known, self.reserved, mark)

    def _new_fields_singly(self, candidates: _Candidates) -> NewFields:
        new_fields: NewFields = {}
        for row, record in enumerate(candidates.texts.cast(pa.binary()).to_pylist()):
            try:
                add_fields(new_fields, in_record(parse_object(record), self._known, self.reserved))
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
    if not _in_braces(texts) and not _in_braces(pc.utf8_trim(texts, " \t\r\n")):
        raise pa.ArrowInvalid("not an object")
    # Where Arrow's reader infers types it descends by recursion: 50,000 open brackets end the process.
    lengths = pc.binary_length(texts)
    if (pc.max(lengths).as_py() or 0) > DEPTH_MAX:
        long = texts.filter(pc.greater(lengths, DEPTH_MAX))
        if any(too_deep(bytes(text.as_buffer())) for text in long):
            raise pa.ArrowInvalid(TOO_DEEP)


def _in_braces(texts: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")), min_count=0).as_py())


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
