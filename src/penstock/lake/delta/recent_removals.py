"""The removals of the newest entries of a Delta log, whatever time they say they happened at."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from datetime import timedelta
from urllib.parse import unquote

from penstock.lake.storage import NotFoundError, Storage

CLOCK_AHEAD_MAX = timedelta(hours=1)
"""By how much the clock of another writer may be ahead of ours."""

_ENTRY = re.compile(r"\d{20}\.json")


def recently_removed(storage: Storage, log_folder: str, paths: Set[str]) -> frozenset[str]:
    """Which of `paths` the log's newest entries remove; the store's own times decide which entries are new."""
    if not paths:
        return frozenset()
    entries = [each for each in storage.list(log_folder) if _ENTRY.fullmatch(each.path.removeprefix(log_folder))]
    newest = max((each.modified_at for each in entries), default=None)
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
