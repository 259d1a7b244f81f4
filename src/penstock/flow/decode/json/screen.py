"""What msgspec does with records before Arrow reads them: it finds the bad ones, and rewrites what Arrow cannot read.

`Screen` finds records that cannot be rows, and why, with a parser made from the schema. It takes every record that
Arrow's reader takes, and few others: names that are given twice (`duplicate_name` finds them), texts that are not
times, decimals of too many digits, and odd spellings of numbers.

`Rewriter` serves schemas with maps. A map `{"a":1,"b":2}` is rewritten as `{"key":["a","b"],"value":[1,2]}`. The rest
of a record stays as it is, so all else is read and checked as in records without them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import length_hint
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decode.json.read_columns import KEYS, OUT_OF_RANGE, VALUES, Known, MapOf, known_fields
from penstock.flow.decode.json_text import DEPTH_MAX, TOO_DEEP, too_deep, without_constants
from penstock.flow.decode.misfit import MisfitError, place
from penstock.job.schema import job_type_name

UNKNOWN_FIELD = "field is not in the schema"
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
_PARSERS_KEPT_MAX = 512
_REASONS_KEPT_MAX = 4_096
_DECIMAL = r"^[+-]?0*(?=\.?[0-9])(?!\.?([0-9]\.?){77})[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?\Z"
"""At most 76 digits, which is what Arrow reads."""
_STEP = re.compile(r"\[[^]]*\]|[^.\[]+")
_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_FOUND = re.compile(r", got `(?P<kind>\w+)`$")
_KINDS = {"str": "string", "int": "number", "float": "number", "bool": "boolean"}
"""Words of msgspec, and ours."""


class Screen:
    """The parser of a schema; with `known_only` a field that the schema lacks makes a record bad.

    `strict` is slower, and also refuses texts that only Python takes for decimals, such as `NaN` and `1_000`.
    """

    def __init__(self, schema: pa.Schema, known_only: bool, *, strict: bool) -> None:
        self._schema = schema
        self._misfit = lru_cache(_REASONS_KEPT_MAX)(self._misfit_reason)
        try:
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(_struct(schema, known_only, strict)).decode
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
        expected = _expected(pa.struct(list(self._schema)), _STEP.findall(path))
        if "regex" in problem or "decimal string" in problem:
            kind = "string"
        return f"{place(path)}: expected {expected}, found {kind}"


screen_for = lru_cache(_PARSERS_KEPT_MAX)(Screen)
"""Parsers cannot be pickled, so decoders do not hold them."""


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
        except _REFUSALS as error:
            number = len(records) - length_hint(rest) - 1
            reason = reason_of(records[number], error)
            if reason is not None:
                reasons[number] = reason


def _struct(fields: Iterable[pa.Field], known_only: bool, strict: bool) -> type[msgspec.Struct]:
    names = {f"f{number}": field.name for number, field in enumerate(fields)}
    members = [(f"f{number}", _type(field.type, known_only, strict), None) for number, field in enumerate(fields)]
    return msgspec.defstruct("Record", members, rename=names, forbid_unknown_fields=known_only, gc=False)


def _type(kind: pa.DataType, known_only: bool, strict: bool) -> Any:
    if pa.types.is_struct(kind):
        return _struct(list(kind), known_only, strict) | None
    if pa.types.is_list(kind):
        return list[_type(kind.value_type, known_only, strict)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _type(kind.item_type, known_only, strict)] | None  # type: ignore[misc]
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_decimal(kind):
        # Floats are quick to make, and here they only have to be of the right size.
        size = float(10 ** (kind.precision - kind.scale))
        text = Annotated[str, msgspec.Meta(pattern=_DECIMAL)] if strict else Decimal
        return Annotated[float, msgspec.Meta(ge=-size, le=size)] | text | None
    if pa.types.is_floating(kind):
        return float | None
    return bool | None if pa.types.is_boolean(kind) else str | None


def _expected(kind: pa.DataType, steps: Sequence[str]) -> str:
    """What is expected at the end of a path, in the words of job files."""
    if steps and pa.types.is_struct(kind):
        index = kind.get_field_index(steps[0])
        return _expected(kind.field(index).type, steps[1:]) if index >= 0 else "another value"
    if steps and pa.types.is_nested(kind):
        return _expected(kind.item_type if pa.types.is_map(kind) else kind.value_type, steps[1:])
    return "array" if pa.types.is_list(kind) else "object" if pa.types.is_nested(kind) else job_type_name(kind)


class _Name(str):
    """A name that is equal to no other, so that a dict keeps all members of an object that have one name."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


_pairs = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=lambda kind, name: kind(name)).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_items = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_encode = msgspec.json.Encoder().encode


def duplicate_name(text: bytes, known: Known | MapOf, path: str = "") -> str | None:
    """The reason of a record in which an object gives a known field twice, or a map a key, at any depth."""
    if text.startswith(b"["):
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        reasons = [duplicate_name(bytes(item), known, path) for item in items]
        return next((reason for reason in reasons if reason is not None), None)
    if not text.startswith(b"{"):
        return None
    pairs = _pairs(text)
    names = [*map(str, pairs)]
    if len(set(names)) < len(names):
        for name in names:
            if names.count(name) > 1 and (isinstance(known, MapOf) or name in known):
                return f"{place(path + name)}: given twice"
    for name, value in zip(names, pairs.values(), strict=True):
        below = known.values if isinstance(known, MapOf) else known.get(name)
        reason = None if below is None else duplicate_name(bytes(value), below, f"{path}{name}.")
        if reason is not None:
            return reason
    return None


_Rewrite = Callable[[msgspec.Raw | bytes], Any]
"""The value to write instead. Raises `msgspec.MsgspecError` if the value is of another kind than its column."""


class Rewriter:
    """Rewrites the records of a schema, if there is `needed` for it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._known = known_fields(schema)
        self._rewrite: Any = self._rewrite_of(pa.struct(list(schema)))
        self._quotes_added = 0
        self.needed = self._rewrite is not None

    def rewrite(self, record: bytes) -> bytes:
        """Raises `MisfitError` if the record is not an object of the schema, or gives a name twice."""
        try:
            self._quotes_added = 0
            written = _encode(self._rewrite(record))
        except _REFUSALS as error:
            plain = without_constants(record)
            if plain is not record:
                return self.rewrite(plain)
            raise MisfitError(f"not JSON: {error}") from None
        # msgspec keeps one value for each name, and Arrow would not see that there were two.
        if written.count(b'"') != record.count(b'"') + self._quotes_added:
            reason = duplicate_name(record.strip(), self._known)
            if reason is not None:
                raise MisfitError(reason)
        return written

    def _rewrite_of(self, kind: pa.DataType) -> _Rewrite | None:
        """How values of the type are rewritten; None if they need not be."""
        if pa.types.is_map(kind):
            return self._map_rewrite(self._rewrite_of(kind.item_type))
        if pa.types.is_struct(kind):
            rewrites = {child.name: self._rewrite_of(child.type) for child in kind}
            return _struct_rewrite({name: rewrite for name, rewrite in rewrites.items() if rewrite is not None})
        if pa.types.is_list(kind) and (rewrite := self._rewrite_of(kind.value_type)) is not None:
            return lambda text: None if (items := _items(text)) is None else [rewrite(item) for item in items]
        return None

    def _map_rewrite(self, rewrite_value: _Rewrite | None) -> _Rewrite:
        def rewrite(text: msgspec.Raw | bytes) -> Any:
            members = _members(text)
            if members is None:
                return None
            self._quotes_added += 4
            values = members.values() if rewrite_value is None else map(rewrite_value, members.values())
            return {KEYS: list(members), VALUES: list(values)}

        return rewrite


rewriter_for = lru_cache(_PARSERS_KEPT_MAX)(Rewriter)


def _struct_rewrite(rewrites: Mapping[str, _Rewrite]) -> _Rewrite | None:
    def rewrite(text: msgspec.Raw | bytes) -> Any:
        members: Any = _members(text)
        for name in rewrites.keys() & (members or {}):
            members[name] = rewrites[name](members[name])
        return members

    return rewrite if rewrites else None
