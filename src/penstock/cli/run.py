"""`penstock run`: carry the jobs' topics into their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.engine.process import RunOptions, run_jobs
from penstock.events import Listener
from penstock.job.spec import JobSpec
from penstock.tables.registry import failpoint, kind_of, load_jobs
from penstock.watch.listeners import AlertChanges, JsonLines, Listeners
from penstock.watch.metrics import Metrics
from penstock.watch.progress import Progress

PORT_MAX = 65_535


def run(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    once: Annotated[bool, typer.Option("--once", help="Read up to the current end of the log, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of live progress.")] = False,
    metrics: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=PORT_MAX, help="Serve Prometheus metrics on 127.0.0.1:PORT; 0: off."),
    ] = 0,
) -> None:
    """Run jobs: write every record of their topics to their tables once."""
    specs = load_jobs(jobs)
    options = RunOptions(once=once, failpoint=failpoint())
    with ExitStack() as stack:
        gauges = Metrics() if metrics else None
        if gauges is not None:
            stack.enter_context(gauges.served(metrics))
        listener_of = _listeners(json or not sys.stdout.isatty(), stack)

        def listener_for(job: JobSpec) -> Listener:
            listener = AlertChanges(listener_of(job))
            if gauges is None:
                return listener
            # First the counters: a batch is counted before it is reported.
            return Listeners(gauges.listener(job.name, kind_of(job)), listener)

        run_jobs(specs, listener_for, options)


def _listeners(lines: bool, stack: ExitStack) -> Callable[[JobSpec], Listener]:
    """What people read: JSON lines, or live progress on a terminal."""
    if lines:
        return lambda job: JsonLines(job.name)
    progress = stack.enter_context(Progress())
    return lambda job: progress.listener(job.name)
