"""The model of `table.keyed` in a job file, and what of it a table remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from penstock.errors import UserError
from penstock.job.values import Duration, Key, Part, Positive
from penstock.lake.delta.schema import TablePlace
from penstock.tables.keyed.layout import BUCKET, Layout

LAYOUT_PROPERTY = "penstock.keyed"
"""The table property that keeps the keys with which a table was made, so that it can be read without its job."""
TOMBSTONE_RETENTION_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSpec(TablePlace):
    kind = "keyed"
    layout: Annotated[Layout, Part.INLINE]
    chunk_rows: Positive = 500_000
    tombstone_retention_seconds: Annotated[Duration, Key("tombstone_retention")] = TOMBSTONE_RETENTION_SECONDS
    filter_tombstones: bool = False
    """Whether records without a value are left out: deletes are records of their own."""
    partition_by: tuple[str, ...] = (BUCKET,)

    @property
    def tombstones_path(self) -> str:
        """Where deleted keys are remembered."""
        return f"{self.path}_tombstones"


class _Kept(msgspec.Struct, frozen=True):
    """What of a layout decides where a row lies and which one stays."""

    version: Literal[4]
    partition_keys: tuple[str, ...]
    row_keys: tuple[str, ...]
    sequence: str | None
    buckets: int


def encode_layout(layout: Layout) -> str:
    """The text of the property: the same for layouts whose rows lie in the same places."""
    kept = _Kept(4, layout.partition_keys, layout.row_keys, layout.sequence, layout.buckets)
    return msgspec.json.encode(kept).decode()


def decode_layout(text: str) -> Layout:
    """The keys that a table was made with; what it does with deletes and nulls is the job's affair."""
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"the table property {LAYOUT_PROPERTY} cannot be read",
            detail=f"{error}: {text}",
            hint="was the table made by another version of Penstock?",
        ) from error
    return Layout(kept.partition_keys, kept.row_keys, kept.sequence, buckets=kept.buckets)
