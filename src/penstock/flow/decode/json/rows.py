"""The JSON decoder: Arrow's JSON reader for a whole batch, and msgspec to find the records that it refuses.

A batch without bad records is one call of Arrow's reader. If that fails, records that give a name twice are searched
for where it names one, and `screen` finds the other bad records; Arrow then reads the rest. If that fails too, they
hold something that only Arrow's reader refuses, and are searched for. Every value comes from Arrow's reader, and a
record is good if it reads the record alone: what becomes of a record does not depend on its neighbours.

New fields (`on.new_column`), at every level: `add` reports what their values show; `ignore` drops them, `quarantine`
makes the record bad, `fail` raises an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.json.new_fields import Known, MapOf, in_columns, in_record, known_fields
from penstock.flow.decode.json.reader import TINY_NUMBER, Reader, Rows, has_map, map_decoder, whole
from penstock.flow.decode.json.screen import UNKNOWN_FIELD, duplicate_name, refused, screen_for
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, parse_object, too_deep, without_constants
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.job.spec import NewColumnPolicy, TombstonePolicy, Wrapping

_GIVEN_TWICE = re.compile(r"Column\((?:.*/)?([^/]+)\) was specified twice in row \d+$", re.DOTALL)
_NAMES_TWICE_MAX = 3
"""That are looked for one after the other: with one more, all names are."""
_REASON_CHARACTERS_MAX = 120


@dataclass(slots=True)
class _Candidates:
    """Records that may still become rows, as Arrow reads them.

    `rows` are their numbers in the batch, `errors` says why other rows of it are bad.
    """

    texts: pa.Array
    rows: npt.NDArray[np.int64]
    errors: dict[int, str]

    odd_decimals: Callable[[pa.Array], Mapping[int, str]]

    def mark(self, rows: Rows, reason: str, pattern: str | None = None) -> None:
        if pattern is not None:
            rows = np.asarray(rows)
            texts = self.texts.take(pa.array(rows))
            matching = np.flatnonzero(pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False))
            # The number may be in another column: msgspec knows.
            rows = rows[matching[[*self.odd_decimals(texts.take(pa.array(matching)))]]] if len(matching) else []
        for row in self.rows[rows].tolist():
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
        self._has_maps = has_map(pa.struct(list(self.schema)))
        # The keys of maps are fields to Arrow: where there are maps, it neither refuses nor infers other fields.
        unexpected = "error" if self._known_only and not self._has_maps else "ignore"
        self._narrow, self._wide = (Reader(self.schema, wide=wide, unexpected=unexpected) for wide in (False, True))
        # Hints of earlier batches about what will fail. They never change a result.
        self._expects_misfits = False
        self._names_twice: set[str] = set()

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self.wrapping, self.tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        candidates = _Candidates(records, opened.rows, dict(opened.errors), self._odd_decimals)
        columns, new_fields = self._read(candidates)
        if self.new_column is NewColumnPolicy.FAIL:
            _refuse_new_fields(batch, candidates.errors)
        return gathered(batch, columns, candidates.rows, candidates.errors, opened, new_fields)

    def _read(self, candidates: _Candidates) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates that can be rows; the others are dropped with their reasons."""
        bad_before = len(candidates.errors)
        screened = self._expects_misfits
        if screened:
            self._screen(candidates)
        if self._names_twice and not self._drop_duplicates(candidates, self._names_twice):
            self._names_twice = set()
        remedies = iter((self._drop_odd_decimals, self._drop_duplicates, self._drop_unreadable))
        while True:
            try:
                columns, new_fields = self._rows(candidates, screened)
                self._expects_misfits = screened and len(candidates.errors) > bad_before
                return columns, new_fields
            except pa.ArrowInvalid as error:
                twice = _GIVEN_TWICE.search(str(error))
            if twice is not None and twice[1] not in self._names_twice:
                names = {twice[1]} if len(self._names_twice) < _NAMES_TWICE_MAX else {*_names(self._known)}
                self._names_twice |= names
                self._drop_duplicates(candidates, names)
            elif not screened:
                screened = True
                self._screen(candidates)
            else:
                next(remedies)(candidates)

    def _screen(self, candidates: _Candidates) -> None:
        """Drop the records that msgspec refuses."""
        candidates.drop(screen_for(self.schema, self._known_only, strict=False).bad(candidates.texts))

    def _drop_odd_decimals(self, candidates: _Candidates) -> None:
        """Drop the records with decimals that only Arrow refuses."""
        candidates.drop(self._odd_decimals(candidates.texts))

    def _odd_decimals(self, records: pa.Array) -> dict[int, str]:
        """The records that msgspec refuses if it looks at decimals closely, and is shown tiny numbers as large ones."""
        texts = pc.replace_substring_regex(records.cast(pa.string()), TINY_NUMBER, "1e300")
        return screen_for(self.schema, self._known_only, strict=True).bad(texts.cast(pa.binary()))

    def _drop_unreadable(self, candidates: _Candidates) -> None:
        self._mark_unreadable(candidates, 0, len(candidates.rows))
        candidates.drop_marked()

    def _rows(self, candidates: _Candidates, screened: bool) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates as rows, without those whose values do not fit. Raises `pa.ArrowInvalid`."""
        texts = candidates.texts.cast(pa.string())
        if not screened:
            _refuse_non_objects(texts)
            if self._known_only and self._with_new_fields(candidates.texts.to_pylist()):
                raise pa.ArrowInvalid(UNKNOWN_FIELD)
        reader = self._wide if screened else self._narrow
        table, inferred = self._table(reader, texts, screened)
        columns = reader.columns(table, texts, candidates.mark)
        if not self._adds:
            return columns.filter(candidates.drop_marked()), {}
        new_fields: NewFields = {}
        if inferred:
            new_fields = self._new_fields(table, candidates)
        kept = candidates.drop_marked()
        columns = columns.filter(kept)
        if not inferred:
            new_fields = self._new_fields_singly(candidates)
            columns = columns.filter(candidates.drop_marked())
        elif new_fields and pc.min(kept, min_count=0).as_py() is False:
            # What bad records hold must not count for the types of new fields.
            new_fields = self._new_fields(reader.table(candidates.texts.cast(pa.string()), "infer"), candidates)
        return columns, new_fields

    def _table(self, reader: Reader, texts: pa.Array, screened: bool) -> tuple[pa.Table, bool]:
        """What Arrow reads, and whether it inferred new fields."""
        if self._adds and not self._has_maps:
            # Values that conflict outside the schema fail the inference, but not the records.
            try:
                return reader.table(texts, "infer"), True
            except pa.ArrowInvalid:
                if not screened:
                    raise
        return reader.table(texts), False

    def _drop_duplicates(self, candidates: _Candidates, names: set[str] | None = None) -> bool:
        """Drop the records that give one of these fields twice, or any field; returns whether there were some."""
        records: list[bytes] = candidates.texts.to_pylist()
        rows: Iterable[int] = range(len(records))
        if names is not None:
            parts = [json.dumps(name, ensure_ascii=False).encode() for name in sorted(names)]
            rows = sorted({row for part in parts for row, text in enumerate(records) if text.count(part) > 1})
        reasons = {row: reason for row in rows if (reason := _duplicate_name(records[row], self._known)) is not None}
        candidates.drop(reasons)
        return bool(reasons)

    def _mark_unreadable(self, candidates: _Candidates, start: int, end: int) -> None:
        """Mark the records that Arrow refuses alone, found by halves."""
        texts = candidates.texts[start:end].cast(pa.string())
        try:
            self._wide.columns(self._wide.table(texts), texts, _pass)
        except pa.ArrowInvalid as error:
            if end - start == 1:
                candidates.mark([start], f"not readable: {clipped(str(error), _REASON_CHARACTERS_MAX)}")
                return
            middle = (start + end) // 2
            self._mark_unreadable(candidates, start, middle)
            self._mark_unreadable(candidates, middle, end)

    def _new_fields(self, table: pa.Table, candidates: _Candidates) -> NewFields:
        columns = zip(table.schema.names, map(whole, table.columns), strict=True)
        return in_columns(columns, self._known, self.reserved, candidates.mark)

    def _new_fields_singly(self, candidates: _Candidates) -> NewFields:
        new_fields: NewFields = {}
        records: list[bytes] = candidates.texts.to_pylist()
        rows: Iterable[int] = range(len(records))
        if self._has_maps:
            rows = self._with_new_fields(records)
        for row in rows:
            try:
                add_fields(new_fields, in_record(parse_object(records[row]), self._known, self.reserved))
            except MisfitError as misfit:
                candidates.mark([row], str(misfit))
        return new_fields

    def _with_new_fields(self, records: list[bytes]) -> Iterable[int]:
        """The records that may have a field that the schema lacks, where Arrow does not find them."""
        if not self._has_maps:
            return ()
        return refused(records, map_decoder(pa.struct(list(self.schema)), known_only=True), lambda *_: "")


def _names(known: Known | MapOf | None) -> Iterator[str]:
    """The names of all fields at any depth."""
    if isinstance(known, MapOf):
        yield from _names(known.values)
    elif known is not None:
        for name, below in known.items():
            yield name
            yield from _names(below)


def _duplicate_name(record: bytes, known: Known) -> str | None:
    try:
        return duplicate_name(without_constants(record).strip(), known)
    except msgspec.MsgspecError:
        # It is bad for another reason, which is found later.
        return None


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


def _pass(rows: Rows, reason: str, pattern: str | None = None) -> None:
    """Let values that do not fit pass."""


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
