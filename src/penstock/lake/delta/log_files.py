"""Reads from the log files of a Delta table what the library does not show.

The library gives app transactions only by name, no deletion vectors, and removals of a file only without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow.parquet as pq

from penstock.errors import TransientError
from penstock.flow.write.manifest import Vector
from penstock.lake.delta.vectors import from_log
from penstock.storage import NotFoundError, Storage

LOG_FOLDER = "_delta_log/"
ENTRIES_READ_MAX = 100
"""Beyond so many entries a checkpoint is read instead."""
_COLUMNS = {
    "txn": ("appId", "version"),
    "remove": ("path", "deletionTimestamp", "deletionVector"),
    "add": ("path", "stats", "deletionVector"),
}
"""What is read of a checkpoint; the first column is never null."""
T = TypeVar("T")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
"""In one file: those in several files are written only by Spark, if a setting asks for it."""


def entry_path(version: int) -> str:
    """The path of a commit below its table."""
    return f"{LOG_FOLDER}{version:020d}.json"


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """What an add action has beyond what the library shows of it."""

    stats: str
    vector: Vector | None


def app_transactions(
    storage: Storage, version: int, earlier: tuple[int, Mapping[str, int]] | None = None
) -> dict[str, int]:
    """App ids with their numbers as of a version of the table; `earlier` are those of an earlier version."""

    def note(numbers: dict[str, int], _: str, action: dict[str, Any]) -> None:
        numbers[action["appId"]] = int(action["version"])

    return _replayed(storage, version, earlier, ("txn",), note)


def logged_files(
    storage: Storage, version: int, earlier: tuple[int, Mapping[str, LoggedFile]] | None = None
) -> dict[str, LoggedFile]:
    """The files of a version of the table; `earlier` are those of an earlier version."""

    def note(files: dict[str, LoggedFile], kind: str, action: dict[str, Any]) -> None:
        path, vector = unquote(action["path"]), action.get("deletionVector")
        files.pop(path, None)
        if kind == "add":
            files[path] = LoggedFile(action.get("stats") or "", None if vector is None else from_log(vector))

    return _replayed(storage, version, earlier, ("remove", "add"), note)


def removed_files(storage: Storage, version: int) -> dict[str, int]:
    """Data and files of vectors that the retained log removes, with the time of the last removal in milliseconds."""

    def note(removed: dict[str, int], _: str, action: dict[str, Any]) -> None:
        vector = action.get("deletionVector")
        for path in [unquote(action["path"]), *([] if vector is None else [from_log(vector).path])]:
            removed[path] = max(removed.get(path, 0), action.get("deletionTimestamp") or 0)

    return _replayed(storage, version, None, ("remove",), note)


def _replayed(
    storage: Storage,
    version: int,
    earlier: tuple[int, Mapping[str, T]] | None,
    kinds: tuple[str, ...],
    note: Callable[[dict[str, T], str, dict[str, Any]], None],
) -> dict[str, T]:
    """Note the actions of these kinds, of the last checkpoint and the entries after it, in the order of the log.

    With the result of an earlier version only newer entries are read, if there are few.
    """
    names: list[str] = []
    result: dict[str, T] = {}
    if earlier is not None and 0 <= version - earlier[0] <= ENTRIES_READ_MAX:
        base, result = earlier[0], dict(earlier[1])
    elif (base := _last_checkpoint(storage, version)) >= 0:
        names.append(f"{base:020d}.checkpoint.parquet")
    names += [f"{number:020d}.json" for number in range(base + 1, version + 1)]
    try:
        for name in names:
            for kind, action in _actions(storage, f"{LOG_FOLDER}{name}", kinds):
                note(result, kind, action)
    except NotFoundError as error:
        if earlier is not None:
            # Entries since then were cleaned: begin at the checkpoint that replaced them.
            return _replayed(storage, version, None, kinds, note)
        raise TransientError(
            f"the log of {storage.url} lacks a file after its last checkpoint in one file",
            detail=error.primary,
            hint="try again: the log may just be cleaned; else let Spark write checkpoints in one file",
        ) from error
    return result


def _last_checkpoint(storage: Storage, version: int) -> int:
    """The version of the newest checkpoint up to this version; -1 if there is none."""
    try:
        hinted = int(json.loads(storage.read(f"{LOG_FOLDER}_last_checkpoint"))["version"])
        if hinted <= version and storage.exists(f"{LOG_FOLDER}{hinted:020d}.checkpoint.parquet"):
            return hinted
    except (NotFoundError, ValueError, KeyError, TypeError):
        # Without a usable `_last_checkpoint` the log is listed, which may be long.
        pass
    names = (entry.path.removeprefix(LOG_FOLDER) for entry in storage.list(LOG_FOLDER))
    versions = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    return max((number for number in versions if number <= version), default=-1)


def _actions(storage: Storage, path: str, kinds: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """The actions of these kinds, kind by kind: the actions of an entry have no order."""
    if path.endswith(".json"):
        # Most lines are long add actions: search the text before parsing.
        marks = [f'"{kind}"'.encode() for kind in kinds]
        lines = [line for line in storage.read(path).splitlines() if any(mark in line for mark in marks)]
        actions = [json.loads(line) for line in lines]
        return [(kind, action[kind]) for kind in kinds for action in actions if action.get(kind)]
    file = pq.ParquetFile(storage.open_reader(path), pre_buffer=False)
    columns = [f"{kind}.{name}" for kind in kinds for name in _COLUMNS[kind]]
    result = []
    for batch in file.iter_batches(columns=columns, use_threads=False):
        for kind in kinds:
            if kind in batch.schema.names:
                actions = batch.column(kind).drop_null().to_pylist()
                result += [(kind, action) for action in actions if action[_COLUMNS[kind][0]] is not None]
    return sorted(result, key=lambda noted: kinds.index(noted[0]))
