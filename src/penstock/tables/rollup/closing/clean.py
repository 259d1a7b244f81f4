"""Partials of windows that are closed for good leave their table; their points stay counted (RULES W3)."""

from __future__ import annotations

import pyarrow as pa

from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.tables.rollup.closing.decide import Clean
from penstock.tables.rollup.closing.portion.scan import scan
from penstock.tables.rollup.partials.schema import cleaned_key, close_key, removed_key

_COUNT = pa.schema([("count", pa.int64())])


def clean(partials: Table, chore: Clean) -> int | None:
    """Remove the files in one commit; the points in them, or None if there was nothing to remove any more."""
    storage = partials.storage()
    points = sum(int(rows["count"].sum()) for each in chore.files for rows in scan(storage, each.path, _COUNT))

    def decide() -> Change | None:
        found = unchanged(partials, chore.closed, [each.path for each in chore.files])
        return None if found is None else _change(partials, chore, found, points)

    return points if partials.swap(decide) else None


def unchanged(partials: Table, closed: int, paths: list[str]) -> list[ActiveFile] | None:
    """The files as they are now; None if one is gone, or if a close was begun, which may want them."""
    if (partials.transaction(close_key(partials.job)) or 0) != closed:
        return None
    active = {each.path: each for each in partials.active_files()}
    return [active[path] for path in paths] if all(path in active for path in paths) else None


def _change(partials: Table, chore: Clean, files: list[ActiveFile], points: int) -> Change:
    job = partials.job
    before = partials.transaction(cleaned_key(job))
    return Change(
        actions=[partials.remove_action(each) for each in files],
        transactions={
            cleaned_key(job): chore.cleaned_ms if before is None else max(before, chore.cleaned_ms),
            removed_key(job): (partials.transaction(removed_key(job)) or 0) + points,
        },
        metadata=Provenance(kind="clean", job=job, files_removed=len(files)).metadata,
    )
