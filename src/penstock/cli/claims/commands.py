"""`penstock claims`: who holds which partition, how ownership changed, and an administrator's commands."""

from __future__ import annotations

import json as json_text
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.claims.admin import commands as admin
from penstock.claims.admin.log_reader import CoordinatedGroup
from penstock.claims.member.topics import DEFAULT_TOPIC
from penstock.cli.claims.text import (
    claim_json,
    holder_text,
    instant,
    listing_json,
    print_history,
    print_listing,
    record_json,
)
from penstock.cli.tables import parsed
from penstock.errors import TransientError, UserError
from penstock.job.spec import ClaimsSpec, KafkaLogSpec, kafka_of
from penstock.job.values import parse_duration
from penstock.tables.registry import load_job

app = typer.Typer(
    help="Show who holds which partition and how ownership changed; pause a group, release a claim.",
    no_args_is_help=True,
    add_completion=False,
)

JobOption = Annotated[
    Path | None, typer.Option("--job", help="A job file, for its cluster, group and coordination topic.")
]
JobArgument = Annotated[Path | None, typer.Argument(metavar="[JOB]", help="The same as --job.", show_default=False)]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap", help="HOST:PORT of a cluster; needs --group.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="The group; default: the job's.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help=f"The coordination topic; default: {DEFAULT_TOPIC}.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PartitionArgument = Annotated[
    str, typer.Argument(metavar="TOPIC/N", help="A partition, as `list` shows it.", show_default=False)
]

WAIT = "60s"


@app.command("list")
def list_(
    job_file: JobArgument = None,
    job: JobOption = None,
    bootstrap: Bootstrap = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    json: Json = False,
) -> None:
    """List members and claims with their freshness by the broker's clock, and whether the group is paused."""
    listing = admin.list_claims(_group(job_file or job, bootstrap, group, topic))
    if json:
        typer.echo(json_text.dumps(listing_json(listing)))
    else:
        print_listing(listing, Console(highlight=False))


@app.command()
def history(
    job_file: JobArgument = None,
    job: JobOption = None,
    bootstrap: Bootstrap = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many records to show, the latest ones.")
    ] = admin.HISTORY_LINES,
    json: Json = False,
) -> None:
    """Show the records of a group, each applied or refused and why."""
    of = _group(job_file or job, bootstrap, group, topic)
    result = admin.history(of, limit)
    if json:
        head = {"group": of.group, "topic": of.topic, "start": result.start, "read": result.count}
        typer.echo(json_text.dumps({**head, "records": [record_json(record) for record in result.records]}))
    else:
        print_history(result, of.topic, Console(highlight=False))


@app.command()
def pause(
    job_file: JobArgument = None,
    job: JobOption = None,
    bootstrap: Bootstrap = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    duration: Annotated[
        str | None, typer.Option("--for", help="Resume automatically after this time, such as 30m.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Shown by `list` and `history`.")] = "",
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for the last claim to be released.")] = WAIT,
    json: Json = False,
) -> None:
    """Pause a group: its members finish their current work, release every claim and take none until resumed.

    Exit code 75: a claim was still held when the wait ended; the group is paused nevertheless.
    """
    of = _group(job_file or job, bootstrap, group, topic)
    for_seconds = None if duration is None else parsed("--for", duration, parse_duration)
    report = admin.pause(of, for_seconds, reason, parsed("--wait", wait, parse_duration))
    if json:
        holders = [claim_json(holder) for holder in report.holders]
        body = {"group": of.group, "topic": of.topic, "pause_id": report.pause_id}
        typer.echo(json_text.dumps({**body, "until_at": instant(report.until_at), "holders": holders}))
    else:
        until = "" if report.until_at is None else f" until {instant(report.until_at)}"
        typer.echo(f"group {of.group} is paused{until}: {report.pause_id}")
        for holder in report.holders:
            typer.echo(f"still held: {holder.partition} by {holder_text(holder)}")
    if report.holders:
        raise typer.Exit(TransientError.exit_code)


@app.command()
def resume(
    pause_id: Annotated[str | None, typer.Argument(help="The pause to end; default: all of them.")] = None,
    job: JobOption = None,
    bootstrap: Bootstrap = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    json: Json = False,
) -> None:
    """End a pause of a group."""
    of = _group(job, bootstrap, group, topic)
    ended = admin.resume(of, pause_id)
    if json:
        typer.echo(json_text.dumps({"group": of.group, "topic": of.topic, "resumed": list(ended)}))
    else:
        typer.echo(f"group {of.group} goes on: {', '.join(ended)}")


@app.command()
def release(
    partition: PartitionArgument,
    job: JobOption = None,
    bootstrap: Bootstrap = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    seek: Annotated[
        int | None,
        typer.Option(
            "--seek", min=0, help="Also set the position, for consumers of the library; tables keep their own."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Release the claim of a process that has ended or hangs: a higher token fences it.

    A live member may claim the partition again; stop it first to prevent that.
    """
    of = _group(job, bootstrap, group, topic)
    report = admin.release(of, partition, seek)
    if json:
        body = {"group": of.group, "topic": of.topic, "released": report.released, "token": report.token}
        typer.echo(json_text.dumps({**body, "position": report.position, "before": claim_json(report.before)}))
    elif not report.released:
        typer.echo(f"{partition} is free already; its last owner was {holder_text(report.before)}")
    else:
        at = "no position" if report.position is None else f"position {report.position}"
        typer.echo(f"{partition} is free at {at}, token {report.token}; it was held by {holder_text(report.before)}")


# options


def _group(job: Path | None, bootstrap: str | None, group: str | None, topic: str | None) -> CoordinatedGroup:
    """The group that the options name: by a job file, or by a cluster and a name."""
    if (job is None) == (bootstrap is None):
        raise UserError("name the cluster with a job file or --bootstrap, not with both")
    if job is not None:
        spec = load_job(job)
        claims = spec.claims or ClaimsSpec()
        chosen = spec.log.group if group is None else group
        of = CoordinatedGroup(kafka_of(spec), chosen, claims.topic)
    elif group is None:
        raise UserError("--bootstrap needs --group", hint="or name a job file with --job")
    else:
        of = CoordinatedGroup(KafkaLogSpec(bootstrap or ""), group)
    return of if topic is None else replace(of, topic=topic)
