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
    """Put markers for the days that an entry closed, take those away that it opened; whether anything changed.

    A marker is a mirror: the ledger is the truth, and `penstock status` reads the ledger.
    """
    state = table.state()
    changed = False
    try:
        for name, day in (*entry.reopened, *entry.closed):
            marker = table.places.marker(name, day)
            complete = (name, day) not in state.open_days and name not in table.failing_types()
            if complete == table.storage.exists(marker):
                continue
            changed = True
            if complete:
                mark = _instant(watermark_of(state, name))
                body = {"type": name, "day": day, "entry": entry.number, "watermark": mark}
                table.storage.put(marker, json.dumps(body).encode())
                tell("day complete", type=name, day=day)
            else:
                table.storage.delete(marker)
                tell("day opened again", type=name, day=day)
    except PenstockError as error:
        tell("day marker failed", reason=error.primary)
    return changed


def _instant(millis: int | None) -> str | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat()
