"""`penstock quarantine`: list, show, replay or discard the records that could not be written."""

from __future__ import annotations

import json as json_text
import re
import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from penstock.cli.maintenance import Job, environment
from penstock.cli.tables import Json, as_json, instant_text
from penstock.engine.replay import ReplayReport, replay
from penstock.errors import UserError
from penstock.job.kafka_types import utf8
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import DeltaLog
from penstock.quarantine.replay import ReplayOptions
from penstock.quarantine.rows import Listing, find_rows, list_rows
from penstock.quarantine.table import DiscardReport, open_quarantine
from penstock.quarantine.table import discard as discard_records
from penstock.tables.registry import kind_of, load_job
from penstock.watch.listeners import LogLines

app = typer.Typer(
    help="Records that could not be written: list, show, replay or discard them.",
    no_args_is_help=True,
    add_completion=False,
)

LIMIT = 20
_PLACE = re.compile(r"(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>\d+)")
_ERROR_CHARACTERS_MAX = 100


@app.command("list")
def list_(
    job: Job,
    limit: Annotated[int, typer.Option(min=0, help="How many records, newest first.")] = LIMIT,
    json: Json = False,
) -> None:
    """List the newest quarantined records, and how many there are of each kind of error."""
    spec = load_job(job)
    table = _table_of(spec)
    listing = Listing() if table is None else list_rows(table, limit)
    if json:
        typer.echo(json_text.dumps({"job": spec.name, **asdict(listing)}, default=as_json))
    elif not listing.rows:
        typer.echo(_nothing(spec))
    else:
        _print_listing(listing)


@app.command()
def show(
    job: Job,
    place: Annotated[str, typer.Argument(help="TOPIC/PARTITION/OFFSET, as `list` shows it.")],
    json: Json = False,
) -> None:
    """Show one quarantined record in full."""
    spec = load_job(job)
    match = _PLACE.fullmatch(place)
    if match is None:
        raise UserError(f"invalid record {place}", hint="write TOPIC/PARTITION/OFFSET, such as orders/0/1234")
    table = _table_of(spec)
    if table is None:
        typer.echo(_nothing(spec), err=json)
        return
    rows = find_rows(table, match["topic"], int(match["partition"]), int(match["offset"]))
    if not rows:
        raise UserError(f"{place} is not in quarantine", hint="`penstock quarantine list` shows what is")
    if json:
        typer.echo(json_text.dumps(rows, default=as_json))
    else:
        typer.echo("\n\n".join("\n".join(f"{name}: {_shown(row[name])}" for name in row) for row in rows))


@app.command("replay")
def replay_(
    job: Job,
    where_error: Annotated[str, typer.Option(help="Only records whose error contains this text.")] = "",
    json: Json = False,
) -> None:
    """Decode quarantined records with the current job file: those that fit are written once, the others stay."""
    spec = load_job(job)
    if _table_of(spec) is None:
        report = ReplayReport()
    else:
        report = replay(spec, LogLines(spec.name, sys.stderr), ReplayOptions(where_error), environment=environment())
    if json:
        typer.echo(json_text.dumps({"job": spec.name, **asdict(report)}))
    else:
        typer.echo(_summary(spec, report))


@app.command("discard")
def discard_(
    job: Job,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Remove the job's records from its quarantine permanently; the table is not changed.

    Use it for records that are no longer needed, and to accept the loss of records with a deleted quarantine.
    """
    spec = load_job(job)
    listings = kind_of(spec).listings(spec, environment())
    preview = discard_records(spec, listings, environment(), dry_run=True)
    if not yes and (preview.rows or preview.unappended):
        _ask(spec, preview)
    report = discard_records(spec, listings, environment())
    if json:
        url = None if listings is None else listings.url
        typer.echo(json_text.dumps({"job": spec.name, "quarantine": url, **asdict(report)}))
    else:
        typer.echo(f"discarded: {_discardable(spec, report)}")


def _table_of(job: JobSpec) -> DeltaLog | None:
    """The quarantine table of the job's present table, or None while there is none."""
    listings = kind_of(job).listings(job, environment())
    return None if listings is None else open_quarantine(job, listings.url)


def _ask(job: JobSpec, report: DiscardReport) -> None:
    if not sys.stdin.isatty():
        raise UserError(
            f"not confirmed, nothing was discarded: {_discardable(job, report)}", hint="add --yes to discard them"
        )
    typer.confirm(f"discard {_discardable(job, report)}?", abort=True, err=True)


def _discardable(job: JobSpec, report: DiscardReport) -> str:
    missing = ", and records that are listed but missing in quarantine" if report.unappended else ""
    return f"{report.rows} quarantined records of {job.name}{missing} ({job.table.path})"


def _nothing(job: JobSpec) -> str:
    return f"the quarantine of {job.name} is empty ({job.table.path})"


def _print_listing(listing: Listing) -> None:
    for entry in listing.newest:
        size = "null" if entry.size_bytes is None else f"{entry.size_bytes} B"
        place = f"{entry.topic}/{entry.partition}/{entry.offset}"
        cut = f"{entry.error[:_ERROR_CHARACTERS_MAX]}..."
        error = entry.error if len(entry.error) <= _ERROR_CHARACTERS_MAX else cut
        typer.echo(f"{place}  {instant_text(entry.quarantined_at)}  {size}  {error}")
    typer.echo(f"\n{listing.rows} in quarantine, {len(listing.newest)} shown. By kind of error:")
    for kind, count in listing.kinds.items():
        typer.echo(f"{count:>8}  {kind}")


def _summary(job: JobSpec, report: ReplayReport) -> str:
    others = (
        (report.finished, "of an interrupted replay were taken out of quarantine"),
        (report.still_bad, "still do not fit"),
        (report.filtered, "fit, but the job's filter drops them: they stay in quarantine"),
        (report.left_to_log, "are of types that still read them from the log: they stay in quarantine"),
    )
    first = f"{report.replayed} replayed, {report.remaining} remain in quarantine ({job.name})"
    return "\n".join([first, *(f"{count} {what}" for count, what in others if count)])


def _shown(content: object) -> str:
    match content:
        case None:
            return "null"
        case bytes():
            text = utf8(content)
            return f"({len(content)} B, hex) {content.hex()}" if text is None else f"({len(content)} B) {text}"
        case datetime():
            return instant_text(content)
        case list():
            return ", ".join(f"{header['key']} = {_shown(header['value'])}" for header in content) or "none"
        case _:
            return str(content)
