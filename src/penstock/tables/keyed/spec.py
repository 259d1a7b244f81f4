"""What the job file of a keyed table states, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.lake.delta.schema import TablePlace
from penstock.tables.keyed.layout import BUCKET, Layout

LAYOUT_PROPERTY = "penstock.keyed"
"""The table property that keeps the keys with which a table was made."""
TOMBSTONE_RETENTION_SECONDS = 7 * 86_400.0


class PartialUpdates(StrEnum):
    """What a null of an update does to the value that is there."""

    REPLACE = "replace"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSpec(TablePlace):
    kind = "keyed"
    layout: Layout
    chunk_rows: int = 500_000
    tombstone_retention_seconds: float = TOMBSTONE_RETENTION_SECONDS
    bulk: bool = False
    """A first load: rows are appended and nothing is looked up."""
    partition_by: tuple[str, ...] = (BUCKET,)

    @property
    def tombstones_path(self) -> str:
        """Where deleted keys are remembered."""
        return f"{self.path}_tombstones"
