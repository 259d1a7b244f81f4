"""Whole pipelines inside the test's own process: a job file, its runs on the shared Spark, and what its tables hold."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.claims import StaticClaims
from penstock.claims.group import open_group
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import Rounds, open_rounds
from penstock.environment import Environment
from penstock.events import Event
from penstock.failpoints import AtStep
from penstock.job.spec import JobSpec, kafka_of
from penstock.lake.state import Totals
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.tables.registry import load_job
from penstock.watch.status import JobStatus, status
from penstock.watch.verify import verify
from tests.support.quarantine_url import quarantine_of

JOB = """\
job: pipe
log:
  kafka: {{bootstrap: "{bootstrap}", {topics}{kafka}}}
decode: {decode}
schema: {{{schema}}}
columns: {{partition: kafka.partition, offset: kafka.offset{columns}}}
place: none
{sql}table:
  delta: {{path: "{table}", partition_by: [{partition_by}]}}
flush: {{{flush}}}
on: {{bad_share: 1, {on}}}
"""


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, event: Event) -> None:
        self.events.append((event.name, event.facts()))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]


@dataclass(slots=True)
class Clock:
    """A clock that only a test moves."""

    seconds: float = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Pipe:
    """One job in a folder of its own: its file, its runs, its table and its quarantine."""

    folder: Path
    bootstrap: str
    spark: SparkSession
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def path(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def table(self) -> str:
        return str(self.folder / "table")

    @property
    def quarantine(self) -> str:
        return quarantine_of(self.job)

    @property
    def job(self) -> JobSpec:
        return load_job(self.path)

    def describe(
        self,
        *topics: str,
        pattern: str = "",
        kafka: str = "",
        decode: str = "json",
        schema: str = "id: long",
        columns: str = "",
        sql: str = "",
        partition_by: str = "",
        flush: str = "allowed_latency: 1h",
        on: str = "bad_record: quarantine",
    ) -> None:
        """Write the job file; `kafka`, `columns` and the others are entries of their sections."""
        text = JOB.format(
            bootstrap=self.bootstrap,
            topics=f"topic_pattern: '{pattern}'" if pattern else f"topics: [{', '.join(topics)}]",
            kafka=f", {kafka}" if kafka else "",
            decode=decode,
            schema=schema,
            columns=f", {columns}" if columns else "",
            sql=f"sql: {{{sql}}}\n" if sql else "",
            table=self.table,
            partition_by=partition_by,
            flush=flush,
            on=on,
        )
        self.path.write_text(text)

    @contextmanager
    def opened(self, at_step: AtStep | None = None, clock: Clock | None = None) -> Iterator[Rounds[Any]]:
        """The rounds of the job, which the test turns by hand."""
        pipeline = open_rounds(self.job, self.spark, _environment(at_step, clock, self.recorder))
        try:
            yield pipeline
        finally:
            pipeline.close()

    def run_to_end(
        self,
        at_step: AtStep | None = None,
        retries: int = 0,
        recorder: Recorder | None = None,
        open_log: OpenLog = open_log_of,
    ) -> Recorder:
        """`run --once`: up to the end that the topics have at its start; returns the events of this run."""
        recorder = recorder or Recorder()
        opened: list[Rounds[Any]] = []

        def open_pipeline() -> Rounds[Any]:
            opened.append(open_rounds(self.job, self.spark, _environment(at_step, None, recorder), open_log=open_log))
            return opened[-1]

        try:
            Loop(open_pipeline, True, threading.Event(), Retries(retries, random.Random(7)), recorder).run()
        finally:
            for pipeline in opened:
                pipeline.close()
        return recorder

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """The table's rows as Polars reads them, in the order of topic positions."""
        return pl.read_delta(self.table).sort("partition", "offset").select(columns).rows()

    def column(self, name: str) -> list[Any]:
        return [value for (value,) in self.rows(name)]

    def quarantined(self, *columns: str) -> list[tuple[Any, ...]]:
        frame = pl.read_delta(self.quarantine).sort("topic", "partition", "offset")
        return frame.select(columns or ("partition", "offset")).rows()

    def version(self) -> int:
        return DeltaTable(self.table).version()

    def status(self) -> JobStatus:
        return status(self.job)

    def positions(self) -> list[int | None]:
        return [partition.position for partition in self.status().partitions]

    def totals(self) -> Totals:
        """Of all partitions together."""
        return sum((partition.totals for partition in self.status().partitions), Totals())

    def verified(self) -> bool:
        """Whether `verify` proves the table against the log."""
        report = verify(self.job)
        assert report.ok, [check for check in report.checks if not check.ok]
        return report.ok


def run_in_process(job: Path, spark: SparkSession, at_step: AtStep | None = None) -> Recorder:
    """`run --once` of a job file of any kind, on the shared Spark; what a killed process left, it does not know."""
    spec, recorder = load_job(job), Recorder()
    claims = StaticClaims() if spec.claims is None else open_group(kafka_of(spec), spec.claims, recorder.event)
    retries = Retries(spec.limits.transient_retries_max, random.Random(7))
    try:
        environment = _environment(at_step, None, recorder)
        Loop(lambda: open_rounds(spec, spark, environment, claims), True, threading.Event(), retries, recorder).run()
    finally:
        claims.close()
    return recorder


class CrashError(Exception):
    """The process ends here."""


def crash_at(step: str) -> AtStep:
    def at_step(reached: str) -> None:
        if reached == step:
            raise CrashError(step)

    return at_step


def once_at(step: str, act: Callable[[], object]) -> AtStep:
    """Calls `act` at a step, the first time that it is reached."""
    waiting = [act]

    def at_step(reached: str) -> None:
        if reached == step and waiting:
            waiting.pop()()

    return at_step


def ids(numbers: range) -> list[str]:
    """Records that carry a number."""
    return [f'{{"id": {number}}}' for number in numbers]


def _environment(at_step: AtStep | None, clock: Clock | None, recorder: Recorder) -> Environment:
    environment = Environment(listener=recorder)
    if at_step is not None:
        environment.at_step = at_step
    if clock is not None:
        environment.now = clock.now
    return environment
