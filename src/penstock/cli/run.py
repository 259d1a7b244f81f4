"""`penstock run`: write the records of topics into tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import UserError
from penstock.events import Listener
from penstock.job.spec import JobSpec
from penstock.serving import PORT_MAX, host_and_port
from penstock.tables.registry import failpoint, kind_of, load_jobs
from penstock.watch.endpoint import LOOPBACK, Readiness, served
from penstock.watch.judging import Judging
from penstock.watch.lineage import Lineage
from penstock.watch.listeners import AlertChanges, Listeners, LogLines
from penstock.watch.live import LiveDisplay
from penstock.watch.metrics import Metrics

DRY_RECORDS = 1_000
DRY_RECORDS_MAX = 100_000
"""They are held in memory."""


def run(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    once: Annotated[bool, typer.Option("--once", help="Read up to the current end of the log, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print events, or the dry run, as JSON.")] = False,
    metrics: Annotated[
        str,
        typer.Option(metavar="[HOST:]PORT", help="Serve /metrics, /healthz and /readyz; without HOST on 127.0.0.1."),
    ] = "",
    console: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=PORT_MAX, help="Serve the console on 127.0.0.1:PORT; 0: any free one."),
    ] = None,
    lineage: Annotated[bool, typer.Option("--lineage", help="Send an OpenLineage event per commit.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show what the next batch would write; no Spark.")] = False,
    records: Annotated[
        int | None,
        typer.Option("-n", min=1, max=DRY_RECORDS_MAX, help=f"With --dry-run: read so many records, {DRY_RECORDS}."),
    ] = None,
) -> None:
    """Run jobs: write every record of their topics to their tables once.

    With --dry-run nothing is written or created, and the exit code is 2 if a run would stop at these records.
    """
    specs = load_jobs(jobs)
    if dry:
        if once or metrics or lineage or console is not None:
            hint = "leave out --once, --metrics, --lineage and --console"
            raise UserError("--dry-run reads one batch and ends", hint=hint)
        from penstock.cli.dry_run import show_dry_runs  # noqa: PLC0415 - the run itself needs Spark

        show_dry_runs(specs, records or DRY_RECORDS, json)
        return
    if records is not None:
        raise UserError("-n needs --dry-run", hint="add --dry-run")

    from penstock.engine.process import RunOptions, run_jobs  # noqa: PLC0415 - imports pyspark

    options = RunOptions(once=once, failpoint=failpoint(), watched=bool(metrics))
    as_text = sys.stdout.isatty() and not json
    with ExitStack() as stack:
        gauges = Metrics() if metrics else None
        ready = [Readiness(job) for job in specs]
        if gauges is not None:
            stack.enter_context(served(*host_and_port("--metrics", metrics, LOOPBACK), gauges.registry, ready))
        sender = stack.enter_context(Lineage()) if lineage else None
        display = stack.enter_context(LiveDisplay()) if as_text else None
        steps = stack.enter_context(console_of_run(specs, console)) if console is not None else {}

        def listener_for(job: JobSpec) -> Listener:
            listeners: list[Listener] = []
            if gauges is not None:
                # First the counters: a batch is counted before it is reported.
                listeners += [gauges.listener(job.name, kind_of(job)), ready[specs.index(job)]]
            listeners += [steps[job.name]] if steps else []
            if sender is not None:
                listeners.append(sender.listener(job))
            listeners.append(AlertChanges(LogLines(job.name) if display is None else display.listener(job.name)))
            return Judging(job, Listeners(*listeners))

        run_jobs(specs, listener_for, options)


@contextmanager
def console_of_run(specs: Sequence[JobSpec], port: int) -> Iterator[Mapping[str, Listener]]:
    """The console in a thread of this process; gives listeners that show it how long steps take."""
    from penstock.console.access import Access  # noqa: PLC0415 - needs packages of the extra `console`
    from penstock.console.server import served as console_served  # noqa: PLC0415
    from penstock.console.state import RunListener, watched_jobs  # noqa: PLC0415

    with console_served(watched_jobs(specs), Access(port=port)) as console:
        print(f"console at {console.url}", file=sys.stderr, flush=True)
        yield {name: RunListener(job) for name, job in console.state.jobs.items()}
