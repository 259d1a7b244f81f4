"""Gives up renames that nobody can do any more: the staged file is gone, and so is the file that it should become.

Until then the type is held back, because the ledger counts rows that are nowhere. Giving up says so: they count as
vanished, and the type goes on.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.lake.storage import Storage
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.table import Draft, ExportTable


def drop_lost_files(table: ExportTable, *, dry_run: bool = False) -> tuple[Rename, ...]:
    """Write an entry without the renames whose files are gone; they come back."""
    lost: tuple[Rename, ...] = ()

    def decide(_: LedgerState) -> Draft | None:
        nonlocal lost
        waiting = (each.rename for each in table.finishing.leftover.renames if each.lost)
        lost = tuple(each for each in waiting if _is_lost(table.storage, each))
        return Draft(EntryKind.IDLE, dropped=lost) if lost and not dry_run else None

    table.append(decide)
    return lost


def _is_lost(storage: Storage, rename: Rename) -> bool:
    """Whether neither file is there; a store that cannot tell now is asked another time."""
    try:
        return not storage.exists(rename.source) and not storage.exists(rename.target)
    except PenstockError:
        return False
