"""Looks at records before Arrow's JSON reader sees them: at a whole array of them, and at each.

The look at each is a typed parser in C. What it lets through is syntax without a fault, values of the right kinds,
numbers in their ranges, times and dates that exist. It does not count digits of decimals (`arrow_json` does) nor see
that a name is given twice; for that there is a second look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json_text import DEPTH_MAX, too_deep

_BLANKS = " \t\r\n"
_FLOAT_MAX = float(np.finfo(np.float32).max)
_SCREENS_KEPT_MAX = 512
_NOWHERE = ""
_FIELD_AT_FAULT = re.compile(r" - at `\$\.([^.\[`]+)")
_REFUSALS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""Its own, and those of the Python types that it makes: text that is not UTF-8, numbers of endless digits."""

Look = Callable[[bytes], str | None]
"""None if a record seems good; otherwise the field that may be at fault, empty if that is not known."""

Doubts = Mapping[int, str]
"""The numbers of doubtful records, ascending, each with the field that may be at fault."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of type binary; `rows` are their numbers in the batch, ascending."""

    records: pa.Array
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def each(self) -> list[bytes]:
        """The records one by one; by way of NumPy that is four times as fast."""
        records: list[bytes] = self.records.to_numpy(zero_copy_only=False).tolist()
        return records

    def only(self, numbers: Sequence[int]) -> Piece:
        if len(numbers) == len(self):
            return self
        return Piece(self.records.take(pa.array(numbers, pa.int64())), [self.rows[number] for number in numbers])


def texts_of(records: pa.Array) -> pa.Array:
    """The records as strings. Raises `pa.ArrowInvalid` unless Arrow's reader may see them all.

    It may see valid UTF-8 that is one object by its first and last character and does not nest deeper than its stack.
    """
    texts = records.cast(pa.string())
    # Most records have no blanks around them, so the look without them comes first.
    if not _in_braces(texts) and not _in_braces(pc.utf8_trim(texts, _BLANKS)):
        raise pa.ArrowInvalid("not an object")
    # Where Arrow's reader infers types it descends by recursion: 50,000 open brackets end the process.
    lengths = pc.binary_length(texts)
    if (pc.max(lengths).as_py() or 0) > 2 * DEPTH_MAX:
        long = texts.filter(pc.greater(lengths, 2 * DEPTH_MAX))
        if any(too_deep(bytes(text.as_buffer())) for text in long):
            raise pa.ArrowInvalid(f"nested deeper than {DEPTH_MAX}")
    return texts


def _in_braces(texts: pa.Array) -> bool:
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return bool(pc.all(whole, min_count=0).as_py())


@lru_cache(maxsize=_SCREENS_KEPT_MAX)
def first_look(schema: pa.Schema, known_only: bool, twice: tuple[str, ...] = ()) -> Look:
    """The look at kinds and ranges, with `known_only` at unknown fields too; and at names that some records give twice.

    Where such a name also stands nested or quoted it may be there twice by right.
    """
    try:
        decode = msgspec.json.Decoder(_struct(list(schema), known_only)).decode
    except ValueError:
        # A name that has to be escaped in JSON: the typed parser cannot look for it.
        return lambda record: _NOWHERE
    quoted = [json.dumps(name, ensure_ascii=False).encode() for name in twice]

    def look(record: bytes) -> str | None:
        try:
            decode(record)
        except msgspec.ValidationError as error:
            found = _FIELD_AT_FAULT.search(str(error))
            return found[1] if found else _NOWHERE
        except _REFUSALS:
            return _NOWHERE
        for name in quoted:
            if record.count(name) > 1:
                return _NOWHERE
        return _NOWHERE if len(record) > DEPTH_MAX and too_deep(record) else None

    return look


def second_look(record: bytes) -> str | None:
    """The look at all names: read and written again a record has as many quotes, unless one was given twice."""
    try:
        again = msgspec.json.encode(msgspec.json.decode(record))
    except _REFUSALS:
        return _NOWHERE
    return None if again.count(b'"') == record.count(b'"') else _NOWHERE


def sifted(piece: Piece, look: Look) -> tuple[list[int], Doubts]:
    """The numbers of the records that seem good, and those of the others."""
    good: list[int] = []
    doubts: dict[int, str] = {}
    for number, record in enumerate(piece.each()):
        suspect = look(record)
        if suspect is None:
            good.append(number)
        else:
            doubts[number] = suspect
    return good, doubts


def _struct(fields: Sequence[pa.Field], known_only: bool) -> type[msgspec.Struct]:
    members = [(f"f{number}", _kind(each.type, known_only) | None, None) for number, each in enumerate(fields)]
    names = {f"f{number}": each.name for number, each in enumerate(fields)}
    return msgspec.defstruct("Record", members, rename=names, forbid_unknown_fields=known_only, gc=False)


def _kind(kind: pa.DataType, known_only: bool) -> Any:
    if pa.types.is_struct(kind):
        return _struct([kind.field(index) for index in range(kind.num_fields)], known_only)
    if pa.types.is_list(kind):
        return list[_kind(kind.value_type, known_only) | None]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_float32(kind):
        return Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]
    if pa.types.is_decimal(kind):
        return Decimal
    return _PLAIN[kind]


_PLAIN: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float64(): float,
    pa.date32(): date,
    pa.timestamp("us", "UTC"): datetime,
    pa.binary(): bytes,
}
