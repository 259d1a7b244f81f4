"""Arrow's JSON reader: the texts of a whole batch into the columns of a schema.

Arrow knows no times and no base64: it reads them as texts, which are converted afterwards. It reads decimals with more
digits than the column has, so that one of too many digits is found. Of maps it reads only that they are objects: their
texts are taken out of the records by msgspec, which also reads plain values; Arrow reads the other values of all maps
of a batch as one list.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import UserError
from penstock.flow.columns.fitting import null_mask
from penstock.flow.columns.times import UTC_MICROS, dates_or_null, timestamps_or_null
from penstock.flow.decode.json.screen import OUT_OF_RANGE, PARSERS_KEPT_MAX, member_name, struct_type, value_type
from penstock.job.schema import job_type_name

_PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_AS_TEXT = (pa.date32(), UTC_MICROS, pa.binary())
_DECIMAL_DIGITS = 76
"""Decimals are read this wide: Arrow's JSON reader does not look at the precision after scaling."""

Unexpected = Literal["ignore", "error", "infer"]
"""What Arrow's reader does with fields that it was not asked for."""
Rows = Sequence[int] | npt.NDArray[np.int64]
Mark = Callable[[Rows, str], None]
"""Takes the numbers of rows whose value does not fit its column, and the reason."""


class JsonReader:
    """Reads records as columns of a schema.

    A `wide` one also reads decimals with too many digits, and marks them. Raises `UserError` for a type that JSON
    records cannot be decoded to.
    """

    def __init__(self, schema: pa.Schema, *, wide: bool) -> None:
        self._schema = schema
        self._wide = wide
        self._has_maps = any(pa.types.is_map(kind) for kind in schema.types)
        self._asked = pa.schema([(field.name, _column_type(field, wide)) for field in schema])

    def read(self, texts: pa.Array, mark: Mark, unexpected: Unexpected) -> tuple[pa.RecordBatch, bool]:
        """The columns of the schema, and whether fields that it lacks were inferred that have values.

        The rows of values that do not fit are marked, and their values are of no use. Raises `pa.ArrowInvalid` unless
        each text gives one row, and for fields that the schema lacks as `unexpected` says; with maps, `infer` raises.
        """
        if not len(texts):
            return pa.RecordBatch.from_pylist([], schema=self._schema), False
        lines = pc.binary_join_element_wise(texts, "", "\n").buffers()[2]
        # The keys of maps are fields to Arrow: where there are maps, msgspec looks for unknown fields.
        rows = _rows(lines, len(texts), self._asked, "ignore" if self._has_maps else unexpected)
        records = _decoded(_texts_decoder(self._schema, unexpected != "ignore"), lines) if self._has_maps else []
        columns = [
            self._map([*map(attrgetter(member_name(field.name)), records)], rows.column(field.name), field, mark)
            if pa.types.is_map(field.type)
            else self._fit(rows.column(field.name), field.type, mark, field.name)
            for field in self._schema
        ]
        has_more = unexpected == "infer" and not {*_leaves(rows.schema)} <= {*_leaves(self._asked)}
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), has_more

    def _fit(self, array: pa.Array, kind: pa.DataType, mark: Mark, path: str) -> pa.Array:
        """What was read as `kind`, with every value of its type."""
        if pa.types.is_struct(kind):
            children = [self._fit(array.field(child.name), child.type, mark, f"{path}.{child.name}") for child in kind]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
        if pa.types.is_list(kind):
            items = self._fit(array.values, kind.value_type, _mark_lists(array.offsets, mark), f"{path}[]")
            return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=null_mask(array))
        misfits: Rows = []
        result = "string" if kind in _AS_TEXT else OUT_OF_RANGE
        if pa.types.is_timestamp(kind):
            array, misfits = timestamps_or_null(array)
        elif pa.types.is_date32(kind):
            array, misfits = dates_or_null(array)
        elif pa.types.is_binary(kind):
            array, misfits = _unbase64(array)
        elif pa.types.is_decimal(kind):
            array, misfits = _decimals(array, kind)
        elif pa.types.is_floating(kind):
            # A number too large for the column, or NaN or an infinity, which are not JSON.
            misfits = pc.indices_nonzero(pc.invert(pc.is_finite(array))).to_pylist()
            if misfits and not self._wide:
                raise pa.ArrowInvalid(OUT_OF_RANGE)
        if len(misfits):
            mark(misfits, f"{path}: expected {job_type_name(kind)}, found {result}")
        return array

    def _map(self, texts: Sequence[msgspec.Raw | None], objects: pa.Array, field: pa.Field, mark: Mark) -> pa.Array:
        kind = field.type
        text = _ENCODE(texts)
        maps = _decoded(_maps_decoder(kind.item_type), text)
        if objects.null_count:
            maps = [members or {} for members in maps]
        offsets = pa.array(np.cumsum(np.fromiter(chain((0,), map(len, maps)), np.int32)), pa.int32())
        keys = pa.array([*chain.from_iterable(maps)], pa.string())
        values = [*chain.from_iterable(map(dict.values, maps))]
        if kind.item_type in _READ_BY_MSGSPEC:
            items = pa.array(values, kind.item_type)
            quotes = 2 * (len(items) - items.null_count) if pa.types.is_string(items.type) else 0
        else:
            asked = pa.schema([("items", pa.list_(_read_type(kind.item_type, field.name, self._wide)))])
            items_text = _ENCODE({"items": values})
            quotes = _quotes(items_text) - 2
            read = _rows(pa.py_buffer(items_text), 1, asked, "ignore").column(0)
            items = self._fit(read.values, kind.item_type, _mark_lists(offsets, mark), f"{field.name}[...]")
        # msgspec keeps one of two equal keys, so that quotes are missing.
        if _quotes(text) != 2 * len(keys) + quotes:
            raise pa.ArrowInvalid("a key was specified twice")
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=null_mask(objects))


def _column_type(field: pa.Field, wide: bool) -> pa.DataType:
    """The type to ask Arrow for: of a map only that it is an object."""
    if pa.types.is_map(field.type) and field.type.key_type == pa.string():
        _read_type(field.type.item_type, f"{field.name}.*", wide)
        return pa.struct([])
    return _read_type(field.type, field.name, wide)


def _read_type(kind: pa.DataType, path: str, wide: bool) -> pa.DataType:
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(child.name, _read_type(child.type, f"{path}.{child.name}", wide)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(_read_type(kind.value_type, f"{path}[]", wide))
    if pa.types.is_map(kind):
        raise UserError(f"{path}: JSON records have maps only as columns", hint=f"make {path} a column or a struct")
    if pa.types.is_decimal128(kind):
        # The reader does not see every overflow when it scales a number up. At this scale a number that it lets
        # through in spite of one is still larger than any that fits.
        before_point = kind.precision - kind.scale
        scale = (_DECIMAL_DIGITS - before_point) // 2 if wide else kind.scale
        return pa.decimal256(_DECIMAL_DIGITS, scale)
    if kind not in _PLAIN + _AS_TEXT:
        raise UserError(f"{path}: JSON records cannot be decoded to {job_type_name(kind)}")
    return pa.string() if kind in _AS_TEXT else kind


def _leaves(fields: Iterable[pa.Field], above: tuple[str | None, ...] = ()) -> Iterator[tuple[str | None, ...]]:
    """The paths of values that are not nested; only null, `[]` and `{}` have none."""
    for field in fields:
        kind, path = field.type, (*above, field.name)
        while pa.types.is_list(kind):
            kind, path = kind.value_type, (*path, None)
        if pa.types.is_struct(kind):
            yield from _leaves(kind, path)
        elif not pa.types.is_null(kind):
            yield path


def _rows(lines: pa.Buffer, count: int, schema: pa.Schema, unexpected: Unexpected) -> pa.RecordBatch:
    """The records as Arrow reads them. Raises `pa.ArrowInvalid` unless each gives one row."""
    table = pj.read_json(
        pa.BufferReader(lines),
        # One block: at the end of a block the reader looks for the end of a line, which may be inside a record.
        pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    # Between two records there is `}`, a line's end and `{`, which no reader takes inside a string, nor after a value
    # that is still open: so each record gives one row, or this count differs.
    if table.num_rows != count:
        raise pa.ArrowInvalid(f"{count} records gave {table.num_rows} rows")
    return table.combine_chunks().to_batches()[0]


def _mark_lists(offsets: pa.Array, mark: Mark) -> Mark:
    """Marks the rows whose lists hold the items that are marked."""

    def mark_rows(rows: Rows, reason: str) -> None:
        mark(np.searchsorted(offsets.to_numpy(), rows, side="right") - 1, reason)

    return mark_rows


def _decimals(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    with suppress(pa.ArrowInvalid):
        return array.cast(kind), []
    cut = array.cast(pa.decimal256(_DECIMAL_DIGITS, kind.scale), safe=False)
    largest = pa.scalar(Decimal((0, (9,) * kind.precision, -kind.scale)), cut.type)
    fits = pc.and_(pc.equal(cut.cast(array.type, safe=False), array), pc.less_equal(pc.abs(cut), largest))
    misfits = pc.indices_nonzero(pc.invert(fits)).to_pylist()
    return pc.if_else(fits, cut, pa.scalar(None, cut.type)).cast(kind), misfits


def _unbase64(array: pa.Array) -> tuple[pa.Array, Rows]:
    values: list[bytes | None] = []
    misfits: list[int] = []
    for row, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else base64.b64decode(text, validate=True))
        except ValueError:
            values.append(None)
            misfits.append(row)
    return pa.array(values, pa.binary()), misfits


def _quotes(text: bytes) -> int:
    """How many quotes are around the strings of a JSON text."""
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    return plain.count(b'"')


_ENCODE = msgspec.json.Encoder().encode
_READ_BY_MSGSPEC = (pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64())
"""Values of maps; those of other types stay texts for Arrow."""


@lru_cache(PARSERS_KEPT_MAX)
def _maps_decoder(item: pa.DataType) -> Callable[[Any], Any]:
    value = value_type(item, False) if item in _READ_BY_MSGSPEC else msgspec.Raw
    return msgspec.json.Decoder(list[dict[str, value] | None]).decode  # type: ignore[valid-type]


def _decoded(decode: Callable[[Any], list[Any]], text: Any) -> list[Any]:
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from None


@lru_cache(PARSERS_KEPT_MAX)
def _texts_decoder(schema: pa.Schema, known_only: bool) -> Callable[[Any], Any]:
    """Takes the texts of maps out of records. Parsers cannot be pickled, so decoders do not hold them."""
    try:
        read = schema if known_only else [field for field in schema if pa.types.is_map(field.type)]
        return msgspec.json.Decoder(struct_type(read, known_only, msgspec.Raw)).decode_lines
    except ValueError:
        raise UserError(
            "a schema with a map has a field whose name must be escaped in JSON", hint="leave that field out"
        ) from None
