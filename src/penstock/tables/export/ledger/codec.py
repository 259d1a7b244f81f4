"""The one wire form of ledger entries and snapshots: JSON with a version; what is empty is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from penstock.errors import InvariantError
from penstock.flow.write.manifest import StagedFile
from penstock.lake.state import Totals
from penstock.logs.log import EpochMark, Partition
from penstock.tables.export.ledger.entry import (
    DeferredRecord,
    Entry,
    EntryKind,
    FenceRecord,
    ReplayRecord,
    SliceRecord,
    StartRecord,
    TakenRecord,
    TypeRecord,
    WrittenRecord,
)
from penstock.tables.export.ledger.fold import DAMAGED
from penstock.tables.export.ledger.state import (
    Cause,
    Lane,
    LedgerState,
    Listing,
    Rename,
    Reread,
    RoutedFrom,
    RoutedPartition,
    TypeState,
    Unfinished,
)
from penstock.tables.export.spec import TypeStart

VERSION = 1

_Value = TypeVar("_Value")


class UnreadableLedgerError(InvariantError):
    """A ledger object is damaged, or of a version that this Penstock does not know."""


def encode_entry(entry: Entry) -> bytes:
    head = {
        "number": entry.number,
        "kind": entry.kind,
        "job": entry.job,
        "batch": entry.batch_id,
        "at": entry.at,
    }
    body = {
        "starts": [{**_placed(each.partition), "offset": each.offset, "token": each.token} for each in entry.starts],
        "fences": [{**_placed(each.partition), "token": each.token} for each in entry.fences],
        "slices": [_slice_body(each) for each in entry.slices],
        "types": {name: _lean(asdict(each)) for name, each in entry.types.items()},
        "idle": [{**_placed(each), "watermark_ms": at} for each, at in entry.idle.items()],
        "renames": [_lean(asdict(each)) for each in entry.renames],
        "removes": list(entry.removes),
        "pending": [_lean(asdict(each)) for each in entry.pending],
        "pending_removes": list(entry.pending_removes),
        "pending_marks": [list(each) for each in entry.pending_marks],
        "dropped": [_lean(asdict(each)) for each in entry.dropped],
        "retired": entry.retired,
        "failures": dict(entry.failures),
        "reopened": [[name, day, at] for (name, day), at in entry.reopened.items()],
        "closed": [list(each) for each in entry.closed],
        "routings": dict(entry.routings),
        "replay": None if entry.replay is None else _replay_body(entry.replay),
    }
    return _encoded("entry", head, body)


def decode_entry(data: bytes) -> Entry:
    return _decoded(data, "entry", _entry)


def encode_state(state: LedgerState) -> bytes:
    body = {
        "partitions": [_partition_body(each, here) for each, here in state.partitions.items()],
        "fingerprints": dict(state.fingerprints),
        "types": {name: _lean(asdict(each)) for name, each in state.types.items()},
        "renames": [_lean(asdict(each)) for each in state.unfinished.renames],
        "removes": list(state.unfinished.removes),
        "marks": [list(each) for each in state.unfinished.marks],
        "pending": [_lean(asdict(each)) for each in state.pending],
        "reopened": [[name, day, at] for (name, day), at in state.reopened.items()],
        "open_days": sorted(map(list, state.open_days)),
        "first_batch": state.first_batch,
        "routings": dict(state.routings),
        "retired": state.retired,
        "replay_run": state.replay_run,
        "replay_entry": state.replay_entry,
    }
    return _encoded("snapshot", {"number": state.number}, body)


def decode_state(data: bytes) -> LedgerState:
    return _decoded(data, "snapshot", _state)


def _encoded(kind: str, head: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, "penstock": kind, **head, **_lean(body)}, separators=(",", ":")).encode()


def _decoded(data: bytes, kind: str, build: Callable[[Mapping[str, Any]], _Value]) -> _Value:
    try:
        body = json.loads(data)
        if body["penstock"] != kind or body["v"] != VERSION:
            raise UnreadableLedgerError(
                f"a ledger object is a {body['penstock']} of version {body['v']}, not a {kind} of {VERSION}",
                hint="it was written by a newer Penstock: use that one",
            )
        return build(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableLedgerError(
            f"a {kind} of the ledger cannot be read", detail=str(error), hint=DAMAGED
        ) from error


def _entry(body: Mapping[str, Any]) -> Entry:
    return Entry(
        number=body["number"],
        kind=EntryKind(body["kind"]),
        job=body["job"],
        batch_id=body["batch"],
        at=body["at"],
        starts=tuple(StartRecord(_partition(each), each["offset"], each["token"]) for each in body.get("starts", ())),
        fences=tuple(FenceRecord(_partition(each), each["token"]) for each in body.get("fences", ())),
        slices=tuple(_slice(each) for each in body.get("slices", ())),
        types={name: _type_record(each) for name, each in body.get("types", {}).items()},
        idle={_partition(each): each["watermark_ms"] for each in body.get("idle", ())},
        renames=tuple(Rename(**each) for each in body.get("renames", ())),
        removes=tuple(body.get("removes", ())),
        pending=tuple(Rename(**each) for each in body.get("pending", ())),
        pending_removes=tuple(body.get("pending_removes", ())),
        pending_marks=tuple((name, day) for name, day in body.get("pending_marks", ())),
        dropped=tuple(Rename(**each) for each in body.get("dropped", ())),
        retired=body.get("retired", 0),
        failures=body.get("failures", {}),
        reopened={(name, day): at for name, day, at in body.get("reopened", ())},
        closed=tuple((name, day) for name, day in body.get("closed", ())),
        routings=body.get("routings", {}),
        replay=_replay(body["replay"]) if "replay" in body else None,
    )


def _state(body: Mapping[str, Any]) -> LedgerState:
    return LedgerState(
        number=body["number"],
        partitions={_partition(each): _routed(each) for each in body.get("partitions", ())},
        fingerprints=body.get("fingerprints", {}),
        types={name: TypeState(**{"schema": "", **each}) for name, each in body.get("types", {}).items()},
        unfinished=Unfinished(
            tuple(Rename(**each) for each in body.get("renames", ())),
            tuple(body.get("removes", ())),
            tuple((name, day) for name, day in body.get("marks", ())),
        ),
        pending=tuple(Rename(**each) for each in body.get("pending", ())),
        reopened={(name, day): at for name, day, at in body.get("reopened", ())},
        open_days=frozenset((name, day) for name, day in body.get("open_days", ())),
        first_batch=body.get("first_batch", ""),
        routings=body.get("routings", {}),
        retired=body.get("retired", 0),
        replay_run=body.get("replay_run", 0),
        replay_entry=body.get("replay_entry", 0),
    )


def _slice_body(piece: SliceRecord) -> dict[str, Any]:
    return {
        **_placed(piece.partition),
        "start": piece.start,
        "end": piece.end,
        "token": piece.token,
        **_lean(
            {
                "totals": _lean(asdict(piece.totals)),
                "written": {name: asdict(each) for name, each in piece.written.items()},
                "deferred": {name: asdict(each) for name, each in piece.deferred.items()},
                "quarantine": [_file_body(each) for each in piece.quarantine],
                "routing": piece.routing,
                "epoch_mark": _mark_body(piece.mark),
            }
        ),
        # The first instant of 1970 is a time too.
        **({} if piece.watermark_ms is None else {"watermark_ms": piece.watermark_ms}),
        # An empty mapping is not the same as none: it is a catch-up without types.
        **({} if piece.taken is None else {"taken": {name: _taken_body(each) for name, each in piece.taken.items()}}),
    }


def _slice(body: Mapping[str, Any]) -> SliceRecord:
    taken = body.get("taken")
    partition = _partition(body)
    return SliceRecord(
        partition=partition,
        start=body["start"],
        end=body["end"],
        token=body["token"],
        totals=Totals(**body.get("totals", {})),
        watermark_ms=body.get("watermark_ms"),
        written={name: WrittenRecord(**each) for name, each in body.get("written", {}).items()},
        deferred={
            name: DeferredRecord(**{**each, "cause": Cause(each["cause"])})
            for name, each in body.get("deferred", {}).items()
        },
        taken=None if taken is None else {name: TakenRecord(**each) for name, each in taken.items()},
        quarantine=tuple(_file(each, partition) for each in body.get("quarantine", ())),
        routing=body.get("routing", ""),
        mark=_mark(body),
    )


def _partition_body(partition: Partition, here: RoutedPartition) -> dict[str, Any]:
    return {
        **_placed(partition),
        "position": here.position,
        "origin": here.origin,
        "token": here.token,
        "watermark_ms": here.watermark_ms,
        "totals": _lean(asdict(here.totals)),
        "lanes": {name: _lane_body(lane) for name, lane in here.lanes.items()},
        **_lean({"epoch_mark": _mark_body(here.mark)}),
        **({"routings": [[each.offset, each.routing] for each in here.routings]} if here.routings else {}),
        **(
            {"listed": here.listing.number, "quarantine": [_file_body(each) for each in here.listing.files]}
            if here.listing
            else {}
        ),
        **({"rereads": {name: [each.start, each.end] for name, each in here.rereads.items()}} if here.rereads else {}),
    }


def _routed(body: Mapping[str, Any]) -> RoutedPartition:
    partition = _partition(body)
    files = tuple(_file(each, partition) for each in body.get("quarantine", ()))
    return RoutedPartition(
        position=body["position"],
        origin=body["origin"],
        token=body["token"],
        totals=Totals(**body["totals"]),
        lanes={name: Lane(**{**each, "cause": Cause(each["cause"])}) for name, each in body["lanes"].items()},
        watermark_ms=body["watermark_ms"],
        listing=Listing(body["listed"], files) if "listed" in body else None,
        routings=tuple(RoutedFrom(offset, routing) for offset, routing in body.get("routings", ())),
        rereads={name: Reread(start, end) for name, (start, end) in body.get("rereads", {}).items()},
        mark=_mark(body),
    )


def _replay_body(replay: ReplayRecord) -> dict[str, Any]:
    return {
        "run": replay.run,
        "offsets": [{**_placed(each), "ranges": ranges} for each, ranges in replay.offsets.items()],
        "written": {name: asdict(each) for name, each in replay.written.items()},
    }


def _replay(body: Mapping[str, Any]) -> ReplayRecord:
    offsets = {_partition(each): tuple((start, end) for start, end in each["ranges"]) for each in body["offsets"]}
    return ReplayRecord(body["run"], offsets, {name: WrittenRecord(**each) for name, each in body["written"].items()})


def _mark_body(mark: EpochMark | None) -> list[int]:
    return [] if mark is None else [mark.end, mark.epoch]


def _mark(body: Mapping[str, Any]) -> EpochMark | None:
    return EpochMark(*body["epoch_mark"]) if "epoch_mark" in body else None


def _taken_body(taken: TakenRecord) -> dict[str, Any]:
    return {"start": taken.start, "count": taken.count, **_lean({"gap": taken.gap})}


def _lane_body(lane: Lane) -> dict[str, Any]:
    body = asdict(lane)
    rare = {name: body.pop(name) for name in ("routing", "gap")}
    return {**body, **_lean(rare)}


def _type_record(body: Mapping[str, Any]) -> TypeRecord:
    start = body.get("start")
    return TypeRecord(body.get("schema", ""), None if start is None else TypeStart(start), body.get("routing", ""))


def _file_body(file: StagedFile) -> dict[str, Any]:
    return {"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes, "stats": file.stats}


def _file(body: Mapping[str, Any], partition: Partition) -> StagedFile:
    return StagedFile(
        partition.topic, partition.number, body["path"], body["rows"], body["size_bytes"], {}, body["stats"]
    )


def _placed(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.number}


def _partition(body: Mapping[str, Any]) -> Partition:
    return Partition(body["topic"], body["topic_id"], body["partition"])


def _lean(body: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty, zero or null: readers fill it in."""
    return {name: value for name, value in body.items() if value not in (None, 0, "", [], {}, ())}
