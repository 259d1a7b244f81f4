"""Finds the records of a batch that cannot be rows, and why, with a msgspec parser made from the schema.

It takes every record that Arrow's reader takes, and few others: names that are given twice, texts that are not times,
decimals of too many digits, and odd spellings of numbers. Those are found when Arrow reads the rest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import length_hint
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json.column_types import ANY_TEXT, OUT_OF_RANGE, Known, MapOf
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, JsonObject, too_deep, without_constants
from penstock.flow.decode.misfit import MisfitError, place
from penstock.job.schema import job_type_name

UNKNOWN_FIELD = "field is not in the schema"
GIVEN_TWICE = "given twice"
_SCREENS_KEPT_MAX = 512
_REASONS_KEPT_MAX = 4_096
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z"
_ITEM = re.compile(r"\[\d+\]")
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_FOUND = re.compile(r", got `(?P<kind>\w+)`$")
_KINDS = {"str": "string", "int": "number", "float": "number", "bool": "boolean"}
"""Words of msgspec, and ours."""


class Screen:
    """The parser of a schema; with `known_only` a field that the schema lacks makes a record bad."""

    def __init__(self, schema: pa.Schema, *, known_only: bool) -> None:
        self._types = dict(_type_names("", pa.struct(list(schema))))
        self._misfit = lru_cache(_REASONS_KEPT_MAX)(self._misfit_reason)
        try:
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(_struct(schema, known_only)).decode
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
        if plain is not record:
            # NaN and infinities make a record bad only where a column asks for a number.
            return _refused([plain], self._decode, self._reason).get(0)
        problem = str(error).removeprefix("JSON is malformed: ")
        return f"not JSON: {problem[0].lower()}{problem[1:]}"

    def _misfit_reason(self, message: str) -> str:
        """The reason of a value that is not of its type, from the words of msgspec."""
        parts = _PLACE.fullmatch(message)
        assert parts is not None
        path, problem = parts["path"] or "", parts["problem"]
        unknown = _UNKNOWN.fullmatch(problem)
        if unknown is not None:
            path = f"{path}.{unknown['name']}".strip(".")
            return f"{place(path)}: {UNKNOWN_FIELD}" if path else UNKNOWN_FIELD
        found = _FOUND.search(problem)
        kind = _KINDS.get(found["kind"], found["kind"]) if found else OUT_OF_RANGE
        if not path:
            return f"expected an object, found {kind}"
        expected = self._types.get(_ITEM.sub("[]", path), "another value")
        if expected.startswith("decimal") and "regex" in problem:
            kind = "string"
        return f"{place(path)}: expected {expected}, found {kind}"


@lru_cache(maxsize=_SCREENS_KEPT_MAX)
def screen_for(schema: pa.Schema, known_only: bool) -> Screen:
    """Parsers cannot be pickled, so decoders do not hold them."""
    return Screen(schema, known_only=known_only)


def _refused(
    records: list[bytes], read: Callable[[bytes], object], reason_of: Callable[[bytes, Exception], str | None]
) -> dict[int, str]:
    """The records that `read` refuses for a reason; between two of them there is no step in Python."""
    reasons: dict[int, str] = {}
    rest = iter(records)
    results = map(read, rest)
    while True:
        try:
            deque(results, maxlen=0)
            return reasons
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            number = len(records) - length_hint(rest) - 1
            reason = reason_of(records[number], error)
            if reason is not None:
                reasons[number] = reason


def _struct(fields: Iterable[pa.Field], known_only: bool) -> type[msgspec.Struct]:
    names = {f"f{number}": field.name for number, field in enumerate(fields)}
    members = [(f"f{number}", _type(field.type, known_only), None) for number, field in enumerate(fields)]
    return msgspec.defstruct("Record", members, rename=names, forbid_unknown_fields=known_only, gc=False)


def _type(kind: pa.DataType, known_only: bool) -> Any:
    if kind.equals(ANY_TEXT):
        return msgspec.Raw
    if pa.types.is_struct(kind):
        return _struct(list(kind), known_only) | None
    if pa.types.is_list(kind):
        return list[_type(kind.value_type, known_only)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _type(kind.item_type, known_only)] | None  # type: ignore[misc]
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_decimal(kind):
        # Floats are quick to make, and here they only have to be of the right size.
        size = float(10 ** (kind.precision - kind.scale))
        return Annotated[float, msgspec.Meta(ge=-size, le=size)] | Annotated[str, msgspec.Meta(pattern=_DECIMAL)] | None
    if pa.types.is_floating(kind):
        return float | None
    return bool | None if pa.types.is_boolean(kind) else str | None


def _type_names(path: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    """The types of the schema's fields by their path, as msgspec writes it, in the words of job files."""
    if pa.types.is_struct(kind):
        yield path, "object"
        for child in kind:
            yield from _type_names(f"{path}.{child.name}".lstrip("."), child.type)
    elif pa.types.is_list(kind):
        yield path, "array"
        yield from _type_names(f"{path}[]", kind.value_type)
    elif pa.types.is_map(kind):
        yield path, "object"
        yield from _type_names(f"{path}[...]", kind.item_type)
    else:
        yield path, "any value" if kind.equals(ANY_TEXT) else job_type_name(kind)


def refuse_duplicates(value: Any, known: Known | MapOf | None) -> None:
    """Raise a `MisfitError` if an object gives the name of a known field twice, or a map a key, at any depth."""
    if isinstance(value, list) and known is not None:
        for item in value:
            refuse_duplicates(item, known)
    elif isinstance(value, JsonObject) and known is not None:
        for name in value:
            if isinstance(known, MapOf) or name in known:
                try:
                    if name in value.doubled:
                        raise MisfitError(GIVEN_TWICE)
                    refuse_duplicates(value[name], known.values if isinstance(known, MapOf) else known[name])
                except MisfitError as misfit:
                    raise misfit.inside(name) from None
