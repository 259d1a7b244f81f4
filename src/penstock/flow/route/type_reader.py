"""The records of one type into rows, and on the way the proof that they are of that type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.columns.fitting import null_mask
from penstock.flow.columns.seen_types import NewFields, addable, column_types
from penstock.flow.decode.decoder import decoder_for
from penstock.flow.decode.json.rows import JsonDecoder
from penstock.flow.route.fanout_flow import FanoutFlow, TypeFlow
from penstock.flow.route.field import widened
from penstock.flow.route.routes import joined_bad
from penstock.flow.rows import BadRows, Decoded, DecodedRows, bad_rows
from penstock.job.expressions import Field
from penstock.job.schema import type_at
from penstock.job.spec import DAY_FOLDER, DecodeSpec

SHOWS_NOTHING = "has no field to infer the columns of its type from"

_NO_FIELD = "\0no field\0"
"""A decoder needs a field to look for; no record has one of this name."""


@dataclass(frozen=True, slots=True)
class Proved:
    """What became of records that were guessed to be of the type: rows that are, and records that may not be."""

    rows: DecodedRows
    new_fields: NewFields
    doubtful: pa.RecordBatch


class TypeReader:
    """Reads the records of one type whose route value is text, or those whose value is `numeric`.

    Where the schema lacks the route field it is read too, so that every record can be proved; the job file names that
    field, so no policy treats it as a new field.
    """

    def __init__(self, flow: FanoutFlow, kind: TypeFlow, *, numeric: bool) -> None:
        assert kind.decoded is not None
        self._schema = kind.decoded
        self._path = flow.route.path
        self._values = pa.array(kind.values, pa.string())
        schema = self._schema
        self.proves = False
        if flow.route.by == "field" and flow.decode.format == "json":
            schema, self.proves = _proving(self._schema, self._path, numeric)
        self._narrow = schema is not self._schema
        self._decoder = decoder_for(opened_decode(flow), schema, flow.on, kind.message, rare=flow.on.rare_of(kind.name))

    def read(self, batch: pa.RecordBatch) -> Decoded:
        """Decode records that are known to be of the type."""
        decoded = self._decoder.decode(batch)
        return replace(decoded, rows=self._narrowed(decoded.rows))

    def prove(self, batch: pa.RecordBatch) -> Proved:
        """Decode records that seem to be of the type; only with `proves`."""
        decoded = self._decoder.decode(batch)
        kafka = decoded.rows.kafka
        held = pc.is_in(evaluate(Field(self._path), decoded.rows, {}).cast(pa.string()), self._values)
        if pc.all(held, min_count=0).as_py():
            return Proved(self._narrowed(decoded.rows), decoded.new_fields, decoded.bad.kafka)
        doubtful = pa.concat_batches([kafka.filter(pc.invert(held)), decoded.bad.kafka])
        if decoded.new_fields:
            # Some may come from records of other types.
            decoded = self._decoder.decode(kafka.filter(held))
            return Proved(self._narrowed(decoded.rows), decoded.new_fields, doubtful)
        rows = DecodedRows(decoded.rows.columns.filter(held), kafka.filter(held))
        return Proved(self._narrowed(rows), {}, doubtful)

    def _narrowed(self, rows: DecodedRows) -> DecodedRows:
        if not self._narrow:
            return rows
        arrays = [_narrowed(rows.columns.column(field.name), field.type) for field in self._schema]
        return DecodedRows(pa.RecordBatch.from_arrays(arrays, schema=self._schema), rows.kafka)


def opened_decode(flow: FanoutFlow) -> DecodeSpec:
    """What is left to decode: routers that look into values unwrap them."""
    return replace(flow.decode, payload="plain") if flow.route.by in ("field", "envelope") else flow.decode


def looked_at(flow: FanoutFlow, batch: pa.RecordBatch) -> Decoded:
    """What JSON records of a type without columns show: the fields to infer them from, or why there is none."""
    nothing = pa.schema([(_NO_FIELD, pa.string())])
    decoder = JsonDecoder(nothing, opened_decode(flow).payload, "row", "add")
    decoded = decoder.decode(batch)
    none = DecodedRows(decoded.rows.columns.slice(0, 0), batch.slice(0, 0))
    if len(addable(column_types(decoded.new_fields), [*flow.columns, DAY_FOLDER])):
        # The records are read again once the columns are fixed.
        return Decoded(none, bad_rows(batch, {}), 0, decoded.new_fields, decoded.rest)
    empty = decoded.rows.kafka
    shows_nothing = BadRows(empty, pa.repeat(SHOWS_NOTHING, empty.num_rows))
    return Decoded(none, joined_bad([decoded.bad, shows_nothing]), 0, {}, decoded.rest)


def _proving(schema: pa.Schema, path: tuple[str, ...], numeric: bool) -> tuple[pa.Schema, bool]:
    """The schema to read, and whether its rows show the route value."""
    kind = type_at(schema, path)
    if kind is not None:
        return schema, pa.types.is_integer(kind) if numeric else pa.types.is_string(kind)
    wide = widened(list(schema), path, pa.int64() if numeric else pa.string())
    return (schema, False) if wide is None else (pa.schema(wide), True)


def _narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array without the fields of structs that `kind` lacks."""
    if not pa.types.is_struct(kind):
        return array
    children = [_narrowed(array.field(child.name), child.type) for child in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
