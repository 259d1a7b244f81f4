"""How coordination records are stored: JSON with version and kind, under the group's name as the Kafka key.

Readers show their own group's records by that key and decode no others. Bytes that are not a valid record are one of
three things:
- not ours at all (no JSON object with `penstock`): every version of the program skips it the same way: `ForeignError`;
- ours and malformed: refused by every reader alike: `MalformedError`;
- ours, of a version or kind that this program does not know, so its readers stop: `UnknownVersionError`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from penstock.claims.protocol.records import TEXT_CHARACTERS_MAX, Count, Record, Text, partitions_of
from penstock.errors import UserError

VERSION: Literal[2] = 2
PARTITION_NUMBER_MAX = 2**31 - 1


class ForeignError(ValueError):
    """These bytes are not a record of Penstock."""


class MalformedError(ValueError):
    """A record of a known version with an invalid field."""


class UnknownVersionError(UserError):
    """Another version of Penstock writes to this group, or wrote to this topic."""

    def __init__(self, content: str, group: str, older: bool = False) -> None:
        super().__init__(
            f"the coordination log of group {group} holds {content}, this version of Penstock knows version {VERSION}",
            detail="reading on could lead to a different state than in the other processes of the group",
            hint="stop every process of the older version, and name a new coordination topic: `claims.topic`"
            if older
            else "run the newest version of Penstock in every process of this group; other groups are not affected",
        )


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """A record, its group, and the partition count of the topic that its place was computed with."""

    penstock: Literal[2]
    group: Text
    of: Count
    record: Record


class _Loose(Struct, frozen=True):
    """What a record or snapshot of any version has."""

    penstock: Any
    fold: Any = None
    record: Any = None


_DECODER = msgspec.json.Decoder(Envelope)
_LOOSE_DECODER = msgspec.json.Decoder(_Loose)
_KINDS = frozenset(kind.__name__ for kind in get_args(Record))


def encode(record: Record, group: str, partitions: int) -> bytes:
    """The bytes of a record; `partitions` is the partition count of the topic that its place was computed with.

    A record that every reader would refuse as malformed is refused here, before its sender waits for it.
    """
    try:
        content = msgspec.json.encode(Envelope(VERSION, group, partitions, record))
    except UnicodeEncodeError:
        raise MalformedError("half of a surrogate pair is not valid text") from None
    except (OverflowError, msgspec.MsgspecError) as error:
        raise MalformedError(str(error)) from None
    decode(content, group)
    return content


def decode(content: bytes | None, group: str) -> tuple[Record, int]:
    """The record of a group in these bytes, and the partition count of the coordination topic that its sender saw."""
    try:
        envelope = _DECODER.decode(content or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _fault(content or b"", group, error) from None
    if envelope.group != group or envelope.of == 0:
        raise MalformedError(f"written for group {envelope.group} of {envelope.of} partitions")
    for partition in partitions_of(envelope.record):
        if not 0 <= partition.number <= PARTITION_NUMBER_MAX:
            raise MalformedError(f"invalid partition number {partition.number}")
        if max(len(partition.topic), len(partition.topic_id)) > TEXT_CHARACTERS_MAX:
            raise MalformedError(f"a text has at most {TEXT_CHARACTERS_MAX} characters")
    return envelope.record, envelope.of


def check_version(content: bytes, group: str, what: str = "record") -> _Loose:
    """What every version has; ForeignError for bytes that are not Penstock's, UnknownVersionError for another version.

    Records of version 1 have no key, so every reader of one stops: its groups lie in all partitions of the topic.
    """
    try:
        loose = _LOOSE_DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ForeignError(f"not a {what} of Penstock") from None
    version = loose.penstock
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        older = isinstance(version, int) and version < VERSION
        raise UnknownVersionError(f"a {what} of version {version!r}", group, older)
    return loose


def _fault(content: bytes, group: str, error: Exception) -> Exception:
    """What is wrong with bytes of this version that are not a record."""
    record = check_version(content, group).record
    if isinstance(record, dict) and str(record.get("kind")) not in _KINDS:
        return UnknownVersionError(f"a record of kind {record.get('kind')!r}", group)
    return MalformedError(str(error))
