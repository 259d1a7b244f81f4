"""The page of a quarantine: kinds of errors, records with the error marked, replay with a preview, discard."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console.access import form_of, operating, reading
from penstock.console.commands import cancel, file_of, number_of, operates, refuse_readers, spec_of, start
from penstock.console.records import LIST_BYTES_MAX, RECORD_BYTES_MAX, Content, content_of, cut_content
from penstock.console.rendering import Link, job_of, render, state_of
from penstock.engine.dry_run import DryRun, dry_replay
from penstock.environment import Environment
from penstock.errors import PenstockError, UserError
from penstock.flow.write.quarantine import error_kinds
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import DeltaLog
from penstock.quarantine.replay import ReplayOptions, chunks_of
from penstock.quarantine.rows import Listing, QuarantineEntry, find_rows, list_rows, read_records
from penstock.quarantine.table import discard, open_quarantine
from penstock.tables.registry import kind_of

link = Link("Quarantine", "quarantine", of_job=True)

PAGE_ROWS = 20
PAGES_MAX = 200
HEADERS_MAX = 50
PREVIEW_ROWS = 1_000
PREVIEW_BYTES = 8 * 1024 * 1024
LISTINGS_MAX = 100
CONTAINS_CHARACTERS_MAX = 300
COMMAND = "replay"
"""The name of the process, and of its results in the history."""


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


@reading
def quarantine(request: Request) -> Response:
    kind = request.query_params.get("kind") or None
    page = number_of(request.query_params.get("page"), PAGES_MAX)
    listing, records, fault = Listing(), list[ShownRecord](), None
    try:
        table = table_of(spec_of(request))
        if table is not None:
            listing = LISTINGS.of(table, kind, page)
            records = shown_records(table, listing, with_bytes=operates(request))
    except PenstockError as error:
        fault = error
    matching = listing.rows if kind is None else listing.kinds.get(kind, 0)
    return render(
        request, "quarantine.html", job=job_of(request), listing=listing, records=records, fault=fault, kind=kind,
        page=page, pages=min(PAGES_MAX + 1, -(-matching // PAGE_ROWS)), matching=matching, text_of=literal_part,
        child=state_of(request).children.of(COMMAND, job_of(request).name),
        past=state_of(request).history.notes(COMMAND, job_of(request).name, 5),
    )  # fmt: skip


@reading
def record(request: Request) -> Response:
    """One record in full, up to a bound; several if a recreated topic has its place twice."""
    refuse_readers(request)
    params, table = request.path_params, table_of(spec_of(request))
    rows = [] if table is None else find_rows(table, params["topic"], params["partition"], params["offset"])
    if not rows:
        raise HTTPException(404, "the record is not in quarantine: it was replayed or discarded")
    records = [shown_record(_entry(row), row, RECORD_BYTES_MAX) for row in rows]
    return render(request, "quarantine_record.html", job=job_of(request), records=records)


@reading
def preview(request: Request) -> Response:
    """What a replay of the oldest matching records would do now."""
    refuse_readers(request)
    contains = request.query_params.get("contains", "")[:CONTAINS_CHARACTERS_MAX]
    result, fault = None, None
    try:
        result = previewed(spec_of(request), contains)
    except PenstockError as error:
        fault = error
    return render(
        request, "quarantine_preview.html", job=job_of(request), preview=result, contains=contains, fault=fault
    )


@operating("replay the quarantine")
def replay(request: Request) -> Response:
    arguments = ["quarantine", "replay", str(file_of(request)), "--json"]
    contains = form_of(request).get("contains", "")[:CONTAINS_CHARACTERS_MAX]
    start(request, COMMAND, [*arguments, f"--where-error={contains}"] if contains else arguments)
    return _back(request)


@operating("cancel the replay")
def cancel_replay(request: Request) -> Response:
    cancel(request, COMMAND)
    return _back(request)


@operating("discard the quarantine")
def discard_all(request: Request) -> Response:
    spec = spec_of(request)
    if form_of(request).get("typed", "").strip() != spec.name:
        raise UserError("nothing was discarded: the name of the job was not typed", hint=f"type {spec.name}")
    environment = Environment()
    report = discard(spec, kind_of(spec).listings(spec, environment), environment)
    state = state_of(request)
    state.history.note("discard", spec.name, f"{report.rows} records were discarded")
    state.read_soon(spec.name)
    return _back(request)


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


def _back(request: Request) -> Response:
    return RedirectResponse(request.url_for("quarantine", job=job_of(request).name).path, 303)


routes = [
    Route("/jobs/{job}/quarantine", quarantine, name="quarantine"),
    Route("/jobs/{job}/quarantine/preview", preview, name="replay_preview"),
    Route("/jobs/{job}/quarantine/replay", replay, methods=["POST"], name="replay"),
    Route("/jobs/{job}/quarantine/replay/cancel", cancel_replay, methods=["POST"], name="cancel_replay"),
    Route("/jobs/{job}/quarantine/discard", discard_all, methods=["POST"], name="discard"),
    Route("/jobs/{job}/quarantine/{topic}/{partition:int}/{offset:int}", record, name="quarantined_record"),
]
