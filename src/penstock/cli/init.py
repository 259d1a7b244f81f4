"""`penstock init`: a job file for a topic."""

from __future__ import annotations

import json as json_text
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.peek import BROKERS_NAME, SAMPLE_RECORDS, Bootstrap, Client, Count, Topic, kafka_spec, sampled
from penstock.cli.tables import Json
from penstock.errors import InvariantError, UserError, did_you_mean
from penstock.peek.draft import job_name, job_text, secret_variables
from penstock.peek.sample import TopicReader
from penstock.tables.registry import DRAFTS, check_jobs

KINDS_TEXT = ", ".join(DRAFTS)


def init(
    topic: Topic,
    kind: Annotated[
        str | None, typer.Option("--as", metavar="KIND", help=f"The kind of table: {KINDS_TEXT} (default: what fits).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The job file (default: TOPIC.yaml).")
    ] = None,
    count: Count = None,
    bootstrap: Bootstrap = "",
    client: Client = None,
    yes: Annotated[bool, typer.Option("--yes", help="Overwrite the file without asking.")] = False,
    json: Json = False,
) -> None:
    """Write a job file for a topic: types, event time, partition column and keys, with the doubts as comments.

    It is drafted from a sample, as `penstock peek` shows it, and accepted by `penstock check`. Nothing else is written.
    """
    if kind is not None and kind not in DRAFTS:
        raise UserError(f"--as: there is no kind of table {kind}", hint=did_you_mean(kind, DRAFTS) or KINDS_TEXT)
    path = output or Path(f"{job_name(topic)}.yaml")
    _ask(path, yes)
    spec = kafka_spec(topic, bootstrap, client)
    with TopicReader(spec) as reader:
        profile = sampled(reader, None, count or SAMPLE_RECORDS)
    chosen = kind or next(name for name, draft in DRAFTS.items() if draft.suits(profile))
    is_reference = bootstrap == os.environ.get(BROKERS_NAME)
    written = f"${{env:{BROKERS_NAME}}}" if is_reference else bootstrap
    text = job_text(profile, spec, written, DRAFTS[chosen].draft(profile))
    variables = secret_variables(spec)
    _check(text, {**os.environ, **{variable: spec.client_settings[name] for name, variable in variables.items()}})
    path.write_text(text, encoding="utf-8")
    doubts = [line.strip() for line in text.splitlines() if "# ?" in line]
    if json:
        typer.echo(json_text.dumps({"file": str(path), "kind": chosen, "doubts": doubts}))
        return
    typer.echo(f"{path}: a job of kind {chosen}, from {profile.count:,} records; doubts: {len(doubts)}")
    for name, variable in variables.items():
        typer.echo(f"set {variable}: the job file refers to it for {name}")
    typer.echo(f"next: read it, then penstock run {path} --once")


def _ask(path: Path, yes: bool) -> None:
    """Ask before a file is overwritten; where nobody can answer, refuse."""
    if yes or not path.exists():
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{path} exists, nothing was written", hint="add --yes to overwrite it, or name another with -o"
        )
    typer.confirm(f"overwrite {path}?", abort=True, err=True)


def _check(text: str, env: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        [result] = check_jobs([path], env)
    if result.faults:
        faults = "\n".join(f"{fault.line}: {fault.key}: {fault.message}" for fault in result.faults)
        raise InvariantError("the drafted job file has faults", detail=f"{faults}\n{text}")
