"""Looks at records before Arrow's JSON reader sees them: at a whole array of them, and at each.

The look at each is a typed parser in C. What it lets through is syntax without a fault, values of the right kinds,
numbers in their ranges, times and dates that exist. It does not count digits of decimals (`arrow_json` does) nor see
that a name is given twice; for that there is a second look.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from operator import length_hint
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json.text import DEPTH_MAX, too_deep

_BLANKS = " \t\r\n"
_FLOAT_MAX = float(np.finfo(np.float32).max)
_SCREENS_KEPT_MAX = 512
_REFUSALS_KEPT_MAX = 4_096
WHOLE = ""
_LOOK_AT_ONCE = 500
_PATH_FOLLOWS = " - at `$."
_ITEM = re.compile(r"\[\d+\]")
_REFUSALS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
"""Its own, and those of the Python types that it makes: text that is not UTF-8, numbers of endless digits."""

Look = Callable[[bytes], object]
"""Raises one of `_REFUSALS` for a record that may be bad."""

Doubts = Mapping[int, str | None]
"""The numbers of doubtful records, each with the path of the field that may be at fault, or `WHOLE`, or not known."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of type binary; `rows` are their numbers in the batch, ascending."""

    records: pa.Array
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def each(self) -> list[bytes]:
        """The records one by one; by way of NumPy that is four times as fast."""
        records: list[bytes] = self.records.to_numpy(zero_copy_only=False).tolist()
        return records

    def only(self, numbers: Sequence[int]) -> Piece:
        places = np.array(numbers, np.int64)
        return Piece(self.records.take(pa.array(places)), self.rows[places])

    def without(self, numbers: Collection[int]) -> Piece:
        if not numbers:
            return self
        kept = np.ones(len(self), np.bool_)
        kept[list(numbers)] = False
        # Where most are kept, a filter is faster than to take them one by one.
        return Piece(self.records.filter(pa.array(kept)), self.rows[kept])


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
def first_look(schema: pa.Schema, known_only: bool) -> Look:
    """The look at kinds and ranges, with `known_only` at unknown fields too."""
    try:
        return msgspec.json.Decoder(_struct(list(schema), known_only)).decode
    except ValueError:
        # A name that has to be escaped in JSON: the typed parser cannot look for it.
        return _doubt


def second_look(record: bytes) -> None:
    """The look at all names: read and written again a record has as many quotes, unless one was given twice."""
    if msgspec.json.encode(msgspec.json.decode(record)).count(b'"') != record.count(b'"'):
        _doubt(record)


def _doubt(_: bytes) -> None:
    raise ValueError


def sifted(piece: Piece, look: Look | None, twice: Sequence[str] = ()) -> Doubts:
    """The doubtful records; those that have one of the names `twice` more than once are among them.

    Where such a name also stands nested or quoted it may be there twice by right. Without a look that is all.
    """
    doubts = {} if look is None else _looked_at(piece, look)
    for name in twice:
        for number in _holding_twice(piece.records, json.dumps(name, ensure_ascii=False).encode()):
            doubts.setdefault(number, None)
    return doubts


def _looked_at(piece: Piece, look: Look) -> dict[int, str | None]:
    doubts: dict[int, str | None] = {}
    for start in range(0, len(piece), _LOOK_AT_ONCE):
        # A part at a time: what one part took of memory is there for the next, and new memory is slow.
        few = Piece(piece.records[start : start + _LOOK_AT_ONCE], piece.rows[start : start + _LOOK_AT_ONCE])
        doubts.update((start + number, doubt) for number, doubt in _refused(few.each(), look).items())
    for number in pc.indices_nonzero(pc.greater(pc.binary_length(piece.records), DEPTH_MAX)).to_pylist():
        if number not in doubts and too_deep(piece.records[number].as_py()):
            doubts[number] = WHOLE
    return doubts


def _refused(records: list[bytes], look: Look) -> dict[int, str | None]:
    """The records that the look refuses; between two of them there is no step in Python."""
    doubts: dict[int, str | None] = {}
    rest = iter(records)
    looks = map(look, rest)
    while True:
        try:
            deque(looks, maxlen=0)
            return doubts
        except msgspec.ValidationError as error:
            doubt: str | None = _path_in(str(error))
        except _REFUSALS:
            doubt = WHOLE
        doubts[len(records) - length_hint(rest) - 1] = doubt


def _holding_twice(records: pa.Array, quoted: bytes) -> list[int]:
    """The records that hold this text more than once; all in one go, which is twice as fast as to count in each."""
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    text = np.frombuffer(data or b"", np.uint8)[: ends[-1]]
    # First the letter after the quote, which is rarer than a quote.
    starts = np.flatnonzero(text[1 : max(text.size - len(quoted) + 2, 0)] == quoted[1])
    for place, byte in enumerate(quoted):
        starts = starts[text[starts + place] == byte]
    holders = np.searchsorted(ends, starts[starts >= ends[0]], side="right") - 1
    return np.flatnonzero(np.bincount(holders) > 1).tolist()


@lru_cache(maxsize=_REFUSALS_KEPT_MAX)
def _path_in(refusal: str) -> str:
    """The path of the field that was refused: `user.age`, `lines[].count`."""
    return _ITEM.sub("[]", refusal.partition(_PATH_FOLLOWS)[2].rstrip("`"))


def _struct(fields: Sequence[pa.Field], known_only: bool) -> type[msgspec.Struct]:
    members = [(f"f{number}", _kind(each.type, known_only) | None, None) for number, each in enumerate(fields)]
    names = {f"f{number}": each.name for number, each in enumerate(fields)}
    return msgspec.defstruct("Record", members, rename=names, forbid_unknown_fields=known_only, gc=False)


def _kind(kind: pa.DataType, known_only: bool) -> Any:
    if pa.types.is_struct(kind):
        return _struct(list(kind), known_only)
    if pa.types.is_list(kind):
        return list[_kind(kind.value_type, known_only) | None]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_float32(kind):
        return Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)]
    if pa.types.is_decimal(kind):
        # Numbers as floats, which are quicker to make: here they only have to be of the right size.
        bound = float(10 ** (kind.precision - kind.scale))
        return Annotated[float, msgspec.Meta(ge=-bound, le=bound)] | Decimal
    return _PLAIN[kind]


_PLAIN: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float64(): float,
    pa.date32(): date,
    pa.timestamp("us", "UTC"): datetime,
    pa.binary(): bytes,
}
