"""The JSON decoder: a fast path over the whole batch, and an exact one for the records that it cannot take.

A batch that fails is cut into pieces; a failing piece is cut where the reader's error points, or in halves, until few
records are left or enough work is spent; then the exact path judges each of them. The values of good records come
from the fast path alone, so a record's fate does not depend on its neighbours. Schemas with maps take the exact path
for every record, at less than a tenth of the speed.

New fields (`on.new_column`), at every level: `add` reports what their values show, and makes a record bad whose field
differs from a known one only in case; `ignore` drops them, `quarantine` makes the record bad, `fail` raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.decode.arrow_json import ArrowReader, row_of
from penstock.flow.decode.convert import has_map
from penstock.flow.decode.exact import ExactReader, members_of
from penstock.flow.decode.json_text import JsonObject
from penstock.flow.decode.leaves import Value
from penstock.flow.decode.misfit import MisfitError, clipped
from penstock.flow.decode.new_types import known_fields, note_members
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.decode.screen import Piece, screened
from penstock.flow.decode.spelling import misspelled, well_spelled
from penstock.flow.rows import Decoded, take
from penstock.flow.seen_types import NewFields, merged
from penstock.job.spec import NewColumnPolicy, Payload, TombstonePolicy

_PIECE_RECORDS = 1024
_JUDGED_RECORDS = 32
_READ_IN_VAIN_MAX = 4 * _PIECE_RECORDS
"""Of one piece, in records: beyond it the exact path is cheaper than further cuts."""
_CALL_IN_RECORDS = 128
"""What a call of the reader costs before its first record."""
_READER_WORDS_MAX = 150
_AROUND_THE_WORDS = re.compile(r"^JSON parse error: |\.? in row \d+$")


@dataclass(slots=True)
class _Harvest:
    """What has become of the records of a batch so far."""

    batch: pa.RecordBatch
    errors: dict[int, str]
    columns: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[Sequence[int]] = field(default_factory=list)
    new_fields: list[NewFields] = field(default_factory=list)

    def add(self, columns: pa.RecordBatch, rows: Sequence[int]) -> None:
        self.columns.append(columns)
        self.rows.append(rows)


class JsonDecoder:
    """Decodes records that are one JSON object each."""

    def __init__(
        self, schema: pa.Schema, payload: Payload, tombstone: TombstonePolicy, new_column: NewColumnPolicy
    ) -> None:
        self._schema = schema
        self._payload = payload
        self._tombstone = tombstone
        self._new_column = new_column
        self._known = known_fields(schema)
        self._fast = not any(has_map(kind) for kind in schema.types)
        self._arrow = ArrowReader(schema, new_column)
        known_only = new_column in (NewColumnPolicy.QUARANTINE, NewColumnPolicy.FAIL)
        self._exact = ExactReader(schema, known_only=known_only)

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self._payload, self._tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        harvest = _Harvest(batch, dict(opened.errors))
        if self._fast:
            self._read_fast(screened(Piece(records, opened.rows), harvest.errors), harvest)
        else:
            self._read_exactly(Piece(records, opened.rows), harvest)
        columns, rows = _joined(self._schema, harvest)
        new_fields = merged(harvest.new_fields)
        odd = misspelled(Piece(records, opened.rows), new_fields, self._known, rows)
        if odd:
            harvest.errors.update(odd)
            kept = [number for number, row in enumerate(rows) if row not in odd]
            columns, rows = take(columns, kept), [rows[number] for number in kept]
        new_fields = well_spelled(new_fields, self._known)
        return gathered(batch, columns, rows, harvest.errors, opened.filtered, new_fields)

    def _read_fast(self, piece: Piece, harvest: _Harvest) -> None:
        if len(piece) > _PIECE_RECORDS and self._read_at_once(piece, harvest) is None:
            return
        for start in range(0, len(piece), _PIECE_RECORDS):
            self._read_in_parts(piece.part(start, start + _PIECE_RECORDS), harvest)

    def _read_in_parts(self, piece: Piece, harvest: _Harvest) -> None:
        read_in_vain = 0
        waiting = [(0, len(piece))]
        while waiting:
            start, end = waiting.pop()
            part = piece.part(start, end)
            error = self._read_at_once(part, harvest)
            if error is None:
                continue
            culprit = row_of(error)
            read_in_vain += _CALL_IN_RECORDS + (len(part) if culprit is None else culprit)
            if len(part) <= _JUDGED_RECORDS or read_in_vain > _READ_IN_VAIN_MAX:
                self._judge(part, harvest)
            elif culprit is not None and culprit < len(part) and not self._fits(part, culprit, harvest):
                waiting += [(start + culprit + 1, end), (start, start + culprit)]
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]

    def _read_at_once(self, piece: Piece, harvest: _Harvest) -> pa.ArrowInvalid | None:
        """Harvest all records of the piece; or none, and return the reader's error."""
        if not len(piece):
            return None
        try:
            parsed = self._arrow.read(piece.records)
            new_fields = self._new_fields_singly(piece) if parsed.new_fields is None else parsed.new_fields
        except pa.ArrowInvalid as error:
            return error
        except MisfitError as misfit:
            return pa.ArrowInvalid(str(misfit))
        harvest.add(parsed.columns, piece.rows)
        harvest.new_fields.append(new_fields)
        return None

    def _judge(self, piece: Piece, harvest: _Harvest) -> None:
        good = [number for number in range(len(piece)) if self._fits(piece, number, harvest)]
        if self._read_at_once(piece.only(good), harvest) is None:
            return
        for number in good:
            error = self._read_at_once(piece.part(number, number + 1), harvest)
            if error is not None:
                harvest.errors[piece.rows[number]] = f"the JSON reader refuses it: {_words(error)}"

    def _fits(self, piece: Piece, number: int, harvest: _Harvest) -> bool:
        try:
            self._exact.read(members_of(piece.record(number)))
        except MisfitError as misfit:
            self._refuse(piece.rows[number], misfit, harvest)
            return False
        return True

    def _read_exactly(self, piece: Piece, harvest: _Harvest) -> None:
        values: list[list[Value]] = []
        rows: list[int] = []
        for number, row in enumerate(piece.rows):
            try:
                members = members_of(piece.record(number))
                values.append(self._exact.read(members))
            except MisfitError as misfit:
                self._refuse(row, misfit, harvest)
                continue
            rows.append(row)
            if self._new_column is NewColumnPolicy.ADD:
                harvest.new_fields.append(self._new_fields(members))
        harvest.add(self._exact.batch(values), rows)

    def _refuse(self, row: int, misfit: MisfitError, harvest: _Harvest) -> None:
        if misfit.unknown_field and self._new_column is NewColumnPolicy.FAIL:
            place = {name: harvest.batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")}
            raise UserError(
                f"{place['topic']}/{place['partition']} offset {place['offset']}: "
                f"the field {misfit.path} is not in the schema",
                hint="add the field to the schema, or set on.new_column to add, ignore or quarantine",
            )
        harvest.errors[row] = str(misfit)

    def _new_fields_singly(self, piece: Piece) -> NewFields:
        return merged(self._new_fields(members_of(piece.record(number))) for number in range(len(piece)))

    def _new_fields(self, members: JsonObject) -> NewFields:
        found: NewFields = {}
        note_members(found, members, self._known)
        return found


def _joined(schema: pa.Schema, harvest: _Harvest) -> tuple[pa.RecordBatch, Sequence[int]]:
    if not harvest.columns:
        return pa.RecordBatch.from_pylist([], schema=schema), []
    if len(harvest.columns) == 1:
        return harvest.columns[0], harvest.rows[0]
    return pa.concat_batches(harvest.columns), [row for rows in harvest.rows for row in rows]


def _words(error: pa.ArrowInvalid) -> str:
    return clipped(_AROUND_THE_WORDS.sub("", str(error)), _READER_WORDS_MAX)
