"""The one wire form of ledger entries and snapshots: JSON with a version, made of the values themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

import msgspec

from penstock.errors import InvariantError
from penstock.logs.log import Partition
from penstock.tables.export.ledger.entry import Entry
from penstock.tables.export.ledger.fold import DAMAGED
from penstock.tables.export.ledger.state import (
    LedgerState,
    Rename,
    RoutedPartition,
    Stored,
    TypeDay,
    TypeState,
    Unfinished,
)

VERSION = 2
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class UnreadableLedgerError(InvariantError):
    """A ledger object is damaged, or of a version that this Penstock does not know."""


class _Snapshot(Stored, frozen=True):
    """A `LedgerState` whose mappings by partition and by day are pairs: JSON has no keys of several parts."""

    number: int
    partitions: tuple[tuple[Partition, RoutedPartition], ...] = ()
    fingerprints: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    types: Mapping[str, TypeState] = msgspec.field(default_factory=dict)
    unfinished: Unfinished = Unfinished()
    pending: tuple[Rename, ...] = ()
    reopened: tuple[tuple[TypeDay, int], ...] = ()
    open_days: tuple[TypeDay, ...] = ()
    first_batch: str = ""
    routings: Mapping[str, str] = msgspec.field(default_factory=dict)
    retired: int = 0
    replay_run: int = 0
    replay_entry: int = 0


_Kept = TypeVar("_Kept", Entry, _Snapshot)


def encode_entry(entry: Entry) -> bytes:
    return msgspec.json.encode({"v": VERSION, "entry": entry})


def decode_entry(data: bytes) -> Entry:
    return _decoded(data, "entry", Entry)


def encode_state(state: LedgerState) -> bytes:
    body = {each.name: getattr(state, each.name) for each in fields(state)}
    body["partitions"] = tuple(state.partitions.items())
    body["reopened"] = tuple(state.reopened.items())
    body["open_days"] = tuple(sorted(state.open_days))
    return msgspec.json.encode({"v": VERSION, "snapshot": _Snapshot(**body)})


def decode_state(data: bytes) -> LedgerState:
    body = msgspec.structs.asdict(_decoded(data, "snapshot", _Snapshot))
    body["partitions"] = dict(body["partitions"])
    body["reopened"] = dict(body["reopened"])
    body["open_days"] = frozenset(body["open_days"])
    return LedgerState(**body)


def _decoded(data: bytes, key: str, kind: type[_Kept]) -> _Kept:
    try:
        parts = _PARTS.decode(data)
        version = msgspec.json.decode(parts["v"])
        if version == VERSION:
            return msgspec.json.decode(parts[key], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        primary = "an object of the ledger cannot be read"
        raise UnreadableLedgerError(primary, detail=str(error), hint=DAMAGED) from error
    raise UnreadableLedgerError(
        f"an object of the ledger is of version {version}, not {VERSION}",
        hint="it was written by another version of Penstock: use that one",
    )
