"""Finds the records that cannot be rows, and why, with a msgspec parser made from the schema.

It takes every record that Arrow's reader takes, and few others: texts that are not times, decimals of too many digits,
numbers in skipped fields that are too large for a double, and what `exact` finds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import length_hint
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, too_deep, without_constants
from penstock.flow.decode.misfit import place
from penstock.job.schema import job_type_name

_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
OUT_OF_RANGE = "number out of range"
UNKNOWN_FIELD = "field is not in the schema"
PARSERS_KEPT_MAX = 512
_REASONS_KEPT_MAX = 4_096
_STEP = re.compile(r"\[[^]]*\]|[^.\[]+")
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_ACTUAL = re.compile(r", got `(?P<kind>\w+)`$")
_KINDS = {"str": "string", "int": "number", "float": "number", "bool": "boolean"}
"""Type names of msgspec, and those of our error texts."""


class Screen:
    """The parser of a schema; with `known_only` a field that the schema lacks makes a record bad."""

    def __init__(self, schema: pa.Schema, known_only: bool) -> None:
        self._schema = schema
        self._misfit = lru_cache(_REASONS_KEPT_MAX)(self._misfit_reason)
        try:
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(struct_type(schema, known_only)).decode
        except ValueError:
            # msgspec cannot look for a name that has to be escaped in JSON: only the syntax is checked here.
            self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def bad(self, records: pa.Array) -> dict[int, str]:
        """The numbers of the bad records, each with the reason."""
        texts: list[bytes] = records.to_numpy(zero_copy_only=False).tolist()
        reasons = _refused(texts, self._decode, self._reason)
        try:
            records.cast(pa.string())
        except pa.ArrowInvalid:
            # msgspec does not look at the texts that it skips.
            reasons |= _refused(texts, bytes.decode, self._reason)
        for number in pc.indices_nonzero(pc.greater(pc.binary_length(records), DEPTH_MAX)).to_pylist():
            if too_deep(texts[number]):
                reasons[number] = TOO_DEEP
        return reasons

    def _reason(self, record: bytes, error: Exception) -> str | None:
        if not record:
            return "value is empty"
        if isinstance(error, msgspec.ValidationError):
            return self._misfit(str(error))
        if isinstance(error, RecursionError):
            return TOO_DEEP
        if isinstance(error, UnicodeDecodeError):
            return "value is not UTF-8"
        plain = without_constants(record)
        if plain != record:
            # NaN and infinities make a record bad only where a column asks for a number.
            return _refused([plain], self._decode, self._reason).get(0)
        problem = str(error).removeprefix("JSON is malformed: ")
        return f"not JSON: {problem[0].lower()}{problem[1:]}"

    def _misfit_reason(self, message: str) -> str:
        """The reason of a value that is not of its type, from the message of msgspec."""
        parts = _PLACE.fullmatch(message)
        assert parts is not None
        path, problem = parts["path"] or "", parts["problem"]
        unknown = _UNKNOWN.fullmatch(problem)
        if unknown is not None:
            path = f"{path}.{unknown['name']}".strip(".")
            return f"{place(path)}: {UNKNOWN_FIELD}" if path else UNKNOWN_FIELD
        match = _ACTUAL.search(problem)
        kind = _KINDS.get(match["kind"], match["kind"]) if match else OUT_OF_RANGE
        if not path:
            return f"expected an object, found {kind}"
        expected = _expected(pa.struct(list(self._schema)), _STEP.findall(path))
        if "decimal string" in problem:
            kind = "string"
        return f"{place(path)}: expected {expected}, found {kind}"


screen_for = lru_cache(PARSERS_KEPT_MAX)(Screen)
"""Parsers cannot be pickled, so decoders do not hold them."""


def _refused(
    records: list[bytes], read: Callable[[bytes], object], reason_of: Callable[[bytes, Exception], str | None]
) -> dict[int, str]:
    """The records that `read` refuses for a reason; between two of them there is no step in Python."""
    reasons: dict[int, str] = {}
    remaining = iter(records)
    results = map(read, remaining)
    while True:
        try:
            deque(results, maxlen=0)
            return reasons
        except _REFUSALS as error:
            number = len(records) - length_hint(remaining) - 1
            reason = reason_of(records[number], error)
            if reason is not None:
                reasons[number] = reason


def member_name(name: str) -> str:
    """The attribute that has the field's value."""
    return f"f{name.encode().hex()}"


def struct_type(fields: Iterable[pa.Field], known_only: bool, map_type: Any = None) -> Any:
    """What msgspec decodes records to; `map_type` stands for all maps."""
    names = {member_name(field.name): field.name for field in fields}
    members = [(member_name(field.name), value_type(field.type, known_only, map_type), None) for field in fields]
    return msgspec.defstruct("Record", members, rename=names, forbid_unknown_fields=known_only, gc=False)


def value_type(kind: pa.DataType, known_only: bool, map_type: Any = None) -> Any:
    """What msgspec decodes values to."""
    if pa.types.is_struct(kind):
        return struct_type(list(kind), known_only) | None
    if pa.types.is_list(kind):
        return list[value_type(kind.value_type, known_only, map_type)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        return map_type or dict[str, value_type(kind.item_type, known_only, map_type)] | None  # type: ignore[misc]
    if pa.types.is_decimal(kind):
        # Floats are quick to make, and here they only have to be of the right size.
        size = float(10 ** (kind.precision - kind.scale))
        return Annotated[float, msgspec.Meta(ge=-size, le=size)] | Decimal | None
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_floating(kind):
        return float | None
    return bool | None if pa.types.is_boolean(kind) else str | None


def _expected(kind: pa.DataType, steps: Sequence[str]) -> str:
    """What is expected at the end of a path, as job files spell it."""
    if steps and pa.types.is_struct(kind):
        index = kind.get_field_index(steps[0])
        return _expected(kind.field(index).type, steps[1:]) if index >= 0 else "another value"
    if steps and pa.types.is_nested(kind):
        return _expected(kind.item_type if pa.types.is_map(kind) else kind.value_type, steps[1:])
    return "array" if pa.types.is_list(kind) else "object" if pa.types.is_nested(kind) else job_type_name(kind)
