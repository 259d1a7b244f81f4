"""The text of an entry of a Delta log, for tables with deletion vectors: the library cannot write those."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from deltalake.transaction import AddAction, RemoveAction

from penstock.flow.write.manifest import Vector
from penstock.lake.delta.vectors import VECTORS_FEATURE, to_log

READER_VERSION, WRITER_VERSION = 3, 7
"""Those with which a table states its features by name."""
UNUSED_FEATURE = "variantType"
"""The library gives it to every new table of these versions, and many readers do not have it."""


@dataclass
class AddFile(AddAction):
    """An add action of the library, with a deletion vector."""

    vector: Vector | None = None


Action = AddFile | RemoveAction


def entry_text(
    actions: Sequence[Action],
    vectors: Mapping[str, Vector],
    numbers: Mapping[str, int],
    metadata: Mapping[str, Any],
    now_ms: int,
) -> bytes:
    """An entry with these actions and app transactions; `vectors` are those of the version before it, by path."""
    lines = [_commit_info(metadata, now_ms)]
    lines += [{"txn": {"appId": key, "version": number, "lastUpdated": now_ms}} for key, number in numbers.items()]
    lines += [_removed(item, vectors.get(item.path)) for item in actions if isinstance(item, RemoveAction)]
    lines += [_added(item) for item in actions if isinstance(item, AddFile)]
    # Text stays UTF-8, as in the statistics.
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()


def first_entry_text(text: str, *, with_vectors: bool) -> str:
    """The first entry of a table as the library writes it, without features that the table does not need."""
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in _amended(text)) if with_vectors else text


def _amended(text: str) -> Iterator[dict[str, Any]]:
    for line in map(json.loads, text.splitlines()):
        if "protocol" in line:
            features = {kind: line["protocol"].get(kind, ()) for kind in ("readerFeatures", "writerFeatures")}
            kept = {kind: sorted({*names, VECTORS_FEATURE} - {UNUSED_FEATURE}) for kind, names in features.items()}
            line = {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION, **kept}}
        yield line


def _commit_info(metadata: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    parameters = {"mode": "Append"}
    info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": parameters, "engineInfo": "penstock"}
    return {"commitInfo": {**info, **metadata}}


def _removed(action: RemoveAction, vector: Vector | None) -> dict[str, Any]:
    return {
        "remove": {
            "path": _spelled(action.path),
            "deletionTimestamp": action.deletion_timestamp,
            "dataChange": action.data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(action.partition_values or {}),
            "size": action.size,
            **_with(vector),
        }
    }


def _added(action: AddFile) -> dict[str, Any]:
    stats = action.stats
    if action.vector is not None and stats:
        # Bounds are those of all rows, deleted ones too.
        stats = json.dumps({**json.loads(stats), "tightBounds": False}, ensure_ascii=False)
    return {
        "add": {
            "path": _spelled(action.path),
            "partitionValues": dict(action.partition_values),
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": action.data_change,
            "stats": stats,
            **_with(action.vector),
        }
    }


def _with(vector: Vector | None) -> dict[str, Any]:
    return {} if vector is None else {"deletionVector": to_log(vector)}


def _spelled(path: str) -> str:
    return quote(path, safe="/=")
