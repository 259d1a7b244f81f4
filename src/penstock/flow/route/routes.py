"""Which type each record of a batch is of.

A router answers with a code per row, an index into its `ways`; `UNKNOWN` is the code of values that mean no type. The
answer of a key, a header or an envelope is sure. That of a JSON field is first a guess (`flow/route/field.py`):
decoding the record proves it, and what cannot be proved there is decided by reading the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.kafka_fields import record_headers
from penstock.flow.decode.garmadon.envelope import markers, open_envelopes
from penstock.flow.decode.outcome import open_records
from penstock.flow.rows import BadRows, bad_rows, rows_without, take
from penstock.job.kafka_types import utf8
from penstock.job.spec import Payload, RouteSpec

UNKNOWN = -1
WRAPPED = "wrapped"
"""The column with the values as they lie in the log, where `value` holds them unwrapped."""

Codes = npt.NDArray[np.int16]
Rows = npt.NDArray[np.intp]


class RouteSource(NamedTuple):
    """The type that a route value means; `numeric` if the value is written as a number in its JSON."""

    type: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Routed:
    """The records of a batch that could be looked at, with the way of each, and those that could not."""

    batch: pa.RecordBatch
    codes: Codes
    values: pa.Array
    """The route values as text, null where a record has none; of a guess they are not known."""
    bad: BadRows
    sure: bool
    rest: pa.RecordBatch | None = None
    """The last rows of the batch, to be routed next: the others are as large unpacked as one batch may be."""


class Router(Protocol):
    @property
    def ways(self) -> tuple[RouteSource, ...]: ...

    def route(self, batch: pa.RecordBatch) -> Routed:
        """Takes records whose values are not null, unless they are routed by key or header."""

    def route_rest(self, batch: pa.RecordBatch) -> Routed:
        """Takes records of an earlier answer in any order and gives one that is sure, in offset order."""


class ValueCodes:
    """Route values to codes."""

    def __init__(self, codes: Mapping[str, int] | Mapping[bytes, int], kind: pa.DataType) -> None:
        self._values = pa.array(list(codes), kind)
        self._codes = np.array([*codes.values(), UNKNOWN], np.int16)

    def of(self, values: pa.Array) -> Codes:
        places = pc.index_in(values, self._values).fill_null(len(self._values))
        codes: Codes = self._codes[places.to_numpy(zero_copy_only=False)]
        return codes


class PlainRouter:
    """Routes by what can be taken from a record without decoding it: its key, a header, the marker of its envelope."""

    def __init__(self, route: RouteSpec, values: Mapping[str, tuple[str, ...]], payload: Payload) -> None:
        self._by, self._path = route.by, route.path
        self.ways = tuple(RouteSource(name) for name in values)
        codes = {value: code for code, name in enumerate(values) for value in values[name]}
        self._codes = ValueCodes(codes, pa.string())
        # Keys and headers can be read without unwrapping the value.
        self._payload = payload if route.by == "envelope" else "plain"

    def route(self, batch: pa.RecordBatch) -> Routed:
        opened, unreadable, rest = unwrapped(batch, self._payload)
        values, errors = self._values_of(opened)
        bad = joined_bad([unreadable, bad_rows(opened, errors)])
        if errors:
            kept = rows_without(opened.num_rows, errors)
            opened, values = take(opened, kept), values.take(pa.array(kept, pa.int64()))
        return Routed(opened, self._codes.of(values), values, bad, sure=True, rest=rest)

    def route_rest(self, batch: pa.RecordBatch) -> Routed:
        return self.route(batch)

    def _values_of(self, batch: pa.RecordBatch) -> tuple[pa.Array, Mapping[int, str]]:
        """The route values of a batch, and by row the reason why a record cannot be looked at."""
        if self._by == "key":
            return _texts(batch.column("key")), {}
        if self._by == "header":
            headers, unreadable = record_headers(batch)
            return _texts(last_headers(headers, self._path[0])), unreadable
        result = markers(batch.column("value"))
        return result, open_envelopes(batch.column("value")).errors if result.null_count else {}


def unwrapped(batch: pa.RecordBatch, payload: Payload) -> tuple[pa.RecordBatch, BadRows, pa.RecordBatch | None]:
    """The batch with unwrapped and wrapped values, records that cannot be unwrapped, and the rows for the next call."""
    if payload == "plain" or WRAPPED in batch.schema.names:
        return batch, bad_rows(batch, {}), None
    records = open_records(batch, payload, "row")
    readable = take(batch, records.rows)
    index = readable.schema.get_field_index("value")
    opened = readable.set_column(index, "value", records.values).append_column(WRAPPED, readable.column(index))
    return opened, bad_rows(batch, records.errors), records.rest


def as_in_log(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its values as they lie in the log."""
    if WRAPPED not in batch.schema.names:
        return batch
    wrapped = batch.column(WRAPPED)
    return batch.drop_columns([WRAPPED]).set_column(batch.schema.get_field_index("value"), "value", wrapped)


def joined_bad(parts: Sequence[BadRows]) -> BadRows:
    """Bad rows of several steps, with their values as they lie in the log."""
    result = [part for part in parts if len(part.errors)] or parts[:1]
    kafka = [as_in_log(part.kafka) for part in result]
    if len(result) == 1:
        return BadRows(kafka[0], result[0].errors)
    return BadRows(pa.concat_batches(kafka), pa.concat_arrays([part.errors for part in result]))


def last_headers(headers: pa.Array, name: str) -> pa.Array:
    """The value of the last header of that name of each record, null where there is none."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.binary())
    entries, parents = headers.flatten(), pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
    named = np.flatnonzero(pc.equal(entries.field("key"), name).fill_null(False).to_numpy(zero_copy_only=False))
    last = np.full(len(headers), -1, np.int64)
    # Where a record has the header several times, the last assignment stays.
    last[parents[named]] = named
    return entries.field("value").take(pa.array(last, mask=last < 0))


def _texts(values: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 becomes null, so that it means no type."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([utf8(value) for value in values.to_pylist()], pa.string())
