"""The JSON decoder: Arrow's JSON reader for a whole batch, and msgspec to find the records that it refuses.

A batch without bad records is one call of Arrow's reader. If that fails, `screen` finds the bad records with msgspec,
`exact` those that only Arrow refuses, among records that look like it, and Arrow reads the rest. Every value comes from
Arrow's reader, but for plain values of maps, and a record is good if Arrow reads the record alone: what becomes of a
record does not depend on its neighbours.

New fields (`on.new_column`), at every level: `add` reports what their values show; `ignore` drops them, `quarantine`
makes the record bad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.json.exact import SMALL_EXPONENT, exact_fault
from penstock.flow.decode.json.new_fields import NO_PATHS, Paths, field_tree, in_record
from penstock.flow.decode.json.reader import JsonReader, Rows, Unexpected
from penstock.flow.decode.json.screen import screen_for
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, too_deep
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded
from penstock.flow.spans import spans_of
from penstock.job.spec import NewColumnPolicy, Payload, TombstonePolicy

SPECIFIED_TWICE = re.compile(r"(?:Column\(.*/(.*)\) )?was specified twice")
NEW_FIELD = re.compile("unexpected field|unknown field")
"""What the messages of Arrow and of msgspec contain."""
_NAMES_TWICE_MAX = 8
"""Names for which the records that give them twice are looked up; with more, every record is checked exactly."""
_REASON_CHARACTERS_MAX = 120
_UNEXPECTED: dict[NewColumnPolicy, Unexpected] = {"add": "infer", "quarantine": "error", "ignore": "ignore"}


@dataclass(slots=True)
class _Candidates:
    """Records that may still become rows.

    `rows` are their numbers in the batch, `errors` has the reasons why other rows of it are bad.
    """

    texts: pa.Array
    rows: npt.NDArray[np.int64]
    errors: dict[int, str]

    def mark(self, rows: Rows, reason: str) -> None:
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
    payload: Payload
    tombstone: TombstonePolicy
    new_column: NewColumnPolicy
    reserved: frozenset[str] = frozenset()
    """Names in lower case that no new field may have."""
    rare: Paths = NO_PATHS
    """New fields that get no column."""

    def __post_init__(self) -> None:
        self._fields = field_tree(self.schema)
        self._has_decimals = any(map(_has_decimals, self.schema.types))
        self._narrow, self._wide = JsonReader(self.schema, wide=False), JsonReader(self.schema, wide=True)
        # A hint of earlier batches about what will fail. It never changes a result.
        self._expects_misfits = False

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self.payload, self.tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        candidates = _Candidates(records, opened.rows, dict(opened.errors))
        columns, new_fields = self._read(candidates)
        return gathered(batch, columns, candidates.rows, candidates.errors, opened, new_fields)

    def _read(self, candidates: _Candidates) -> tuple[pa.RecordBatch, NewFields]:
        """The candidates that can be rows; the others are dropped with their reasons."""
        bad_before = len(candidates.errors)
        if self._has_decimals:
            self._drop_misread(candidates)
        screen = screen_for(self.schema, self.new_column == "quarantine")
        screened = self._expects_misfits
        if screened:
            candidates.drop(screen.bad(candidates.texts))
        unexpected = _UNEXPECTED[self.new_column]
        names_twice: set[str] = set()
        checked = False
        while True:
            try:
                columns, has_more = self._columns(candidates, screened, unexpected)
            except pa.ArrowInvalid as error:
                message = str(error)
                twice = SPECIFIED_TWICE.search(message)
                if twice and twice[1] and twice[1] not in names_twice and len(names_twice) < _NAMES_TWICE_MAX:
                    names_twice.add(twice[1])
                    self._drop_duplicates(candidates, twice[1])
                elif unexpected == "infer" and (screened or NEW_FIELD.search(message)):
                    # Values that conflict outside the schema fail the inference, but not the records.
                    unexpected = "ignore"
                elif not checked and (screened or twice):
                    checked = True
                    self._drop_faulty(candidates, np.arange(len(candidates.rows)))
                elif not screened:
                    screened = True
                    candidates.drop(screen.bad(candidates.texts))
                elif unreadable := self._unreadable(candidates.texts):
                    candidates.drop(unreadable)
                else:
                    raise
                continue
            self._expects_misfits = screened and len(candidates.errors) > bad_before
            if self.new_column != "add" or (unexpected == "infer" and not has_more):
                return columns, {}
            new_fields = self._new_fields(candidates)
            return columns.filter(candidates.drop_marked()), new_fields

    def _drop_misread(self, candidates: _Candidates) -> None:
        """Drop the records with decimals that Arrow reads as other numbers."""
        spans = spans_of(candidates.texts)
        places = np.flatnonzero((spans.bytes[:-1] | 0x20 == ord("e")) & (spans.bytes[1:] == ord("-")))
        rows = np.unique(np.searchsorted(spans.ends, places, side="right"))
        rows = rows[rows < len(spans)]
        is_small = pc.match_substring_regex(candidates.texts.take(pa.array(rows)), SMALL_EXPONENT)
        self._drop_faulty(candidates, rows[np.asarray(is_small)])

    def _drop_duplicates(self, candidates: _Candidates, name: str) -> None:
        """Drop the records that give the name twice in one object."""
        written = json.dumps(name, ensure_ascii=False).encode()
        records: list[bytes] = candidates.texts.to_pylist()
        rows = [row for row, record in enumerate(records) if record.count(written) > 1]
        self._drop_faulty(candidates, np.array(rows, np.int64))

    def _drop_faulty(self, candidates: _Candidates, rows: npt.NDArray[np.int64]) -> None:
        """Drop those of the records that the exact check refuses."""
        records = zip(rows.tolist(), candidates.texts.take(pa.array(rows)).to_pylist(), strict=True)
        faults = {row: reason for row, text in records if (reason := exact_fault(text, self._fields)) is not None}
        candidates.drop(faults)

    def _columns(self, candidates: _Candidates, wide: bool, unexpected: Unexpected) -> tuple[pa.RecordBatch, bool]:
        """The candidates as rows, without those whose values do not fit. Raises and returns as `JsonReader.read`."""
        texts = candidates.texts.cast(pa.string())
        if not wide:
            _refuse_non_objects(texts)
        reader = self._wide if wide else self._narrow
        columns, has_more = reader.read(texts, candidates.mark, unexpected)
        return columns.filter(candidates.drop_marked()), has_more

    def _unreadable(self, records: pa.Array, first: int = 0) -> dict[int, str]:
        """The records that Arrow refuses alone, found by halves; the numbers begin with `first`."""
        unexpected: Unexpected = "error" if self.new_column == "quarantine" else "ignore"
        try:
            self._wide.read(records.cast(pa.string()), lambda rows, reason: None, unexpected)
        except pa.ArrowInvalid as error:
            if len(records) == 1:
                return {first: f"not readable: {clipped(str(error), _REASON_CHARACTERS_MAX)}"}
            middle = len(records) // 2
            return self._unreadable(records[:middle], first) | self._unreadable(records[middle:], first + middle)
        return {}

    def _new_fields(self, candidates: _Candidates) -> NewFields:
        """What the candidates show; marks those with a name that cannot be new."""
        new_fields: NewFields = {}
        for row, record in enumerate(candidates.texts.to_pylist()):
            try:
                add_fields(new_fields, in_record(record, self._fields, self.reserved, self.rare))
            except MisfitError as misfit:
                candidates.mark([row], str(misfit))
        return new_fields


def _has_decimals(kind: pa.DataType) -> bool:
    """Whether the type is a decimal, or holds one at any depth."""
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(n).type) for n in range(kind.num_fields))


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
