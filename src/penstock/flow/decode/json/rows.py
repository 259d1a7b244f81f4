"""The JSON decoder: Arrow's JSON reader for a whole batch, and msgspec to find the records that it refuses.

A batch without bad records is one call of Arrow's reader. If that fails, `screen` finds the bad records with msgspec,
`exact` those that only Arrow refuses, among records that look like it, and Arrow reads the rest. Every value comes from
Arrow's reader, but for plain values of maps, and a record is good if Arrow reads the record alone: what becomes of a
record does not depend on its neighbours.

New fields (`on.new_column`), at every level: `add` reports what their values show; `ignore` drops them, `quarantine`
makes the record bad, `fail` raises an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.json.exact import GIVEN_TWICE, LONG_ZEROS, SUSPICIOUS_NUMBER, TINY_EXPONENT, exact_fault
from penstock.flow.decode.json.new_fields import FieldTree, field_tree, in_columns, in_record
from penstock.flow.decode.json.reader import ZERO_DECIMAL, JsonReader, MapTexts, Rows, map_texts, texts_decoder, whole
from penstock.flow.decode.json.screen import UNKNOWN_FIELD, refused, screen_for
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, parse_object, too_deep
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.job.spec import NewColumnPolicy, TombstonePolicy, Wrapping

_DECIMAL = "decimal256"
"""Part of Arrow's message for a decimal that it refuses."""
_GIVEN_TWICE = re.compile(r"Column\((?:.*/)?([^/]+)\) was specified twice in row \d+$", re.DOTALL)
_NAMES_TWICE_MAX = 8
"""How many duplicated names are searched for in all records, unless the first records have more."""
_SAMPLE_RECORDS = 256
_REASON_CHARACTERS_MAX = 120


@dataclass(slots=True)
class _Candidates:
    """Records that may still become rows, as Arrow reads them.

    `rows` are their numbers in the batch, `errors` has the reasons why other rows of it are bad.
    """

    texts: pa.Array
    rows: npt.NDArray[np.int64]
    errors: dict[int, str]
    fields: FieldTree

    def mark(self, rows: Rows, reason: str) -> None:
        if reason == ZERO_DECIMAL:
            texts = self.texts.take(pa.array(rows))
            rows = np.asarray(rows)[pc.match_substring_regex(texts, TINY_EXPONENT).to_numpy(zero_copy_only=False)]
            self.errors.update(self.faults(rows))
        else:
            for row in self.rows[rows].tolist():
                self.errors.setdefault(row, reason)

    def faults(self, rows: Rows) -> dict[int, str]:
        """By number in the batch the candidates that the exact check refuses."""
        chosen = np.asarray(rows, np.int64)
        records = zip(self.rows[chosen].tolist(), self.texts.take(pa.array(chosen)).to_pylist(), strict=True)
        return {row: reason for row, text in records if (reason := exact_fault(text, self.fields)) is not None}

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
        self._fields = field_tree(self.schema)
        self._known_only = self.new_column in ("quarantine", "fail")
        self._adds = self.new_column == "add"
        self._has_maps = any(pa.types.is_map(kind) for kind in self.schema.types)
        self._has_decimals = any(map(_has_decimals, self.schema.types))
        # The keys of maps are fields to Arrow: where there are maps, it neither refuses nor infers other fields.
        unexpected = "error" if self._known_only and not self._has_maps else "ignore"
        self._narrow, self._wide = (JsonReader(self.schema, wide=wide, unexpected=unexpected) for wide in (False, True))
        # Hints of earlier batches about what will fail. They never change a result.
        self._expects_misfits = False
        self._expects_misread_numbers = False
        self._names_twice: set[str] = set()

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self.wrapping, self.tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        candidates = _Candidates(records, opened.rows, dict(opened.errors), self._fields)
        columns, new_fields = self._read(candidates)
        if self.new_column == "fail":
            _refuse_new_fields(batch, candidates.errors)
        return gathered(batch, columns, candidates.rows, candidates.errors, opened, new_fields)

    def _read(self, candidates: _Candidates) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates that can be rows; the others are dropped with their reasons."""
        bad_before = len(candidates.errors)
        screened = self._expects_misfits
        numbers_checked = self._expects_misread_numbers or (self._has_decimals and _has_long_zeros(candidates))
        if screened:
            self._screen(candidates)
        if self._names_twice and not self._drop_duplicates(candidates, self._names_twice):
            self._names_twice = set()
        if numbers_checked:
            self._expects_misread_numbers = self._drop_misread_numbers(candidates)
        last_resorts = iter((self._drop_faulty, self._drop_unreadable))
        while True:
            try:
                columns, new_fields = self._rows(candidates, screened)
                self._expects_misfits = screened and len(candidates.errors) > bad_before
                return columns, new_fields
            except pa.ArrowInvalid as error:
                message = str(error)
            twice = _GIVEN_TWICE.search(message)
            if twice and twice[1] not in self._names_twice and len(self._names_twice) < _NAMES_TWICE_MAX:
                self._names_twice |= {twice[1], *_names_given_twice(candidates)}
                self._drop_duplicates(candidates, self._names_twice)
                continue
            if not numbers_checked and (screened or _DECIMAL in message):
                numbers_checked = True
                self._expects_misread_numbers = self._drop_misread_numbers(candidates)
                if self._expects_misread_numbers:
                    continue
            if screened:
                next(last_resorts)(candidates)
            else:
                screened = True
                self._screen(candidates)

    def _screen(self, candidates: _Candidates) -> None:
        """Drop the records that msgspec refuses."""
        candidates.drop(screen_for(self.schema, self._known_only).bad(candidates.texts))

    def _drop_misread_numbers(self, candidates: _Candidates) -> bool:
        """Drop the records with numbers that only Arrow refuses, or misreads; returns whether there were some."""
        rows = pc.indices_nonzero(pc.match_substring_regex(candidates.texts, SUSPICIOUS_NUMBER))
        return self._drop_faulty(candidates, rows.to_numpy())

    def _drop_duplicates(self, candidates: _Candidates, names: Iterable[str]) -> bool:
        """Drop the records that give one of these fields twice; returns whether there were some."""
        records: list[bytes] = candidates.texts.to_pylist()
        parts = [json.dumps(name, ensure_ascii=False).encode() for name in names]
        return self._drop_faulty(
            candidates, sorted({row for part in parts for row, text in enumerate(records) if text.count(part) > 1})
        )

    def _drop_faulty(self, candidates: _Candidates, rows: Rows | None = None) -> bool:
        """Drop those of the records that the exact check refuses; returns whether there were some."""
        faults = candidates.faults(range(len(candidates.rows)) if rows is None else rows)
        candidates.errors.update(faults)
        candidates.drop_marked()
        return bool(faults)

    def _drop_unreadable(self, candidates: _Candidates) -> None:
        self._mark_unreadable(candidates, 0, len(candidates.rows))
        candidates.drop_marked()

    def _rows(self, candidates: _Candidates, screened: bool) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates as rows, without those whose values do not fit. Raises `pa.ArrowInvalid`."""
        texts = candidates.texts.cast(pa.string())
        if not screened:
            _refuse_non_objects(texts)
        maps, has_new_fields = self._map_texts(candidates.texts, screened)
        reader = self._wide if screened else self._narrow
        table, inferred = self._table(reader, texts, screened)
        columns = reader.columns(table, maps, candidates.mark)
        if not self._adds:
            return columns.filter(candidates.drop_marked()), {}
        new_fields: NewFields = {}
        if inferred:
            new_fields = self._new_fields(table, candidates)
        kept = candidates.drop_marked()
        columns = columns.filter(kept)
        if has_new_fields or not (inferred or self._has_maps):
            new_fields = self._new_fields_singly(candidates)
            columns = columns.filter(candidates.drop_marked())
        elif new_fields and pc.min(kept, min_count=0).as_py() is False:
            # What bad records hold must not count for the types of new fields.
            new_fields = self._new_fields(reader.table(candidates.texts.cast(pa.string()), "infer"), candidates)
        return columns, new_fields

    def _map_texts(self, records: pa.Array, screened: bool) -> tuple[MapTexts, bool]:
        """The texts of maps, and whether there are new fields that Arrow does not find because of them."""
        if not self._has_maps:
            return {}, False
        texts: list[bytes] = records.to_pylist()
        if self.new_column != "ignore":
            try:
                return map_texts(self.schema, texts, known_only=True), False
            except pa.ArrowInvalid:
                if self._known_only and not screened:
                    raise
        return map_texts(self.schema, texts, known_only=False), True

    def _table(self, reader: JsonReader, texts: pa.Array, screened: bool) -> tuple[pa.Table, bool]:
        """What Arrow reads, and whether it inferred new fields."""
        if self._adds and not self._has_maps:
            # Values that conflict outside the schema fail the inference, but not the records.
            try:
                return reader.table(texts, "infer"), True
            except pa.ArrowInvalid:
                if not screened:
                    raise
        return reader.table(texts), False

    def _mark_unreadable(self, candidates: _Candidates, start: int, end: int) -> None:
        """Mark the records that Arrow refuses alone, found by halves."""
        texts = candidates.texts[start:end].cast(pa.string())
        try:
            maps, _ = self._map_texts(candidates.texts[start:end], screened=True)
            self._wide.columns(self._wide.table(texts), maps, lambda rows, reason: None)
        except pa.ArrowInvalid as error:
            if end - start == 1:
                candidates.mark([start], f"not readable: {clipped(str(error), _REASON_CHARACTERS_MAX)}")
                return
            middle = (start + end) // 2
            self._mark_unreadable(candidates, start, middle)
            self._mark_unreadable(candidates, middle, end)

    def _new_fields(self, table: pa.Table, candidates: _Candidates) -> NewFields:
        columns = zip(table.schema.names, map(whole, table.columns), strict=True)
        return in_columns(columns, self._fields, self.reserved, candidates.mark)

    def _new_fields_singly(self, candidates: _Candidates) -> NewFields:
        new_fields: NewFields = {}
        records: list[bytes] = candidates.texts.to_pylist()
        rows: Iterable[int] = range(len(records))
        if self._has_maps:
            rows = refused(records, texts_decoder(self.schema), lambda *_: "")
        for row in rows:
            try:
                add_fields(new_fields, in_record(parse_object(records[row]), self._fields, self.reserved))
            except MisfitError as misfit:
                candidates.mark([row], str(misfit))
        return new_fields


def _names_given_twice(candidates: _Candidates) -> set[str]:
    """The names that the first records give twice: Arrow names only one at a time."""
    faults = candidates.faults(range(min(len(candidates.rows), _SAMPLE_RECORDS)))
    paths = (reason.removesuffix(GIVEN_TWICE) for reason in faults.values() if reason.endswith(GIVEN_TWICE))
    return {path.rpartition(".")[2] for path in paths}


def _has_decimals(kind: pa.DataType) -> bool:
    """Whether the type is a decimal, or holds one at any depth."""
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(n).type) for n in range(kind.num_fields))


def _has_long_zeros(candidates: _Candidates) -> bool:
    """Whether Arrow may read a decimal as another number."""
    bytes_of_texts = candidates.texts.buffers()[2]
    return bytes_of_texts is not None and LONG_ZEROS in bytes_of_texts.to_pybytes()


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
