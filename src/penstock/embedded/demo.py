"""The demo: a real broker, bad records among good ones, a process killed in mid-batch, a restart, and the proof.

The second start runs two jobs in one process: the killed one, and a rollup.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from penstock.embedded.broker import Cluster
from penstock.embedded.sample import (
    WINDOWS,
    MetricSample,
    SampleSize,
    create_topic,
    end_markers,
    job_file,
    metric_records,
    produce_keyed,
    produce_values,
    rollup_job,
    web_requests,
)
from penstock.errors import TransientError
from penstock.lake.delta.opening import open_table
from penstock.spark.delta_spark import open_delta_spark
from penstock.tables.registry import load_job
from penstock.watch.verify import Sample, VerifyReport, verify

TOPIC = "web_requests"
PARTITIONS = 4
SAMPLE = SampleSize(records=200_000, days=3, bad_every=1000)
SMALL_BATCHES = "min_bytes_per_file: 2MiB, max_bytes_per_batch: 5MiB"
"""Several batches out of a small topic, so that the job can be killed between them."""
METRICS_TOPIC = "telegraf"
METRICS_PARTITIONS = 2
METRICS = MetricSample(records=20_000, hosts=100)
_RUN_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.02
Show = Callable[[str], None]
Finish = Callable[["DemoReport", str], None]
"""Called with the report and the address of the console, which is empty without one."""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo measured, for people and for `--json`."""

    produced: int
    bad: int
    killed_with_staged_files: int
    rows_before_kill: int
    rows_polars: int
    rows_spark: int
    rows_by_day: dict[str, int]
    quarantined: int
    points: int
    """Values in the topic of metrics, without those that only advance event time."""
    windows: dict[str, int]
    """Closed windows by interval, each of one series."""
    points_in_windows: dict[str, int]
    """By interval: each point is in one window of each."""
    example: str
    """A closed window, as text."""
    verified: tuple[VerifyReport, ...]
    """Of the web requests, and of the metrics."""
    seconds: float

    @property
    def ok(self) -> bool:
        good = self.produced - self.bad
        read_back = self.rows_polars == self.rows_spark == good and self.quarantined == self.bad
        all_counted = set(self.points_in_windows.values()) == {self.points}
        return read_back and all_counted and all(report.ok for report in self.verified)

    def as_json(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "verified"}
        return {"ok": self.ok, **values, "verify": [report.as_json() for report in self.verified]}


def run_demo(folder: Path, show: Show, finish: Finish, console: bool = False) -> None:
    """Everything on one machine, in `folder`; tables and job files stay.

    Broker and console, if there is one, are stopped once `finish` has shown the report.
    """
    began = time.monotonic()
    table, windows_table = folder / "lake" / "web_requests", folder / "lake" / "rollups"
    job_path, rollup_path = folder / "web.yaml", folder / "rollups.yaml"
    show("starting a Kafka broker")
    with Cluster.start(folder / "kafka") as cluster, ExitStack() as stack:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        job_path.write_text(job_file(cluster.bootstrap, TOPIC, str(table), SMALL_BATCHES))
        # The grace is longer than event time advances, so that every closed window can be computed again.
        rollup_path.write_text(
            rollup_job(cluster.bootstrap, METRICS_TOPIC, str(windows_table), update_grace="30d"), encoding="utf-8"
        )
        url = stack.enter_context(_console(folder, job_path, rollup_path)) if console else ""
        if console:
            show(f"watch it at {url}")
        show(f"producing {SAMPLE.records:,} web requests over {SAMPLE.days} days, {SAMPLE.bad_records} of them bad")
        produce_values(cluster.bootstrap, TOPIC, web_requests(SAMPLE), PARTITIONS)
        show(f"penstock run {job_path.name}, and kill -9 in the middle of its second batch")
        staged = _run_and_kill(job_path, table)
        before = _rows(table)
        show(f"killed: {before:,} rows committed, {staged} files staged and invisible")
        show(f"producing {METRICS.records:,} metrics of {METRICS.series} series as Telegraf writes them")
        _produce_metrics(cluster.bootstrap)
        show(f"penstock run {job_path.name} {rollup_path.name}: the killed job continues, a rollup closes windows")
        _run_to_end(job_path, rollup_path)
        show("penstock verify, for both")
        job = load_job(job_path)
        verified = (verify(job), verify(load_job(rollup_path), values=Sample(None)))
        show("reading the tables back with Polars and with Spark")
        windows = pl.read_delta(str(windows_table)).with_columns(pl.col("interval").cast(pl.Enum(WINDOWS)))
        by_interval = windows.group_by("interval").agg(pl.len(), pl.col("count").sum()).sort("interval")
        report = DemoReport(
            produced=SAMPLE.records,
            bad=SAMPLE.bad_records,
            killed_with_staged_files=staged,
            rows_before_kill=before,
            rows_polars=_rows(table),
            rows_spark=_rows_by_spark(table),
            rows_by_day=_rows_by_day(table),
            quarantined=_rows(Path(open_table(job.table, job.name).quarantine_url)),
            points=METRICS.points,
            windows=dict(by_interval.select("interval", "len").iter_rows()),
            points_in_windows=dict(by_interval.select("interval", "count").iter_rows()),
            example=_described(windows.sort("series", "interval", "window_start").row(0, named=True)),
            verified=verified,
            seconds=round(time.monotonic() - began, 1),
        )
        finish(report, url)


@contextmanager
def _console(folder: Path, *job_paths: Path) -> Iterator[str]:
    """A console of these jobs, on a free port; gives its address."""
    from penstock.console.access import Access  # noqa: PLC0415 - needs packages of the extra `console`
    from penstock.console.server import served  # noqa: PLC0415
    from penstock.console.state import watched_files  # noqa: PLC0415

    access = Access(operate_locally=True)
    with served(watched_files(job_paths), access, history=folder / "console.sqlite") as console:
        yield console.url


def _produce_metrics(bootstrap: str) -> None:
    """Send the metrics, and then records that advance event time past their last window."""
    create_topic(bootstrap, METRICS_TOPIC, METRICS_PARTITIONS)
    produce_keyed(bootstrap, METRICS_TOPIC, metric_records(METRICS))
    produce_values(bootstrap, METRICS_TOPIC, end_markers(METRICS, METRICS_PARTITIONS), METRICS_PARTITIONS)


def _described(row: dict[str, object]) -> str:
    at = f"{row['window_start']:%Y-%m-%d %H:%M}"
    return f"{row['series']}, {row['interval']} from {at}: count {row['count']}, min {row['min']}, max {row['max']}"


def _run_and_kill(job_path: Path, table: Path) -> int:
    """Kill the process once its second batch has staged a file; return how many files no commit names."""
    with _penstock_run(job_path) as process:
        _wait_for_event(process, "batch committed")
        _wait_for_event(process, "batch planned")
        before = _staged_files(table)
        deadline = time.monotonic() + _RUN_SECONDS_MAX
        while _staged_files(table) <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    named = {Path(path).name for path in DeltaTable(str(table)).file_uris()}
    return len({path.name for path in _staged_files(table)} - named)


def _run_to_end(*job_paths: Path) -> None:
    with _penstock_run(*job_paths, "--once") as process:
        try:
            out, _ = process.communicate(timeout=_RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise TransientError(f"penstock run did not end within {_RUN_SECONDS_MAX:g} s") from None
        if process.returncode:
            raise TransientError("penstock run failed", detail=(out or "")[-1500:])


@contextmanager
def _penstock_run(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A running `penstock run`; killed with `kill -9` at the end if it still runs."""
    command = [sys.executable, "-m", "penstock.cli", "run", "--json", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for_event(process: subprocess.Popen[str], name: str) -> None:
    """Read the process's events up to one of that name; TransientError if it ends before."""
    for line in process.stdout or ():
        if line.startswith("{") and json.loads(line).get("event") == name:
            return
    raise TransientError(f"penstock run ended before '{name}'")


def _staged_files(table: Path) -> set[Path]:
    return set(table.glob("*/*.pq"))


def _rows(table: Path) -> int:
    return int(pl.scan_delta(str(table)).select(pl.len()).collect().item())


def _rows_by_day(table: Path) -> dict[str, int]:
    days = pl.scan_delta(str(table)).group_by("date").len().sort("date").collect()
    return {str(day): count for day, count in days.iter_rows()}


def _rows_by_spark(table: Path) -> int:
    spark = open_delta_spark("penstock demo")
    try:
        return spark.read.format("delta").load(str(table)).count()
    finally:
        spark.stop()
