"""`penstock run`: write the records of topics into tables."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.engine.process import RunOptions, run_jobs
from penstock.events import Listener
from penstock.job.spec import JobSpec
from penstock.tables.registry import failpoint, kind_of, load_jobs
from penstock.watch.listeners import AlertChanges, Listeners, LogLines
from penstock.watch.live import LiveDisplay
from penstock.watch.metrics import Metrics

PORT_MAX = 65_535


def run(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    once: Annotated[bool, typer.Option("--once", help="Read up to the current end of the log, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON also on a terminal.")] = False,
    metrics: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=PORT_MAX, help="Serve Prometheus metrics on 127.0.0.1:PORT; 0: off."),
    ] = 0,
) -> None:
    """Run jobs: write every record of their topics to their tables once."""
    specs = load_jobs(jobs)
    options = RunOptions(once=once, failpoint=failpoint())
    as_text = sys.stdout.isatty() and not json
    with ExitStack() as stack:
        gauges = Metrics() if metrics else None
        if gauges is not None:
            stack.enter_context(gauges.served(metrics))

        display = stack.enter_context(LiveDisplay()) if as_text else None

        def listener_for(job: JobSpec) -> Listener:
            lines = AlertChanges(LogLines(job.name) if display is None else display.listener(job.name))
            # First the counters: a batch is counted before it is reported.
            return lines if gauges is None else Listeners(gauges.listener(job.name, kind_of(job)), lines)

        run_jobs(specs, listener_for, options)
