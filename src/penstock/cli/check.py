"""`penstock check JOB...`: all faults of all job files at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.cli.tables import table
from penstock.errors import UserError
from penstock.job.faults import Finding, JobFileError, KeyPath, shown, unless_secret
from penstock.job.loader import CheckedFile
from penstock.job.spec import JobSpec, SparkSpec, SqlSpec
from penstock.tables.registry import check_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.cluster_check import ExecutorReport

_PARTS = ("packages", "log", "storage")
"""What is tried on an executor."""


def check(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    deep: Annotated[bool, typer.Option("--deep", help="Let Spark check `sql:` texts, too.")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Try log and storage on every executor.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a list of files with their faults.")] = False,
) -> None:
    """Report all faults of job files; opens connections only with --cluster, and starts Spark with that and --deep."""
    results = check_jobs(jobs)
    # The cluster first: a process has one session, and --deep takes any.
    executors = {result.path: _executors(result.spec) for result in results if cluster and result.spec is not None}
    if deep:
        results = [_checked_by_spark(result) for result in results]
    if json:
        content = [
            {"file": str(result.path), "ok": not result.faults, "faults": [fault.as_json() for fault in result.faults]}
            | ({"executors": [asdict(report) for report in executors[result.path]]} if result.path in executors else {})
            for result in results
        ]
        typer.echo(dumps(content, indent=2))
    else:
        for result in results:
            typer.echo(_as_text(result))
            _print_executors(executors.get(result.path, []))
    failed = [report for reports in executors.values() for report in reports if report.faults]
    if failed or any(result.faults for result in results):
        raise typer.Exit(JobFileError.exit_code)


def _executors(job: JobSpec) -> list[ExecutorReport]:
    from penstock.engine.cluster_check import check_cluster  # noqa: PLC0415 - imports pyspark
    from penstock.spark.session import open_spark  # noqa: PLC0415

    return check_cluster(job, open_spark(job.spark, name="penstock check", light=True))


def _print_executors(reports: Sequence[ExecutorReport]) -> None:
    """A line for each executor, and below them each fault once."""
    if not reports:
        return
    rows = [
        [report.executor, report.python, *("failed" if part in report.faults else "ok" for part in _PARTS)]
        for report in reports
    ]
    Console(highlight=False).print(table(["executor", "python", *_PARTS], rows))
    for fault in dict.fromkeys(f"{part}: {text}" for report in reports for part, text in report.faults.items()):
        typer.echo(fault)


def _checked_by_spark(result: CheckedFile) -> CheckedFile:
    """Add the faults of `sql:` that only Spark finds; a run finds them when it starts."""
    job = result.spec
    if job is None or job.sql is None or result.faults:
        return result
    from penstock.spark.session import open_spark  # noqa: PLC0415 - imports pyspark

    spark = open_spark(SparkSpec(conf=job.spark.conf), name="penstock check", light=True)
    findings = [finding for key, part in _parts(job, job.sql) for finding in _findings(key, part, spark)]
    return result.with_findings(findings or _findings(("sql",), job, spark))


def _parts(job: JobSpec, sql: SqlSpec) -> Iterator[tuple[KeyPath, JobSpec]]:
    """The job with each text of its `sql:` alone."""
    for index, text in enumerate(sql.select):
        yield ("sql", "select", index), replace(job, sql=SqlSpec((text,)))
    yield ("sql", "where"), replace(job, sql=SqlSpec(where=sql.where))


def _findings(key: KeyPath, job: JobSpec, spark: SparkSession) -> Iterator[Finding]:
    from penstock.tables.single.writer import row_columns  # noqa: PLC0415 - imports pyspark

    try:
        row_columns(job, spark)
    except UserError as error:
        yield Finding(key, f"{error.primary}: {error.detail}" if error.detail else error.primary, error.hint)


def _as_text(result: CheckedFile) -> str:
    if result.spec is None or result.faults:
        return "\n".join(str(fault) for fault in result.faults)
    spec = result.spec
    where = f"{spec.table.summary} {unless_secret(spec.table.path)}"
    return f"ok {result.path} (job {unless_secret(spec.name)}: topics {_topics(spec)} -> {where})"


def _topics(spec: JobSpec) -> str:
    if spec.log.topic_pattern is not None:
        return f"matching {shown(spec.log.topic_pattern)}"
    return ", ".join(unless_secret(topic) for topic in spec.log.topics)
