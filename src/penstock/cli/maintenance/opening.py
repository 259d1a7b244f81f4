"""What the commands of maintenance share."""

from __future__ import annotations

import json as json_text
import os

import typer

from penstock.environment import Environment
from penstock.failpoints import ENVIRONMENT_NAME, armed
from penstock.lake.maintenance.reports import Report


def environment() -> Environment:
    """Of a process that a fault test may have armed."""
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""))
    return Environment() if failpoint is None else Environment(reach=failpoint.reach)


def tell(job: str, report: Report, json: bool) -> None:
    """Print what a command did."""
    for line in [json_text.dumps({"job": job, **report.as_json()})] if json else report.lines():
        typer.echo(line)
