"""What a task has counted of one type in one partition so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.seen_types import NewFields, add_fields, to_json
from penstock.flow.route.routes import WRAPPED
from penstock.flow.route.type_counts import Share
from penstock.flow.write.manifest import Counts
from penstock.flow.write.offset_ranges import ranges_of


def lengths_of(batch: pa.RecordBatch) -> pa.Array:
    """How long the values are, as they lie in the log; null for a tombstone."""
    return pc.binary_length(batch.column(WRAPPED if WRAPPED in batch.schema.names else "value"))


class Tally:
    """Grows with every batch and becomes a `Share` at the end."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._first: int | None = None
        self._size_bytes = 0
        self._event_ms_max: int | None = None
        self._days: Counter[str] = Counter()
        self._new_fields: NewFields = {}
        self._replayed: set[int] = set()

    def read(self, offsets: pa.Array, lengths: pa.Array) -> None:
        """Count records, whatever becomes of them; each must be counted again for what did."""
        if not len(offsets):
            return
        least = pc.min(offsets).as_py()
        self._first = least if self._first is None else min(self._first, least)
        self._size_bytes += pc.sum(lengths, min_count=0).as_py()
        self._counts += Counts(read=len(offsets))

    def written(self, day: str, rows: int) -> None:
        self._counts += Counts(written=rows)
        self._days[day] += rows

    def quarantined(self, count: int) -> None:
        self._counts += Counts(quarantined=count)

    def filtered(self, count: int) -> None:
        self._counts += Counts(filtered=count)

    def skipped(self, count: int) -> None:
        """Count records that the type has already."""
        self._counts += Counts(skipped=count)

    def replayed(self, offsets: Iterable[int]) -> None:
        """Note which records of the quarantine became rows."""
        self._replayed.update(offsets)

    def seen(self, event_ms: int) -> None:
        self._event_ms_max = event_ms if self._event_ms_max is None else max(self._event_ms_max, event_ms)

    def note_fields(self, fields: NewFields) -> None:
        add_fields(self._new_fields, fields)

    def share(self) -> Share:
        """Without files, which only the writer knows."""
        return Share(
            counts=self._counts,
            first=self._first,
            size_bytes=self._size_bytes,
            event_ms_max=self._event_ms_max,
            days=dict(sorted(self._days.items())),
            new_fields=to_json(self._new_fields),
            replayed=ranges_of(self._replayed),
        )

    def failed_share(self, reason: str) -> Share:
        """Of a type that could not be written: its records are only counted, for they are read again."""
        counts = Counts(read=self._counts.read, skipped=self._counts.skipped)
        # It may quote a record, and with it what is no character.
        printable = reason.encode("utf-8", "backslashreplace").decode()
        return Share(counts=counts, first=self._first, size_bytes=self._size_bytes, failed=printable)
