"""Routing by a field of JSON records: a cheap guess from the text, and the truth.

The guess reads what follows the first `"name"` of the text; it may be wrong about nested or quoted text, so it
counts only where the decoded record has that value. The truth is the value at the path, a string or a whole number:
taken from a whole batch by Arrow's reader, or singly where that one refuses a record. A record that is not a JSON
object, or gives a name on the path twice, has no type and is bad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.computed import evaluate
from penstock.flow.decode.json.rows import JsonDecoder
from penstock.flow.decode.json_text import JsonNumber, JsonObject, parse_object, well_formed
from penstock.flow.decode.misfit import MisfitError
from penstock.flow.route.routes import Routed, RouteSource, ValueCodes, joined_bad, unwrapped
from penstock.flow.rows import BadRows, DecodedRows, bad_rows, rows_without, take
from penstock.flow.spans import BufferSpans, spans_of
from penstock.job.expressions import Field
from penstock.job.spec import Payload, RouteSpec

SINGLY_RECORDS_MAX = 16
"""So few are looked at one by one: a call of Arrow's reader costs more."""

_BLANKS_MAX = 16
_WHOLE_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_VALUE = rb'^[ \t\r\n]*:[ \t\r\n]*(?P<value>"[^"\\]*"|-?[0-9]+)'


class FieldRouter:
    """Routes by the value at a path."""

    def __init__(self, route: RouteSpec, values: Mapping[str, tuple[str, ...]], payload: Payload) -> None:
        self._path = path = route.path
        self._payload = payload
        self.ways = tuple(RouteSource(name, numeric) for name in values for numeric in (False, True))
        codes = {way: code for code, way in enumerate(self.ways)}
        spelled = {
            (value if numeric else f'"{value}"').encode(): codes[RouteSource(name, numeric)]
            for name in values
            for value in values[name]
            for numeric in ((False, True) if _WHOLE_NUMBER.fullmatch(value) else (False,))
        }
        self._codes = ValueCodes(spelled, pa.binary())
        self._name = json.dumps(path[-1], ensure_ascii=False).encode()
        self._window_bytes = max(map(len, spelled), default=0) + _BLANKS_MAX
        self._readers = {numeric: _reader(path, pa.int64() if numeric else pa.string()) for numeric in (False, True)}

    def route(self, batch: pa.RecordBatch) -> Routed:
        """A guess."""
        opened, unreadable, rest = unwrapped(batch, self._payload)
        codes = self._codes.of(self._guessed(opened.column("value")))
        unknown = pa.nulls(opened.num_rows, pa.string())
        return Routed(opened, codes, unknown, unreadable, sure=False, rest=rest)

    def route_rest(self, batch: pa.RecordBatch) -> Routed:
        if batch.num_rows <= SINGLY_RECORDS_MAX:
            return _sorted([self._route_singly(batch)])
        guessed = self._guessed(batch.column("value"))
        numbers = pc.invert(pc.starts_with(guessed, b'"')).fill_null(False)
        result: list[Routed] = []
        for numeric, part in ((False, batch.filter(pc.invert(numbers))), (True, batch.filter(numbers))):
            if part.num_rows:
                decoded = self._readers[numeric].decode(part)
                result += [self._as_read(decoded.rows, numeric), self._route_singly(decoded.bad.kafka)]
        return _sorted(result)

    def _guessed(self, values: pa.Array) -> pa.Array:
        """What follows the first `"name"` of each text: a string with its quotes, a number, or null."""
        return pc.struct_field(pc.extract_regex(self._windows(values), _VALUE), ["value"])

    def _windows(self, values: pa.Array) -> pa.Array:
        """The bytes after the name: a regular expression is much faster on them than on whole records."""
        places = pc.find_substring(values, self._name).to_numpy(zero_copy_only=False).astype(np.int64)
        spans = spans_of(values)
        begins = np.where(places < 0, spans.ends, spans.starts + places + len(self._name))
        return BufferSpans(spans.data, begins, np.minimum(begins + self._window_bytes, spans.ends)).binaries()

    def _as_read(self, rows: DecodedRows, numeric: bool) -> Routed:
        values = evaluate(Field(self._path), rows, {}).cast(pa.string())
        return self._routed(rows.kafka, values, pa.repeat(numeric, len(values)), bad_rows(rows.kafka, {}))

    def _route_singly(self, batch: pa.RecordBatch) -> Routed:
        errors: dict[int, str] = {}
        result: list[tuple[str | None, bool]] = []
        for row, record in enumerate(batch.column("value").to_pylist()):
            try:
                result.append(value_at(record, self._path))
            except MisfitError as misfit:
                errors[row] = str(misfit)
        values, numbers = [value for value, _ in result], [numeric for _, numeric in result]
        kept = take(batch, rows_without(batch.num_rows, errors))
        return self._routed(kept, pa.array(values, pa.string()), pa.array(numbers, pa.bool_()), bad_rows(batch, errors))

    def _routed(self, batch: pa.RecordBatch, values: pa.Array, numbers: pa.Array, bad: BadRows) -> Routed:
        quoted = pc.binary_join_element_wise('"', values, '"', "")
        codes = self._codes.of(pc.if_else(numbers, values, quoted).cast(pa.binary()))
        return Routed(batch, codes, values, bad, sure=True)


def value_at(record: bytes, path: tuple[str, ...]) -> tuple[str | None, bool]:
    """The text of the string or whole number at the path, None if there is neither; and whether it is a number.

    Raises `MisfitError` if the record is not a JSON object or gives a name on the path twice.
    """
    value: object = parse_object(record)
    for depth, name in enumerate(path):
        if not isinstance(value, JsonObject):
            return None, False
        if name in value.doubled:
            raise _inside(path[: depth + 1], MisfitError("given twice"))
        value = value.get(name)
    if type(value) is str:
        try:
            return well_formed(value), False
        except MisfitError as misfit:
            raise _inside(path, misfit) from None
    if isinstance(value, JsonNumber) and value.whole:
        return "0" if value == "-0" else str(value), True
    return None, False


def widened(fields: list[pa.Field], path: tuple[str, ...], kind: pa.DataType) -> list[pa.Field] | None:
    """The fields with one at the path, if it needs no new struct for it; None if there is no place for one."""
    if len(path) == 1:
        return [*fields, pa.field(path[0], kind)]
    for index, field in enumerate(fields):
        if field.name == path[0] and pa.types.is_struct(field.type):
            inner = widened(list(field.type), path[1:], kind)
            return None if inner is None else [*fields[:index], field.with_type(pa.struct(inner)), *fields[index + 1 :]]
    return None


def field_at(path: tuple[str, ...], kind: pa.DataType) -> pa.Field:
    """The field of the top level that has a field of the type at the path, and nothing else."""
    for name in reversed(path[1:]):
        kind = pa.struct([(name, kind)])
    return pa.field(path[0], kind)


def _reader(path: tuple[str, ...], kind: pa.DataType) -> JsonDecoder:
    return JsonDecoder(pa.schema([field_at(path, kind)]), "plain", "row", "ignore")


def _sorted(parts: list[Routed]) -> Routed:
    """The parts as one, in offset order."""
    batch = pa.concat_batches([part.batch for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    bad = joined_bad([part.bad for part in parts])
    order = pc.array_sort_indices(batch.column("offset"))
    return Routed(batch.take(order), codes[order.to_numpy()], values.take(order), bad, sure=True)


def _inside(path: tuple[str, ...], misfit: MisfitError) -> MisfitError:
    for name in reversed(path):
        misfit = misfit.inside(name)
    return misfit
