"""Whole exports inside the test's own process: an export, its rounds on the shared Spark, what its types hold."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from penstock.engine.loop import Loop, Retries
from penstock.engine.round import Rounds, open_rounds
from penstock.environment import Environment
from penstock.failpoints import AtStep
from penstock.job.spec import JobSpec, job_of
from penstock.logs.log import Partition
from penstock.tables.export.export import ExportTable, WrittenShares
from penstock.tables.export.logs import ExportLogs, type_totals
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import ExportState, JobPartition
from penstock.tables.registry import load_job
from tests.support.pipes import Clock, Recorder
from tests.support.quarantine_url import export_quarantine, export_quarantines

FIRST_DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)

JOB = """\
job: export
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topics}]{kafka}}}
decode: {decode}
route: {{by: {by}{route}}}
event_time: {event_time}
types: {{{types}}}
days: {{{days}}}
table:
  export: {{path: "{root}"{export}}}
flush: {{{flush}}}
on: {{bad_share: 1, {on}}}
{more}"""


def type_of(name: str, **more: str) -> str:
    """A type of a job file whose rows are the events made by `event`; `more` are further keys."""
    keys = {"schema": "{type: string, at: string, id: long}"} | more
    return f"{name}: {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"


def event(name: str, number: int = 0, day: int = 0, **more: Any) -> str:
    """One record: an event of a type, on the first day or `day` days later."""
    at = (FIRST_DAY + timedelta(days=day, seconds=number)).isoformat()
    return json.dumps({"type": name, "at": at, "id": number, **more})


def export_job(
    bootstrap: str,
    root: Path,
    *topics: str,
    types: Iterable[str] = (type_of("A"), type_of("B"), type_of("C")),
    kafka: str = "",
    decode: str = "json",
    by: str = "field(type)",
    route: str = "",
    event_time: str = "at",
    days: str = "",
    export: str = "",
    flush: str = "allowed_latency: 1ms",
    on: str = "bad_record: quarantine",
    more: str = "",
) -> str:
    """The text of a job file; the arguments are entries of its sections."""
    return JOB.format(
        bootstrap=bootstrap,
        topics=", ".join(topics),
        kafka=f", {kafka}" if kafka else "",
        decode=decode,
        by=by,
        route=f", {route}" if route else "",
        event_time=event_time,
        types=", ".join(types),
        days=days,
        root=root,
        export=f", {export}" if export else "",
        flush=flush,
        on=on,
        more=more,
    )


def data_files(root: Path) -> list[Path]:
    """The data files below a root as a plain glob sees them."""
    return sorted(path for path in root.glob("**/*.parquet") if "_delta_log" not in path.parts)


def places_in(root: Path) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) is in the files of any type and in quarantine."""
    counter: Counter[tuple[int, int]] = Counter()
    for path in data_files(root):
        counter.update(pl.read_parquet(path, columns=["kafka_partition", "kafka_offset"]).rows())
    for quarantine in export_quarantines(root):
        counter.update(pl.read_delta(str(quarantine)).select("partition", "offset").rows())
    return counter


@dataclass(frozen=True, slots=True)
class ExportView:
    """The logs of an export together: positions of the job log, totals of all logs."""

    job: ExportState
    partitions: Mapping[Partition, JobPartition]

    @classmethod
    def of_logs(cls, logs: ExportLogs) -> ExportView:
        state = logs.state()
        places = {state.partition_of(key): counted for key, counted in state.partitions.items()}
        return cls(
            state,
            {
                partition: replace(counted, totals=counted.totals + type_totals(logs, partition))
                for partition, counted in places.items()
            },
        )

    def of(self, partition: Partition) -> JobPartition:
        return self.partitions.get(partition, JobPartition())

    def position_of(self, partition: Partition, name: str | None = None) -> int | None:
        return self.of(partition).position_of(name)

    def global_position(self, partition: Partition) -> int | None:
        return self.position_of(partition)


@dataclass(slots=True)
class ExportPipe:
    """One export in its own folder."""

    folder: Path
    bootstrap: str
    spark: SparkSession
    recorder: Recorder = field(default_factory=Recorder)
    name: str = "job.yaml"

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def quarantine(self) -> Path:
        return Path(export_quarantine(self.job))

    @property
    def job(self) -> JobSpec:
        return load_job(self.path)

    @property
    def table(self) -> ExportTable:
        job = self.job
        return ExportTable(ExportLogs(job_of(job, ExportSpec), Environment()))

    @property
    def state(self) -> ExportView:
        return ExportView.of_logs(self.table.logs)

    def describe(self, *topics: str, **sections: Any) -> None:
        """Write the job file; the arguments are those of `export_job`."""
        self.path.write_text(export_job(self.bootstrap, self.root, *topics, **sections))

    @contextmanager
    def opened(self, at_step: AtStep | None = None, clock: Clock | None = None) -> Iterator[Rounds[WrittenShares]]:
        """The rounds of the job; the test runs each one."""
        pipeline = open_rounds(self.job, self.spark, self._environment(at_step, clock, self.recorder))
        try:
            yield pipeline
        finally:
            pipeline.close()

    def run_to_end(self, at_step: AtStep | None = None, retries: int = 0, clock: Clock | None = None) -> Recorder:
        """`run --once`: up to the end that the topics have at its start; returns the events of this run."""
        recorder = Recorder()
        opened: list[Rounds[WrittenShares]] = []

        def open_pipeline() -> Rounds[WrittenShares]:
            opened.append(open_rounds(self.job, self.spark, self._environment(at_step, clock, recorder)))
            return opened[-1]

        try:
            Loop(open_pipeline, True, threading.Event(), Retries(retries, random.Random(7)), recorder).run()
        finally:
            for pipeline in opened:
                pipeline.close()
        return recorder

    def _environment(self, at_step: AtStep | None, clock: Clock | None, recorder: Recorder) -> Environment:
        environment = Environment(listener=recorder)
        if at_step is not None:
            environment.at_step = at_step
        if clock is not None:
            environment.now = clock.now
        return environment

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a type as Polars reads its plain files or its own table, in the order of the log."""
        if (self.root / name / "_delta_log").exists():
            frame = pl.read_delta(str(self.root / name))
        else:
            files = [pl.read_parquet(file, hive_partitioning=True) for file in data_files(self.root / name)]
            # Files that are older than a column do not have it.
            frame = pl.concat(files, how="diagonal")
        return frame.sort("kafka_partition", "kafka_offset").select(columns).rows()

    def offsets(self, name: str) -> list[int]:
        """The offsets of a type's rows, over all partitions."""
        return [offset for (offset,) in self.rows(name, "kafka_offset")]

    def paths(self, name: str = "") -> list[str]:
        """The data files below the root, or of one type, as a plain glob sees them."""
        return [str(file.relative_to(self.root)) for file in data_files(self.root / name)]

    def files(self, name: str = "") -> list[str]:
        """The same without the topic that their names begin with, if the job reads no other."""
        topics = self.job.log.topics if self.path.exists() else ()
        return [path.replace(f"/{topics[0]}.", "/") if len(topics) == 1 else path for path in self.paths(name)]

    def file(self, path: str) -> Path:
        """A data file by its path without the job's only topic."""
        [topic] = self.job.log.topics
        folder, _, name = path.rpartition("/")
        return self.root / folder / f"{topic}.{name}"

    def everywhere(self) -> Counter[tuple[int, int]]:
        """How often each (partition, offset) is in the files of any type and in quarantine."""
        return places_in(self.root)

    def quarantined(self, *columns: str) -> list[tuple[Any, ...]]:
        frame = pl.read_delta(str(self.quarantine)).sort("topic", "partition", "offset")
        return frame.select(columns or ("partition", "offset")).rows()

    def global_positions(self) -> list[int | None]:
        """The global position of every partition, in their order."""
        state = self.state
        return [state.global_position(partition) for partition in sorted(state.partitions)]
