"""Day-complete markers: small files that tell other programs what the ledger knows of a day."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.errors import PenstockError
from penstock.tables.parquet.days import watermark_of
from penstock.tables.parquet.entry import Entry
from penstock.tables.parquet.table import ExportTable


def mark_days(table: ExportTable, entry: Entry, tell: Callable[..., None]) -> bool:
    """Put markers for the days that an entry closed, take those away that it opened; whether there were any.

    A marker is a mirror: the ledger is the truth, and `penstock status` reads the ledger.
    """
    state = table.state()
    try:
        for name, day in entry.reopened:
            marker = table.places.marker(name, day)
            if table.storage.exists(marker):
                table.storage.delete(marker)
                tell("day opened again", type=name, day=day)
        for name, day in entry.closed:
            if (name, day) in state.open_days or name in table.failing_types():
                continue
            body = {"type": name, "day": day, "entry": entry.number, "watermark": _instant(watermark_of(state, name))}
            table.storage.put(table.places.marker(name, day), json.dumps(body).encode())
            tell("day complete", type=name, day=day)
    except PenstockError as error:
        tell("day marker failed", reason=error.primary)
    return bool(entry.reopened or entry.closed)


def _instant(millis: int | None) -> str | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat()
