"""What a small task on each executor of a job's cluster reports: its Python and packages, Kafka, and the storage."""

from __future__ import annotations

import pickle
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

from pyspark.sql import SparkSession

from penstock.errors import PenstockError, UnreachableError, UserError
from penstock.job.spark import is_local
from penstock.job.spec import JobSpec
from penstock.logs.registry import open_log
from penstock.spark.executors import cluster_state, executor_count, requested
from penstock.spark.failures import BatchFailedError, spark_errors
from penstock.storage import open_storage

PACKAGES = ("penstock", "pyarrow", "polars", "deltalake", "obstore", "confluent-kafka")
"""Those whose version must be the same everywhere."""
FOLDER = "_penstock_check"
REGISTRATION_SECONDS_MAX = 60.0
SETTLED_SECONDS = 2.0
"""No further executor registers for so long."""
_ATTEMPTS_MAX = 3
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """What is wrong on one executor, by part; nothing if that is empty."""

    executor: str
    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)


def check_cluster(job: JobSpec, spark: SparkSession) -> list[ExecutorReport]:
    """A report of each executor, sorted; raises `UnreachableError` if none comes, `UserError` if none runs Python."""
    try:
        return _reports(job, spark)
    except BatchFailedError as error:
        raise UserError(
            "an executor cannot run a task in Python",
            detail=error.detail,
            hint="ship Python with `penstock pack`, or name the one that executors have in spark.pyspark.python",
        ) from error


def _reports(job: JobSpec, spark: SparkSession) -> list[ExecutorReport]:
    with spark_errors(spark):
        expected = 1 if is_local(spark.sparkContext.master or "") else _registered(spark)
        reports: dict[str, ExecutorReport] = {}
        for _ in range(_ATTEMPTS_MAX):
            count = max(spark.sparkContext.defaultParallelism, expected)
            rows = spark.sparkContext.parallelize(range(count), count).mapPartitions(_task(job)).collect()
            reports |= {report.executor: report for report in map(_compared, rows)}
            if len(reports) >= expected:
                break
    return sorted(reports.values(), key=lambda report: report.executor)


def _registered(spark: SparkSession) -> int:
    """How many executors have registered, once no more come."""
    began_at = changed_at = time.monotonic()
    count = 0
    while not count or time.monotonic() - changed_at < SETTLED_SECONDS:
        if time.monotonic() - began_at > REGISTRATION_SECONDS_MAX:
            raise UnreachableError(
                f"no executor came within {REGISTRATION_SECONDS_MAX:g} s",
                detail=f"asked for {requested(spark)}; the cluster has {cluster_state(spark)}",
                hint="free or add workers, or ask for less in spark.conf",
            )
        if (now := executor_count(spark)) != count:
            count, changed_at = now, time.monotonic()
        time.sleep(_POLL_SECONDS)
    return count


def _task(job: JobSpec) -> Callable[[Iterable[int]], Iterator[dict[str, object]]]:
    """The task of an executor, which imports nothing before it runs, so that it can state what fails."""
    pickled = pickle.dumps(job)

    def task(numbers: Iterable[int]) -> Iterator[dict[str, object]]:
        import os  # noqa: PLC0415 - see above
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415

        executor = f"{socket.gethostname()} {os.path.basename(os.getcwd())}"
        report: dict[str, object] = {"executor": executor, "python": platform.python_version()}
        try:
            from penstock.engine.cluster_check import faults_here, versions_here  # noqa: PLC0415

            report |= {"versions": versions_here(), "faults": faults_here(pickled)}
        except ImportError as error:
            report |= {"faults": {"packages": f"{error}\n  hint: ship them with `penstock pack`"}}
        yield report

    return task


def versions_here() -> dict[str, str]:
    """The versions of packages in this process."""
    return {name: metadata.version(name) for name in PACKAGES}


def faults_here(job: bytes) -> dict[str, str]:
    """What a pickled job cannot use in this process: its log, or its storage."""
    spec: JobSpec = pickle.loads(job)
    faults = {}
    for part, use in (("log", partial(_use_log, spec)), ("storage", partial(_use_storage, spec))):
        try:
            use()
        except PenstockError as error:
            faults[part] = str(error)
    return faults


def _use_log(job: JobSpec) -> None:
    log = open_log(job)
    log.bounds(log.partitions())


def _use_storage(job: JobSpec) -> None:
    """Write, list and delete in the table's folder, below a name that no reader looks at."""
    storage = open_storage(job.table.path, job.table.storage_options)
    path = f"{FOLDER}/{uuid.uuid4().hex}"
    storage.put(path, b"penstock check")
    if path not in {entry.path for entry in storage.list(FOLDER)}:
        raise UnreachableError(f"{storage.url} does not list a file that was just written", detail=path)
    storage.delete(path)


def _compared(row: Mapping[str, object]) -> ExecutorReport:
    """The report of a task, with what differs from this process."""
    report = ExecutorReport(**row)  # type: ignore[arg-type]
    here = {"Python": platform.python_version().rpartition(".")[0], **versions_here()}
    there = {"Python": report.python.rpartition(".")[0], **report.versions}
    differing = [
        f"{name} {there[name]}, here {here[name]}" for name in here if there.get(name, here[name]) != here[name]
    ]
    if not differing:
        return report
    faults = {**report.faults, "packages": "; ".join(differing)}
    return ExecutorReport(report.executor, report.python, report.versions, faults)
