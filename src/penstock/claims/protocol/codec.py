"""How coordination records and snapshots are stored: JSON with kind and version, checked field by field.

Bytes that are not a valid record are one of three things:
- not ours at all (no JSON object with `penstock`): every version of the program skips it the same way: `ForeignError`;
- ours and malformed: refused by every reader alike: `MalformedError`;
- ours, of a version or kind that this program does not know, so the reader must stop: `UnknownVersionError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from penstock.claims.protocol.records import Beat, Presence, RangeBeat, Record, Who
from penstock.errors import UserError
from penstock.logs.log import Partition

VERSION = 1
TEXT_CHARACTERS_MAX = 512
"""The longest client id, group, topic or reason."""
NUMBER_MAX = 2**63 - 1
PARTITION_NUMBER_MAX = 2**31 - 1
_PERIOD = 2**53


class ForeignError(ValueError):
    """These bytes are not a record of Penstock."""


class MalformedError(ValueError):
    """A record of a known version with an invalid field."""


class UnknownVersionError(UserError):
    """A newer Penstock writes to this coordination topic."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the coordination topic holds {found}, which this version of Penstock does not know",
            detail="reading on could lead to a different state than in the other processes",
            hint="run the newest version of Penstock in every process of this coordination topic",
        )


def encode(record: Record, partitions: int) -> bytes:
    """The bytes of a record; `partitions` is the partition count of the topic that its place was computed with.

    A record that every reader would refuse as malformed is refused here, before its sender waits for it.
    """
    body = {each.name: _plain(getattr(record, each.name)) for each in fields(record)}
    _built(type(record), body)
    return _dumped({"penstock": VERSION, "kind": type(record).__name__, "of": partitions, **body})


def decode(content: bytes | None) -> tuple[Record, int]:
    """The record in these bytes, and the partition count of the coordination topic that its sender saw."""
    body = envelope(content)
    kind = _KINDS.get(str(body.get("kind")))
    if kind is None:
        raise UnknownVersionError(f"a record of kind {body.get('kind')!r}")
    del body["kind"]
    partitions = _positive(body.pop("of", None))
    return _built(kind, body), partitions


def envelope(content: bytes | None) -> dict[str, Any]:
    """The JSON object of a record or snapshot of a known version, without its version."""
    try:
        body = json.loads(content or b"")
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise ForeignError("not JSON") from None
    if not isinstance(body, dict) or "penstock" not in body:
        raise ForeignError("not a record of Penstock")
    version = body.pop("penstock")
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        raise UnknownVersionError(f"version {version!r}")
    return body


def dump_envelope(kind: str, body: Mapping[str, Any]) -> bytes:
    """The bytes of something other than a record, in the same envelope."""
    return _dumped({"penstock": VERSION, "kind": kind, **body})


def _dumped(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _built(kind: type[Record], body: dict[str, Any]) -> Record:
    wanted = {each.name: each.type for each in fields(kind)}
    if body.keys() != wanted.keys():
        raise MalformedError(f"{kind.__name__} has the fields {sorted(wanted)}, found {sorted(body)}")
    return kind(**{name: _PARSERS[str(wanted[name])](content) for name, content in body.items()})


def _plain(content: Any) -> Any:
    match content:
        case Partition():
            return [content.topic, content.topic_id, content.number]
        case Who():
            return [content.client_id, content.nonce]
        case Presence():
            return [content.claims_max, content.lag]
        case Beat():
            return [*_plain(content.partition), content.token, content.position, content.lag]
        case RangeBeat():
            return [*_plain(content.partition), content.start, content.lease]
        case tuple():
            return [_plain(each) for each in content]
        case _:
            return content


# parsers: one per type of field


def _text(content: Any) -> str:
    if not isinstance(content, str) or len(content) > TEXT_CHARACTERS_MAX:
        raise MalformedError(f"expected a text of at most {TEXT_CHARACTERS_MAX} characters")
    if not content.isascii() and any("\ud800" <= each <= "\udfff" for each in content):
        raise MalformedError("half of a surrogate pair is not valid text")
    return content


def _count(content: Any) -> int:
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content <= NUMBER_MAX:
        raise MalformedError(f"expected a number from 0 to {NUMBER_MAX}")
    return content


def _positive(content: Any) -> int:
    if _count(content) == 0:
        raise MalformedError("expected a number above 0")
    return int(content)


def _flag(content: Any) -> bool:
    if not isinstance(content, bool):
        raise MalformedError("expected true or false")
    return content


def _instant(content: Any) -> float:
    if not isinstance(content, int | float) or isinstance(content, bool) or not abs(content) < _PERIOD:
        raise MalformedError("expected seconds since 1970")
    return float(content)


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda content: None if content is None else parse(content)


def _items(content: Any, size: int | None = None) -> list[Any]:
    if not isinstance(content, list) or (size is not None and len(content) != size):
        raise MalformedError("expected a list" if size is None else f"expected a list of {size}")
    return content


def _partition(content: Any) -> Partition:
    topic, topic_id, number = _items(content, 3)
    if _count(number) > PARTITION_NUMBER_MAX:
        raise MalformedError("no partition has such a number")
    return Partition(_text(topic), _text(topic_id), number)


def _who(content: Any) -> Who:
    client_id, nonce = _items(content, 2)
    return Who(_text(client_id), _text(nonce))


def _presence(content: Any) -> Presence:
    claims_max, lag = _items(content, 2)
    return Presence(None if claims_max is None else _count(claims_max), _count(lag))


def _beats(content: Any) -> tuple[Beat, ...]:
    found = []
    for each in _items(content):
        topic, topic_id, number, token, position, lag = _items(each, 6)
        place = None if position is None else _count(position)
        found.append(Beat(_partition([topic, topic_id, number]), _count(token), place, _count(lag)))
    return tuple(found)


def _range_beats(content: Any) -> tuple[RangeBeat, ...]:
    found = []
    for each in _items(content):
        topic, topic_id, number, start, lease = _items(each, 5)
        found.append(RangeBeat(_partition([topic, topic_id, number]), _count(start), _count(lease)))
    return tuple(found)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _count,
    "int | None": _optional(_count),
    "bool": _flag,
    "float | None": _optional(_instant),
    "Who": _who,
    "Partition": _partition,
    "Presence": _presence,
    "Presence | None": _optional(_presence),
    "tuple[Beat, ...]": _beats,
    "tuple[RangeBeat, ...]": _range_beats,
}
_KINDS: Mapping[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}
