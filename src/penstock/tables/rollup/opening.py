"""The tables of a rollup, created if need be, and what may not change as long as they live."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import fingerprint, other_jobs
from penstock.lake.delta.library import MissingTableError
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table, open_or_create, open_table
from penstock.logs.log import Log
from penstock.tables.rollup.closing.closing import Closing
from penstock.tables.rollup.closing.standing import windows_key
from penstock.tables.rollup.closing.windows_table import open_windows_table
from penstock.tables.rollup.partials.schema import close_key, finest_key, partials_schema
from penstock.tables.rollup.publishing.outputs import open_output
from penstock.tables.rollup.publishing.publishing import Publishing, keep_buckets
from penstock.tables.rollup.spec import RollupSpec, partials_job
from penstock.tables.rollup.table import RollupTable


@dataclass(frozen=True, slots=True)
class Tables:
    """Both tables, as they are there."""

    partials: Table
    windows: Table


def open_tables(job: JobSpec[RollupSpec], spark: SparkSession, log: Log, environment: Environment) -> RollupTable:
    """Both tables with at least the job's columns, and what is done with them."""
    partials = open_partials(job, environment)
    windows = open_windows_table(job, environment)
    _own_alone(windows)
    _keep_together(partials, windows)
    publishing = _publishing(job, windows, log, environment)
    closing = Closing(job, partials, windows, spark, log, environment)
    return RollupTable(job, partials, closing, publishing, environment)


def _publishing(job: JobSpec[RollupSpec], windows: Table, log: Log, environment: Environment) -> Publishing | None:
    spec = job.table.publish
    if spec is None:
        return None
    keep_buckets(job, spec, windows)
    return Publishing(job, spec, windows, log, environment, lambda bucket: open_output(job, spec, bucket, environment))


def open_partials(job: JobSpec[RollupSpec], environment: Environment) -> Table:
    """The table that carries the positions."""
    of_partials = partials_job(job)
    schema = partials_schema(job.table.aggregates)
    table = open_or_create(of_partials.table, job.name, schema, NewColumnPolicy.ADD, environment)
    _own_alone(table)
    _keep_finest(job, table)
    return table


def existing_tables(job: JobSpec[RollupSpec], environment: Environment) -> Tables:
    """Both tables; one that is missing is the user's to create."""
    try:
        return Tables(
            open_table(partials_job(job).table, job.name, environment),
            open_table(job.table.windows_place, job.name, environment),
        )
    except MissingTableError as error:
        raise UserError(error.primary, detail=error.detail, hint="`penstock run` creates it") from error


def owner_key(job: str) -> str:
    """Says that a table belongs to the job."""
    return f"{job}#owner"


def _own_alone(table: Table) -> None:
    """Make the job the owner of a table; one that another job has written to is refused.

    A close takes every file of the partials, so two jobs would count each other's points.
    """

    def decide() -> Change | None:
        others = other_jobs(table.transactions(), table.job)
        if others:
            raise UserError(
                f"the table at {table.spec.path} belongs to job {others[0]}",
                detail=f"a rollup counts all points of its tables: with job {table.job} each would count twice",
                hint=f"if the job was renamed, name it {others[0]} again; else choose another path",
            )
        key = owner_key(table.job)
        if table.transaction(key) is not None:
            return None
        return Change([], {key: 1}, Provenance(kind="windows", job=table.job).metadata)

    table.swap(decide)


def _keep_together(partials: Table, windows: Table) -> None:
    """A table of windows that was made anew has none of the closed ones: only a job without a close may go on."""
    key, there = windows_key(partials.job), fingerprint(str(windows.handle.metadata().id))

    def decide() -> Change | None:
        before = partials.transaction(key)
        if before == there:
            return None
        if before is not None and partials.transaction(close_key(partials.job)):
            raise UserError(
                f"the table at {windows.spec.path} is not the one that windows of {partials.job} were closed to",
                hint="was it deleted, moved or restored? Restore it, or delete both tables and start from the log",
            )
        return Change([], {key: there}, Provenance(kind="windows", job=partials.job).metadata)

    partials.swap(decide)


def _keep_finest(job: JobSpec[RollupSpec], table: Table) -> None:
    """Partials of another length cannot be told apart: the finest window stays as long as the table."""
    key, finest = finest_key(job.name), job.table.finest

    def decide() -> Change | None:
        if table.transaction(key) is not None:
            return None
        return Change([], {key: finest.millis}, Provenance(kind="windows", job=job.name).metadata)

    table.swap(decide)
    before = table.transaction(key)
    if before != finest.millis:
        raise UserError(
            f"the shortest window of {job.name} is {finest.name}, its partials were made for {before} ms",
            hint="the shortest window cannot change: write to a new table, or bring the old window back",
        )
