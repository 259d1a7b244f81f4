"""Penstock from Python: the commands as functions, for notebooks, schedulers and programs; `import penstock` has them.

Jobs are named by the paths of their files. What fails raises a `penstock.errors.PenstockError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pyspark.sql import SparkSession

from penstock.engine.process import RunOptions, run_jobs
from penstock.events import BatchCommitted, Event, Listener, OnLanded
from penstock.job.faults import Fault
from penstock.job.spec import JobSpec, SparkSpec
from penstock.reporting.model import JobStatus
from penstock.spark.delta_spark import DELTA_SETTINGS
from penstock.spark.jars import JarSet, sets_to_read_tables
from penstock.spark.session import open_spark, running_session
from penstock.tables.registry import check_jobs, failpoint, load_job, load_jobs
from penstock.watch import status as job_status
from penstock.watch import verify as verification
from penstock.watch.judging import Judging
from penstock.watch.listeners import AlertChanges, Listeners, LogRecords
from penstock.watch.verify import Sample, VerifyReport

JobFile: TypeAlias = Path | str


@dataclass(slots=True)
class JobRun:
    """What a job has done in a run."""

    job: str
    batches: int = 0
    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self.batches += 1
            self.read += event.read
            self.written += event.written
            self.quarantined += event.quarantined
            self.filtered += event.filtered


@dataclass(frozen=True, slots=True)
class _Landing:
    on_landed: OnLanded

    def event(self, event: Event) -> None:
        if isinstance(event, BatchCommitted) and event.version is not None:
            self.on_landed({partition: end for partition, (_, end) in event.slices.items()}, event.version)


def check(*jobs: JobFile) -> list[Fault]:
    """All faults of job files; empty if there are none."""
    return [fault for checked in check_jobs([Path(job) for job in jobs]) for fault in checked.faults]


def run(
    *jobs: JobFile, once: bool = True, spark: SparkSession | None = None, on_landed: OnLanded | None = None
) -> list[JobRun]:
    """Run jobs, with `once` up to the present end of their logs, and return what each has done.

    `on_landed` is called after each commit of a batch, with the positions by partition and the version of the table.

    It runs in `spark`, or else in the session of this process, which both stay open; or in one of its own. Events are
    logged by `logging`, under `penstock.jobs.NAME`. Without `once` it returns after SIGTERM or Ctrl-C.
    """
    runs: list[JobRun] = []

    def listener_for(job: JobSpec) -> Listener:
        runs.append(JobRun(job.name))
        listeners: list[Listener] = [runs[-1], AlertChanges(LogRecords(job.name))]
        return Judging(job, Listeners(*listeners, *([] if on_landed is None else [_Landing(on_landed)])))

    specs = load_jobs([Path(job) for job in jobs])
    # A JVM loads jars when it starts: `session` may be called next.
    run_jobs(specs, listener_for, RunOptions(once, failpoint(), spark or running_session(), sets_to_read_tables()))
    return runs


def status(job: JobFile) -> JobStatus:
    """Positions, lag, last commit, quarantine and alerts."""
    return job_status.status(load_job(Path(job)))


def verify(job: JobFile, values: Literal["sample", "all"] | None = None) -> VerifyReport:
    """Compare log and table; with `values` also the values of a sample of records, or of all."""
    sample = {"sample": Sample(), "all": Sample(None)}.get(values or "")
    return verification.verify(load_job(Path(job)), values=sample)


def session(name: str = "penstock", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, or a new one, that reads and writes Delta tables, with these settings of Spark."""
    return open_spark(SparkSpec(conf={**DELTA_SETTINGS, **(conf or {})}), name, (JarSet.DELTA,))
