"""The JSON decoder: a fast path over the whole batch, and an exact one for the records that it cannot take.

A batch without bad records is read at once. One that fails is sifted: a cheap look at each record tells those that
surely fit, which are read at once, from the doubtful, which the exact path reads one by one; so a bad record costs no
more than its own look. The fast path takes nothing that the exact one refuses and gives the same values, so a record's
fate does not depend on its neighbours. Schemas with maps take the exact path for every record, at less than a tenth of
the speed.

New fields (`on.new_column`), at every level: `add` reports what their values show, and makes a record bad whose field
differs from a known one only in case, or is reserved; `ignore` drops them, `quarantine` makes the record bad, `fail`
raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.seen_types import NewFields, add_fields
from penstock.flow.decode.json.arrow_json import ArrowReader, given_twice
from penstock.flow.decode.json.convert import holds
from penstock.flow.decode.json.exact import ExactReader, members_of, refuse_malformed
from penstock.flow.decode.json.leaves import Value
from penstock.flow.decode.json.new_types import known_fields, note_members
from penstock.flow.decode.json.screen import WHOLE, Doubts, Look, Piece, first_look, second_look, sifted, texts_of
from penstock.flow.decode.json.spelling import misspelled, well_spelled
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.decode.outcome import gathered, open_records
from penstock.flow.rows import Decoded, take
from penstock.job.spec import NewColumnPolicy, TombstonePolicy, Wrapping

_READERS_KEPT_MAX = 512
_NAMES_TWICE_MAX = 2
"""Of one batch: beyond it there is a look at all names."""


@dataclass(slots=True)
class _Harvest:
    """What has become of the records of a batch so far."""

    batch: pa.RecordBatch
    errors: dict[int, str]
    columns: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    new_fields: NewFields = field(default_factory=dict)

    def add(self, columns: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> None:
        if len(rows):
            self.columns.append(columns)
            self.rows.append(rows)


@dataclass(frozen=True, slots=True)
class _Caution:
    """What the last batches have taught, so that the next is read with less in vain; it changes no outcome."""

    expects_bad: bool = False
    """Bad records seldom come alone: while they do, the attempt to read a batch at once is not made."""
    twice: tuple[str, ...] = ()
    """Fields that some records give twice."""
    long_decimals: bool = True
    """Whether some records hold decimals of too many digits; where some are bad, until a batch shows otherwise."""


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
        """`reserved` are names of no field that may become a column, in lower case."""
        self._schema = schema
        self._loose = schema if loose is None else loose
        self._wrapping = wrapping
        self._tombstone = tombstone
        self._new_column = new_column
        self._reserved = reserved
        self._known = known_fields(schema)
        self._known_only = new_column in (NewColumnPolicy.QUARANTINE, NewColumnPolicy.FAIL)
        # Arrow's JSON reader does not know maps.
        self._fast = not any(holds(kind, pa.types.is_map) for kind in schema.types)
        self._arrow = ArrowReader(schema, new_column)
        self._caution = _Caution()

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        opened = open_records(batch, self._wrapping, self._tombstone)
        # A tombstone that is to be a row has no fields: every column is null.
        records = opened.values.fill_null(b"{}") if opened.values.null_count else opened.values
        harvest = _Harvest(batch, dict(opened.errors))
        piece = Piece(records, opened.rows)
        if not self._fast:
            self._read_exactly(piece, dict.fromkeys(range(len(piece))), harvest)
        elif self._caution.expects_bad or not self._read_at_once(piece, harvest):
            self._sift(piece, harvest)
            if len(harvest.errors) == len(opened.errors):
                self._caution = _Caution()
        columns, rows = _joined(self._schema, harvest)
        odd = misspelled(piece, harvest.new_fields, self._known, rows, self._reserved)
        if odd:
            harvest.errors.update(odd)
            kept = np.flatnonzero(~np.isin(rows, list(odd)))
            columns, rows = take(columns, kept), rows[kept]
        new_fields = well_spelled(harvest.new_fields, self._known, self._reserved)
        return gathered(batch, columns, rows, harvest.errors, opened, new_fields)

    def _read_at_once(self, piece: Piece, harvest: _Harvest) -> bool:
        """Harvest all records of the piece, or none."""
        if not len(piece):
            return True
        try:
            parsed = self._arrow.read(texts_of(piece.records))
        except pa.ArrowInvalid:
            return False
        harvest.add(parsed.columns, piece.rows)
        add_fields(harvest.new_fields, parsed.new_fields or {})
        return True

    def _sift(self, piece: Piece, harvest: _Harvest) -> None:
        """Read those records at once that pass a look at each, and the others exactly."""
        self._caution = replace(self._caution, expects_bad=True)
        look = first_look(self._schema, self._known_only)
        piece, error = self._read_sifted(piece, look, harvest)
        for _ in range(_NAMES_TWICE_MAX):
            name = None if error is None else given_twice(error)
            if name is None or name in self._caution.twice:
                break
            self._caution = replace(self._caution, twice=(*self._caution.twice, name))
            piece, error = self._read_sifted(piece, None, harvest)
        if error is not None:
            piece, error = self._read_sifted(piece, second_look, harvest)
        if error is not None:
            self._read_exactly(piece, dict.fromkeys(range(len(piece))), harvest)

    def _read_sifted(self, piece: Piece, look: Look | None, harvest: _Harvest) -> tuple[Piece, pa.ArrowInvalid | None]:
        """The records that passed the look, which are harvested unless the reader has an error.

        None instead of a look: they have passed it before, only fields given twice are looked for.
        """
        doubts = sifted(piece, look, self._caution.twice)
        self._read_exactly(piece, doubts, harvest)
        piece = piece.without(doubts)
        return piece, self._read_fitting(piece, harvest)

    def _read_fitting(self, piece: Piece, harvest: _Harvest) -> pa.ArrowInvalid | None:
        """Harvest the records of the piece, the bad ones that no look can see among them; or none, and say why."""
        if not len(piece):
            return None
        try:
            parsed, misfits = self._arrow.read_fitting(
                piece.records.cast(pa.string()), long_decimals=self._caution.long_decimals
            )
        except pa.ArrowInvalid as error:
            return error
        self._caution = replace(self._caution, long_decimals=bool(misfits))
        harvest.add(parsed.columns, np.delete(piece.rows, list(misfits)))
        if parsed.new_fields is not None:
            add_fields(harvest.new_fields, parsed.new_fields)
        else:
            for record in piece.without(misfits).each():
                note_members(harvest.new_fields, members_of(record), self._known)
        self._read_exactly(piece, misfits, harvest)
        return None

    def _read_exactly(self, piece: Piece, doubts: Doubts, harvest: _Harvest) -> None:
        """Take the exact path for the doubtful records of the piece."""
        if not doubts:
            return
        exact = _exact_reader(self._schema, self._loose, self._known_only)
        numbers = sorted(doubts)
        doubtful = piece.only(numbers)
        rows = doubtful.rows.tolist()
        values: list[list[Value]] = []
        good: list[int] = []
        for place, record in enumerate(doubtful.each()):
            suspect = doubts[numbers[place]]
            try:
                if suspect and (reason := exact.reason_at(record, suspect)) is not None:
                    harvest.errors[rows[place]] = reason
                    continue
                if suspect == WHOLE:
                    refuse_malformed(record)
                members = members_of(record)
                values.append(exact.read(members))
            except MisfitError as misfit:
                self._refuse(rows[place], misfit, harvest)
                continue
            good.append(place)
            if self._new_column is NewColumnPolicy.ADD:
                note_members(harvest.new_fields, members, self._known)
        harvest.add(exact.batch(values), doubtful.rows[good])

    def _refuse(self, row: int, misfit: MisfitError, harvest: _Harvest) -> None:
        if misfit.unknown_field and self._new_column is NewColumnPolicy.FAIL:
            place = {name: harvest.batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")}
            raise UserError(
                f"{place['topic']}/{place['partition']} offset {place['offset']}: "
                f"the field {misfit.path} is not in the schema",
                hint="add the field to the schema, or set on.new_column to add, ignore or quarantine",
            )
        harvest.errors[row] = str(misfit)


@lru_cache(maxsize=_READERS_KEPT_MAX)
def _exact_reader(schema: pa.Schema, loose: pa.Schema, known_only: bool) -> ExactReader:
    return ExactReader(schema, loose, known_only=known_only)


def _joined(schema: pa.Schema, harvest: _Harvest) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """All rows in the order of the batch."""
    if not harvest.columns:
        return pa.RecordBatch.from_pylist([], schema=schema), np.arange(0)
    if len(harvest.columns) == 1:
        return harvest.columns[0], harvest.rows[0]
    rows = np.concatenate(harvest.rows)
    order = np.argsort(rows, kind="stable")
    return pa.concat_batches(harvest.columns).take(pa.array(order)), rows[order]
