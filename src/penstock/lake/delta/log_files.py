"""What is read from the log files of a Delta table themselves, because the library does not show it.

Of app transactions it answers only for names that one knows, of removals only for those that the clock has passed.
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
"""A checkpoint comes at the latest after so many."""
CLOCK_AHEAD_MAX = timedelta(hours=1)
"""By how much the clock of another writer may be ahead of ours."""

_ENTRY = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint\.(?:(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|parquet"
    r"|(?P<unique>[0-9a-fA-F-]{36})\.(?:parquet|json))"
)


def app_transactions(
    storage: Storage, version: int, known: tuple[int, Mapping[str, int]] | None = None
) -> dict[str, int]:
    """App ids with their numbers as of a version of the table: its last checkpoint and the entries after it.

    `known` are those of an earlier version: then only the entries since are read, while there are few of them.
    """
    files: list[str] = []
    result: dict[str, int] = {}
    if known is not None and 0 <= version - known[0] <= ENTRIES_READ_MAX:
        base, result = known[0], dict(known[1])
    else:
        base, files = _hinted_checkpoint(storage, version) or _listed_checkpoint(storage, version)
    entries = [f"{number:020d}.json" for number in range(base + 1, version + 1)]
    try:
        for name in [*files, *entries]:
            for action in _actions(storage, f"{LOG_FOLDER}{name}"):
                result[action["appId"]] = int(action["version"])
    except NotFoundError as error:
        if known is not None:
            # Entries since then were cleaned: begin at the checkpoint that replaced them.
            return app_transactions(storage, version)
        raise TransientError(f"the log of {storage.url} was cleaned while it was read", hint="try again") from error
    return result


def _hinted_checkpoint(storage: Storage, version: int) -> tuple[int, list[str]] | None:
    """The checkpoint that the log's own hint names, without listing a long log; None if it does not help."""
    try:
        hint = json.loads(storage.read(f"{LOG_FOLDER}_last_checkpoint"))
        base = int(hint["version"])
    except (NotFoundError, ValueError, KeyError, TypeError):
        return None
    name = f"{base:020d}.checkpoint.parquet"
    if base > version or hint.get("parts") or hint.get("v2Checkpoint") or not storage.exists(f"{LOG_FOLDER}{name}"):
        return None
    return base, [name]


def _listed_checkpoint(storage: Storage, version: int) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint that is whole; version -1 if there is none."""
    by_version: dict[int, dict[str, list[str]]] = {}
    for entry in storage.list(LOG_FOLDER):
        name = entry.path.rsplit("/", 1)[-1]
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match["version"]) <= version:
            # A multi-part checkpoint counts only with all of its parts; others are whole by themselves.
            group = f"parts {match['parts']}" if match["parts"] else name
            by_version.setdefault(int(match["version"]), {}).setdefault(group, []).append(name)
    for number in sorted(by_version, reverse=True):
        for group, files in sorted(by_version[number].items()):
            if not group.startswith("parts ") or len(files) == int(group.removeprefix("parts ")):
                return number, sorted(files)
    return -1, []


def _actions(storage: Storage, path: str) -> Iterator[dict[str, Any]]:
    if path.endswith(".json"):
        for line in storage.read(path).splitlines():
            # Most lines are long add actions: look before parsing.
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
    entries = [item for item in storage.list(LOG_FOLDER) if _ENTRY.fullmatch(item.path.removeprefix(LOG_FOLDER))]
    newest = max((entry.modified_at for entry in entries), default=None)
    removed: set[str] = set()
    for each in entries:
        if newest is not None and each.modified_at >= newest - CLOCK_AHEAD_MAX:
            removed |= _removed_by(storage, each.path)
    return frozenset(removed & paths)


def _removed_by(storage: Storage, entry: str) -> set[str]:
    try:
        lines = storage.read(entry).splitlines()
    except NotFoundError:
        # Expired since the listing; only old entries expire.
        return set()
    actions = (json.loads(line) for line in lines if b'"remove"' in line)
    return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
