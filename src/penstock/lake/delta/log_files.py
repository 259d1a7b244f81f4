"""Reads from the log files of a Delta table what the library does not show.

The library gives app transactions only by name, and removals only once their time has passed by the clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from penstock.errors import TransientError
from penstock.storage import NotFoundError, Storage

LOG_FOLDER = "_delta_log/"
ENTRIES_READ_MAX = 100
"""Beyond so many entries a checkpoint is read instead."""
CLOCK_AHEAD_MAX = timedelta(hours=1)
"""By how much the clock of another writer may be ahead of this process's clock."""

_ENTRY = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
"""In one file: those in several files are written only by Spark, if a setting asks for it."""


def entry_path(version: int) -> str:
    """The path of a commit below its table."""
    return f"{LOG_FOLDER}{version:020d}.json"


def app_transactions(
    storage: Storage, version: int, earlier: tuple[int, Mapping[str, int]] | None = None
) -> dict[str, int]:
    """App ids with their numbers as of a version of the table: its last checkpoint and the entries after it.

    `earlier` are those of an earlier version: then only newer entries are read, if there are few.
    """
    names: list[str] = []
    numbers: dict[str, int] = {}
    if earlier is not None and 0 <= version - earlier[0] <= ENTRIES_READ_MAX:
        base, numbers = earlier[0], dict(earlier[1])
    elif (base := _last_checkpoint(storage, version)) >= 0:
        names.append(f"{base:020d}.checkpoint.parquet")
    names += [f"{number:020d}.json" for number in range(base + 1, version + 1)]
    try:
        for name in names:
            for action in _actions(storage, f"{LOG_FOLDER}{name}"):
                numbers[action["appId"]] = int(action["version"])
    except NotFoundError as error:
        if earlier is not None:
            # Entries since then were cleaned: begin at the checkpoint that replaced them.
            return app_transactions(storage, version)
        raise TransientError(
            f"the log of {storage.url} lacks a file after its last checkpoint in one file",
            detail=error.primary,
            hint="try again: the log may just be cleaned; else let Spark write checkpoints in one file",
        ) from error
    return numbers


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


def _actions(storage: Storage, path: str) -> Iterator[dict[str, Any]]:
    if path.endswith(".json"):
        for line in storage.read(path).splitlines():
            # Most lines are long add actions: search the text before parsing.
            if b'"txn"' in line and (action := json.loads(line).get("txn")):
                yield action
        return
    file = pq.ParquetFile(storage.open_reader(path), pre_buffer=False)
    if "txn" in file.schema_arrow.names:
        for batch in file.iter_batches(columns=["txn.appId", "txn.version"], use_threads=False):
            yield from (action for action in batch.column("txn").drop_null().to_pylist() if action["appId"] is not None)


def recently_removed(storage: Storage, paths: Set[str]) -> frozenset[str]:
    """Which of `paths` the log's newest entries remove; the store's own times decide which entries are new."""
    if not paths:
        return frozenset()
    entries = [entry for entry in storage.list(LOG_FOLDER) if _ENTRY.fullmatch(entry.path.removeprefix(LOG_FOLDER))]
    newest = max((entry.modified_at for entry in entries), default=None)
    removed: set[str] = set()
    for entry in entries:
        if newest is not None and entry.modified_at >= newest - CLOCK_AHEAD_MAX:
            removed |= _removed_by(storage, entry.path)
    return frozenset(removed & paths)


def _removed_by(storage: Storage, entry: str) -> set[str]:
    try:
        lines = storage.read(entry).splitlines()
    except NotFoundError:
        # Expired since the listing; only old entries expire.
        return set()
    actions = (json.loads(line) for line in lines if b'"remove"' in line)
    return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
