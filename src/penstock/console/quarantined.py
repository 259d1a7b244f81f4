"""What is in the quarantine of a job, as its page shows it: listings, records with the error marked, a dry replay."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.console.records import LIST_BYTES_MAX, RECORD_BYTES_MAX, Content, content_of, cut_content
from penstock.engine.dry_run import DryRun, dry_replay
from penstock.environment import Environment
from penstock.flow.write.quarantine import error_kinds
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import DeltaLog
from penstock.quarantine.replay import ReplayOptions, chunks_of
from penstock.quarantine.rows import Listing, QuarantineEntry, find_rows, list_rows, read_records
from penstock.quarantine.table import discard, open_quarantine
from penstock.tables.registry import kind_of

PAGE_ROWS = 20
HEADERS_MAX = 50
PREVIEW_ROWS = 1_000
PREVIEW_BYTES = 8 * 1024 * 1024
LISTINGS_MAX = 100


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A quarantined record; a session that only reads sees neither its bytes nor its whole error."""

    entry: QuarantineEntry
    error: str
    value: Content | None = None
    key: Content | None = None
    headers: tuple[tuple[str, Content], ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would do with the oldest records of the quarantine."""

    result: DryRun
    records: int
    more: bool
    """Whether there are further records that were not tried."""
    before_sql: bool


class Listings:
    """Pages of listings by the version of their table: all rows are read for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[tuple[object, ...], Listing] = OrderedDict()

    def of(self, table: DeltaLog, kind: str | None, page: int) -> Listing:
        key = (table.spec.path, table.id, table.version, kind, page)
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
                return self._pages[key]
        listing = list_rows(table, PAGE_ROWS, kind, page * PAGE_ROWS)
        with self._lock:
            self._pages[key] = listing
            while len(self._pages) > LISTINGS_MAX:
                self._pages.popitem(last=False)
        return listing


LISTINGS = Listings()


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the records of one kind of error, or of all."""

    listing: Listing = field(default_factory=Listing)
    records: tuple[ShownRecord, ...] = ()
    matching: int = 0
    """How many records there are of that kind."""


def page_of(job: JobSpec, kind: str | None, page: int, *, with_bytes: bool) -> Page:
    table = table_of(job)
    if table is None:
        return Page()
    listing = LISTINGS.of(table, kind, page)
    matching = listing.rows if kind is None else listing.kinds.get(kind, 0)
    return Page(listing, tuple(shown_records(table, listing, with_bytes=with_bytes)), matching)


def records_at(job: JobSpec, topic: str, partition: int, offset: int) -> list[ShownRecord]:
    """The records at a place with their values, up to a bound."""
    table = table_of(job)
    rows = [] if table is None else find_rows(table, topic, partition, offset)
    return [shown_record(_entry(row), row, RECORD_BYTES_MAX) for row in rows]


def discard_all(job: JobSpec) -> int:
    """Discard the records of the quarantine; returns how many."""
    environment = Environment()
    return discard(job, kind_of(job).listings(job, environment), environment).rows


def table_of(job: JobSpec) -> DeltaLog | None:
    """The quarantine table of the job's present table; None before the first bad record."""
    listings = kind_of(job).listings(job, Environment())
    return None if listings is None else open_quarantine(job, listings.url)


def shown_records(table: DeltaLog, listing: Listing, *, with_bytes: bool) -> list[ShownRecord]:
    if not with_bytes:
        kinds = error_kinds(pa.array([entry.error for entry in listing.newest], pa.string())).to_pylist()
        return [ShownRecord(entry, kind) for entry, kind in zip(listing.newest, kinds, strict=True)]
    rows = read_records(table, listing.newest, LIST_BYTES_MAX)
    return [shown_record(_entry(row), row, LIST_BYTES_MAX) for row in rows]


def shown_record(entry: QuarantineEntry, row: dict[str, Any], bytes_max: int) -> ShownRecord:
    value = row["value"] if row["value"] is None else row["value"][:bytes_max]
    headers = [
        (header["key"], cut_content(header["value"], LIST_BYTES_MAX)) for header in (row["headers"] or ())[:HEADERS_MAX]
    ]
    content = content_of(value, entry.error, entry.size_bytes)
    return ShownRecord(entry, entry.error, content, cut_content(row["key"], LIST_BYTES_MAX), tuple(headers))


def previewed(job: JobSpec, contains: str) -> Preview | None:
    """None if no record matches."""
    table = table_of(job)
    options = ReplayOptions(contains, run_rows_max=PREVIEW_ROWS, run_bytes_max=PREVIEW_BYTES)
    chunks = iter(()) if table is None else chunks_of(table, options)
    chunk = next(chunks, None)
    if chunk is None:
        return None
    more = next(chunks, None) is not None
    return Preview(dry_replay(job, chunk), chunk.rows.num_rows, more, job.sql is not None)


def literal_part(kind: str) -> str:
    """The longest text that every error of this kind has, to select them by it."""
    parts = re.split(r'"…"|…|(?<=[\s\[:=])N\b', kind)
    return max(parts, key=len).strip()


def _entry(row: dict[str, Any]) -> QuarantineEntry:
    size_bytes = row.get("size_bytes", None if row["value"] is None else len(row["value"]))
    names = ("topic", "topic_id", "partition", "offset", "quarantined_at", "error")
    return QuarantineEntry(**{name: row[name] for name in names}, size_bytes=size_bytes)
