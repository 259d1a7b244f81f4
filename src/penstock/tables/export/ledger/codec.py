"""The one wire form of ledger entries and snapshots: JSON with a version, made of the values themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

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


class UnreadableLedgerError(InvariantError):
    """A ledger object is damaged, or of a version that this Penstock does not know."""


class _Head(msgspec.Struct, frozen=True):
    v: Any


class _EntryObject(msgspec.Struct, frozen=True):
    v: int
    entry: Entry


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


class _SnapshotObject(msgspec.Struct, frozen=True):
    v: int
    snapshot: _Snapshot


_Object = TypeVar("_Object", _EntryObject, _SnapshotObject)
_HEAD = msgspec.json.Decoder(_Head)
_ENTRY = msgspec.json.Decoder(_EntryObject)
_SNAPSHOT = msgspec.json.Decoder(_SnapshotObject)


def encode_entry(entry: Entry) -> bytes:
    return msgspec.json.encode(_EntryObject(VERSION, entry))


def decode_entry(data: bytes) -> Entry:
    return _decoded(data, _ENTRY).entry


def encode_state(state: LedgerState) -> bytes:
    body = {each.name: getattr(state, each.name) for each in fields(state)}
    body["partitions"] = tuple(state.partitions.items())
    body["reopened"] = tuple(state.reopened.items())
    body["open_days"] = tuple(sorted(state.open_days))
    return msgspec.json.encode(_SnapshotObject(VERSION, _Snapshot(**body)))


def decode_state(data: bytes) -> LedgerState:
    body = msgspec.structs.asdict(_decoded(data, _SNAPSHOT).snapshot)
    body["partitions"] = dict(body["partitions"])
    body["reopened"] = dict(body["reopened"])
    body["open_days"] = frozenset(body["open_days"])
    return LedgerState(**body)


def _decoded(data: bytes, decoder: msgspec.json.Decoder[_Object]) -> _Object:
    try:
        version = _HEAD.decode(data).v
        if version == VERSION:
            return decoder.decode(data)
    except msgspec.DecodeError as error:
        primary = "an object of the ledger cannot be read"
        raise UnreadableLedgerError(primary, detail=str(error), hint=DAMAGED) from error
    raise UnreadableLedgerError(
        f"an object of the ledger is of version {version}, not {VERSION}",
        hint="it was written by another version of Penstock: use that one",
    )
