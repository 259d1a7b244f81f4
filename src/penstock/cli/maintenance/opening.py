"""What the commands of maintenance share."""

from __future__ import annotations

import json as json_text

import typer

from penstock.environment import Environment
from penstock.lake.maintenance.reports import Report
from penstock.tables.registry import failpoint


def environment() -> Environment:
    """Of a process that a fault test may have armed."""
    armed = failpoint()
    return Environment() if armed is None else Environment(reach=armed.reach)


def tell(job: str, report: Report, json: bool) -> None:
    """Print what a command did."""
    for line in [json_text.dumps({"job": job, **report.as_json()})] if json else report.lines():
        typer.echo(line)
