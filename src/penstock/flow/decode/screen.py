"""Cheap looks at a whole array of records before a JSON reader sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.exact import members_of
from penstock.flow.decode.json_text import DEPTH_MAX, too_deep
from penstock.flow.decode.misfit import MisfitError

_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring records; `rows` are their numbers in the batch, ascending."""

    records: pa.Array
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> Piece:
        return Piece(self.records.slice(start, end - start), self.rows[start:end])

    def only(self, numbers: Sequence[int]) -> Piece:
        return Piece(self.records.take(pa.array(numbers, pa.int64())), [self.rows[number] for number in numbers])

    def record(self, number: int) -> bytes:
        return bytes(self.records[number].as_buffer())


def screened(piece: Piece, errors: dict[int, str]) -> Piece:
    """The records that Arrow's reader may see, as strings; the others are named in `errors`.

    It may see valid UTF-8 that is one object by its first and last character and does not nest deeper than its stack.
    """
    try:
        texts = Piece(piece.records.cast(pa.string()), piece.rows)
    except pa.ArrowInvalid:
        well_encoded = _without(piece, _badly_encoded(piece.records), errors)
        texts = Piece(well_encoded.records.cast(pa.string()), well_encoded.rows)
    texts = _without(texts, _not_objects(texts.records), errors)
    return _without(texts, _too_deep(texts), errors)


def _without(piece: Piece, refused: Sequence[int], errors: dict[int, str]) -> Piece:
    if not refused:
        return piece
    for number in refused:
        errors[piece.rows[number]] = _error(piece.record(number))
    dropped = frozenset(refused)
    return piece.only([number for number in range(len(piece)) if number not in dropped])


def _error(record: bytes) -> str:
    try:
        members_of(record)
    except MisfitError as misfit:
        return str(misfit)
    return "expected an object"


def _badly_encoded(records: pa.Array) -> list[int]:
    refused = []
    for number, record in enumerate(records.to_pylist()):
        try:
            record.decode()
        except UnicodeDecodeError:
            refused.append(number)
    return refused


def _not_objects(texts: pa.Array) -> list[int]:
    """The numbers of texts that do not begin with `{` and end with `}`, blanks aside."""
    whole = _in_braces(texts)
    if not pc.all(whole, min_count=0).as_py():
        whole = _in_braces(pc.utf8_trim(texts, _BLANKS))
    return list(pc.indices_nonzero(pc.invert(whole)).to_pylist())


def _in_braces(texts: pa.Array) -> pa.Array:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


def _too_deep(piece: Piece) -> list[int]:
    # Where Arrow's reader infers types it descends by recursion: 50,000 open brackets end the process.
    long = pc.indices_nonzero(pc.greater(pc.binary_length(piece.records), 2 * DEPTH_MAX)).to_pylist()
    return [number for number in long if too_deep(piece.record(number))]
