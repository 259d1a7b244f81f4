"""`penstock run`: carry the jobs' topics into their tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from penstock.engine.events import Listener
from penstock.engine.process import RunOptions, run_jobs
from penstock.failpoints import ENVIRONMENT_NAME, armed
from penstock.job.several import load_jobs
from penstock.job.spec import JobSpec
from penstock.watch.lines import JsonLines
from penstock.watch.progress import Progress


def run(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Read up to the present end of the log, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON lines instead of live progress.")] = False,
) -> None:
    """Run jobs: every record of their topics once into their tables."""
    specs = load_jobs(jobs)
    options = RunOptions(once=once, failpoint=armed(os.environ.get(ENVIRONMENT_NAME, "")))
    if json or not sys.stdout.isatty():
        run_jobs(specs, lambda job: JsonLines(job.name), options)
        return
    with Progress() as progress:
        listener_for: Callable[[JobSpec], Listener] = lambda job: progress.listener(job.name)  # noqa: E731
        run_jobs(specs, listener_for, options)
