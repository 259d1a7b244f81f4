"""Arrow's JSON reader: the texts of a whole batch into the columns of a schema.

Arrow knows no times and no base64: it reads them as texts, which are converted afterwards. It reads decimals with more
digits than the column has, so that one of too many digits is found. Of maps it reads only that they are objects: their
texts are taken out of the records by msgspec, and Arrow reads the values of all maps of a batch as one list.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import UserError
from penstock.flow.columns.fitting import null_mask
from penstock.flow.columns.times import UTC_MICROS, dates_or_null, timestamps_or_null
from penstock.flow.decode.json_text import doubled_name
from penstock.job.schema import job_type_name

OUT_OF_RANGE = "number out of range"
TINY_NUMBER = r"[1-9][0-9.]*[eE]-0*[1-9][0-9]{2,}"
"""Arrow reads past the end of a table for such an exponent of a decimal: it refuses the number, or takes it for 0."""

_PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_AS_TEXT = (pa.date32(), UTC_MICROS, pa.binary())
_DECIMAL_DIGITS = 76
"""Decimals are read this wide: Arrow's JSON reader does not look at the precision after scaling."""
_DECODERS_KEPT_MAX = 512
_NULL = msgspec.Raw(b"null")

Rows = Sequence[int] | npt.NDArray[np.int64]
Objects = Sequence[Any] | None
"""For each row what msgspec read of it, or None for null; where no value holds a map, there are none."""


class Mark(Protocol):
    """Takes the numbers of rows whose value does not fit its column, and the reason.

    With `pattern` only those rows count whose text matches it.
    """

    def __call__(self, rows: Rows, reason: str, pattern: str | None = None) -> None: ...


class Reader:
    """Reads records as columns of a schema.

    A `wide` one also reads decimals with too many digits, and marks them. `unexpected` is what Arrow does with fields
    that the schema lacks. Raises `UserError` for a type that JSON records cannot be decoded to.
    """

    def __init__(self, schema: pa.Schema, *, wide: bool, unexpected: str) -> None:
        self._kind = pa.struct(list(schema))
        self._wide = wide
        self._unexpected = unexpected
        self._asked = pa.schema(list(_read_type(self._kind, "", wide)))
        self._has_maps = has_map(self._kind)

    def table(self, texts: pa.Array, unexpected: str | None = None) -> pa.Table:
        """What Arrow reads itself. Raises `pa.ArrowInvalid` unless each text gives one row."""
        return _table(texts, self._asked, unexpected or self._unexpected)

    def columns(self, table: pa.Table, texts: pa.Array, mark: Mark) -> pa.RecordBatch:
        """The columns of the schema. Raises `pa.ArrowInvalid` if a map cannot be read.

        The rows of values that do not fit are marked, and their values are of no use.
        """
        objects: Objects = None
        if self._has_maps:
            objects = _decoded(map_decoder(self._kind, known_only=False), texts.cast(pa.binary()).to_pylist())
        columns = [
            self._fit(whole(table.column(field.name)), field.type, mark, field.name, below)
            for field, below in zip(self._kind, _members_of(objects, self._kind), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(self._kind)))

    def _fit(self, array: pa.Array, kind: pa.DataType, mark: Mark, path: str, objects: Objects) -> pa.Array:
        """What was read as `kind`; a struct may hold children that `kind` lacks."""
        if pa.types.is_struct(kind):
            children = [
                self._fit(array.field(child.name), child.type, mark, _joined(path, child.name), below)
                for child, below in zip(kind, _members_of(objects, kind), strict=True)
            ]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
        if pa.types.is_list(kind):
            below = None if objects is None else [*chain.from_iterable(item for item in objects if item is not None)]
            items = self._fit(array.values, kind.value_type, mark_lists(array.offsets, mark), f"{path}[]", below)
            return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=null_mask(array))
        if pa.types.is_map(kind):
            assert objects is not None
            return self._map(objects, kind, mark, path)
        if pa.types.is_floating(kind) and not self._wide and not _all_finite(array):
            raise pa.ArrowInvalid(OUT_OF_RANGE)
        return _converted(array, kind, mark, path)

    def _map(self, objects: Sequence[Any], kind: pa.DataType, mark: Mark, path: str) -> pa.Array:
        texts = [_NULL if item is None else item for item in objects]
        maps = _decoded(_MEMBERS, texts)
        _refuse_duplicate_keys(texts, maps)
        nulls = pa.array([each is None for each in maps]) if None in maps else None
        present = [each or {} for each in maps]
        offsets = pa.array(np.cumsum([0, *map(len, present)]), pa.int32())
        keys = pa.array([*chain.from_iterable(present)], pa.string())
        values = [*chain.from_iterable(map(dict.values, present))]
        items = self._items(values, kind.item_type, mark_lists(offsets, mark), f"{path}[...]")
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=nulls)

    def _items(self, texts: Sequence[Any], kind: pa.DataType, mark: Mark, path: str) -> pa.Array:
        """The values of maps of their texts."""
        objects = _decoded(map_decoder(kind, known_only=False), texts) if has_map(kind) else None
        asked = pa.schema([("items", pa.list_(_read_type(kind, path, self._wide)))])
        table = _table(pa.array([_ENCODE({"items": texts})], pa.binary()).cast(pa.string()), asked, self._unexpected)
        return self._fit(whole(table.column(0)).values, kind, mark, path, objects)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(has_map(child.type) for child in kind)
    return pa.types.is_map(kind) or (pa.types.is_list(kind) and has_map(kind.value_type))


def _read_type(kind: pa.DataType, path: str, wide: bool) -> pa.DataType:
    """The type to ask Arrow for."""
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(child.name, _read_type(child.type, _joined(path, child.name), wide)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(_read_type(kind.value_type, f"{path}[]", wide))
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        _read_type(kind.item_type, f"{path}.*", wide)
        return pa.struct([])
    if pa.types.is_decimal128(kind):
        # The reader does not see every overflow when it scales a number up. At this scale a number that it lets
        # through in spite of one is still larger than any that fits.
        before_point = kind.precision - kind.scale
        scale = (_DECIMAL_DIGITS - before_point) // 2 if wide else kind.scale
        return pa.decimal256(_DECIMAL_DIGITS, scale)
    if kind not in _PLAIN + _AS_TEXT:
        raise UserError(f"{path}: JSON records cannot be decoded to {job_type_name(kind)}")
    return pa.string() if kind in _AS_TEXT else kind


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


def whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def mark_lists(offsets: pa.Array, mark: Mark) -> Mark:
    """Marks the rows whose lists hold the items that are marked."""

    def mark_rows(rows: Rows, reason: str, pattern: str | None = None) -> None:
        mark(np.searchsorted(offsets.to_numpy(), rows, side="right") - 1, reason, pattern)

    return mark_rows


def _converted(array: pa.Array, kind: pa.DataType, mark: Mark, path: str) -> pa.Array:
    """Values that are not nested."""
    misfits: Rows = []
    result = "string" if kind in _AS_TEXT else OUT_OF_RANGE
    if pa.types.is_timestamp(kind):
        array, misfits = timestamps_or_null(array)
    elif pa.types.is_date32(kind):
        array, misfits = dates_or_null(array)
    elif pa.types.is_binary(kind):
        array, misfits = _unbase64(array)
    elif pa.types.is_decimal(kind):
        zeros = pc.indices_nonzero(pc.equal(array, pa.scalar(0, array.type)).fill_null(False))
        if len(zeros):
            mark(zeros.to_numpy(), f"{path}: expected {job_type_name(kind)}, found {result}", TINY_NUMBER)
        array, misfits = _decimals(array, kind)
    elif pa.types.is_floating(kind) and not _all_finite(array):
        # A number too large for the column, or NaN or an infinity, which are not JSON.
        misfits = pc.indices_nonzero(pc.invert(pc.is_finite(array))).to_pylist()
    if len(misfits):
        mark(misfits, f"{path}: expected {job_type_name(kind)}, found {result}")
    return array


def _all_finite(array: pa.Array) -> bool:
    return bool(pc.all(pc.is_finite(array), min_count=0).as_py())


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


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_ENCODE = msgspec.json.Encoder().encode


def _decoded(decode: Callable[[Any], Any], texts: Sequence[Any]) -> list[Any]:
    try:
        return list(map(decode, texts))
    except (msgspec.MsgspecError, ValueError) as error:
        raise pa.ArrowInvalid(str(error)) from None


@lru_cache(_DECODERS_KEPT_MAX)
def map_decoder(kind: pa.DataType, *, known_only: bool) -> Callable[[Any], Any]:
    """Takes the texts of maps out of a value; one of `known_only` refuses values with fields that the type lacks.

    Parsers cannot be pickled, so decoders do not hold them. Raises `UserError` for a name that msgspec cannot look for.
    """
    try:
        return msgspec.json.Decoder(_text_type(kind, known_only)).decode
    except ValueError:
        raise UserError(
            "a schema with a map has a field whose name must be escaped in JSON", hint="leave that field out"
        ) from None


def _text_type(kind: pa.DataType, known_only: bool) -> Any:
    if pa.types.is_struct(kind):
        read = [(number, child) for number, child in enumerate(kind) if known_only or has_map(child.type)]
        names = {f"f{number}": child.name for number, child in read}
        members = [
            (f"f{number}", _text_type(child.type, known_only), None if _has_fields(child.type) else _NULL)
            for number, child in read
        ]
        return msgspec.defstruct("Maps", members, rename=names, forbid_unknown_fields=known_only, gc=False) | None
    if _has_fields(kind):
        return list[_text_type(kind.value_type, known_only)] | None  # type: ignore[misc]
    return msgspec.Raw


def _has_fields(kind: pa.DataType) -> bool:
    """Whether it is a struct, or a list with structs or maps in it."""
    is_list = pa.types.is_list(kind)
    return pa.types.is_struct(kind) or (is_list and (pa.types.is_map(kind.value_type) or _has_fields(kind.value_type)))


def _members_of(objects: Objects, struct: pa.DataType) -> list[Objects]:
    """Of each field of a struct the values that hold maps."""
    if objects is None:
        return [None] * struct.num_fields
    return [
        [None if item is None else getattr(item, f"f{number}") for item in objects] if has_map(child.type) else None
        for number, child in enumerate(struct)
    ]


def _refuse_duplicate_keys(texts: Sequence[Any], maps: Sequence[Any]) -> None:
    """Raise `pa.ArrowInvalid`, in Arrow's words, if a map gives a key twice, of which msgspec kept one."""
    given, kept = _ENCODE(texts), _ENCODE(maps)
    if given.count(b'"') == kept.count(b'"') and b"\\u0022" not in given:
        return
    for text in texts:
        if (name := doubled_name(bytes(text))) is not None:
            raise pa.ArrowInvalid(f"Column(/{name}) was specified twice in row 0")
