"""The tables of a rollup: partials, which store the positions, closed windows, and the chores between the two.

Both are created if absent, and refused if they belong to another job or to other windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.report import Share
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import fingerprint, other_jobs
from penstock.lake.delta.opening import open_or_create
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Outcome, Proposal, StartPart
from penstock.lake.state import Numbers
from penstock.logs.log import Log, Partition
from penstock.tables.kind import Chore, View
from penstock.tables.rollup.closing import Closing
from penstock.tables.rollup.numbers import CLOSE, INTERVAL, WINDOWS_ID, keep_numbers, number_key
from penstock.tables.rollup.publishing import Publish, Publishing, open_publishing
from penstock.tables.rollup.schema import EPOCH, partials_schema, windows_schema
from penstock.tables.rollup.spec import RollupSpec, partials_job
from penstock.tables.single.table import SingleTable


class RollupTable(SingleTable):
    """Batches land as partials; closing, publishing and cleaning are chores."""

    def __init__(
        self, job: JobSpec[RollupSpec], data: DeltaLog, closing: Closing, publishing: Publishing | None
    ) -> None:
        super().__init__(partials_job(job), data, data.environment)
        self.stamps = {EPOCH: number_key(job.name, CLOSE)}
        self.closing = closing
        self.publishing = publishing

    def commit(self, proposal: Proposal) -> Outcome:
        """Let a partition that starts become idle `idle_after` later (RULES W1)."""
        moved = Numbers(
            peaks=dict.fromkeys(("moved_ms", "last_point_ms"), self._now_ms()), latest={"read_to_end_ms": 0}
        )
        parts = tuple(replace(part, numbers=moved) if isinstance(part, StartPart) else part for part in proposal.parts)
        return super().commit(replace(proposal, parts=parts))

    def numbers(self, share: Share, read_to_end_at: float | None = None) -> Numbers:
        """Event times are capped at the clock: a time in the future would make present points late."""
        now_ms = self._now_ms()
        peaks = {"moved_ms": now_ms}
        if share.event_ms_max is not None:
            peaks |= {"event_ms": min(share.event_ms_max, now_ms), "last_point_ms": now_ms}
        return Numbers(share.sums, peaks, {"read_to_end_ms": int((read_to_end_at or 0) * 1000)})

    def chores(self, view: View) -> Sequence[Chore]:
        """Publishing comes first; closing alternates with it while many rows wait to be published."""
        publish: Sequence[Chore] = () if self.publishing is None else self.publishing.chores(view)
        return [*publish, *self.closing.chores(view)]

    def perform(self, chore: Chore) -> None:
        if isinstance(chore, Publish):
            assert self.publishing is not None
            self.publishing.perform()
        else:
            self.closing.perform(chore)

    def lags(self, partitions: Iterable[Partition]) -> bool:
        return self.closing.lags() or (self.publishing is not None and self.publishing.lags())

    def close(self) -> None:
        if self.publishing is not None:
            self.publishing.close()

    def _now_ms(self) -> int:
        return int(self.environment.now() * 1000)


def open_tables(job: JobSpec[RollupSpec], spark: SparkSession, log: Log, environment: Environment) -> RollupTable:
    """Both tables with at least the job's columns, and the chores between them."""
    partials = open_partials(job, environment)
    windows = open_windows_table(job, environment)
    _refuse_other_jobs(windows)
    key, own = number_key(job.name, WINDOWS_ID), fingerprint(windows.id)
    if keep_numbers(partials, key, {key: own})[key] != own:
        raise UserError(
            f"the table at {windows.spec.path} is not the one that windows of {job.name} were closed to",
            hint="was it deleted, moved or restored? Restore it, or delete both tables and start from the log",
        )
    closing = Closing(job, partials, windows, spark, log)
    return RollupTable(job, partials, closing, open_publishing(job, windows, log))


def open_partials(job: JobSpec[RollupSpec], environment: Environment) -> DeltaLog:
    """The table that stores the positions; its windows are fixed when it is created."""
    place, schema = partials_job(job).table, partials_schema(job.table.aggregates)
    table = open_or_create(place, job.name, schema, "add", environment)
    head = number_key(job.name, INTERVAL, "")
    lengths = {f"{head}{window.name}": window.millis for window in job.table.windows}
    kept = keep_numbers(table, head, lengths, partial(_refuse_other_jobs, table))
    before = sorted(kept, key=lambda name: kept[name])
    if before != [f"{head}{window.name}" for window in job.table.windows]:
        raise UserError(
            f"the windows of {job.name} are {', '.join(window.name for window in job.table.windows)}, "
            f"its table was created for {', '.join(name.removeprefix(head) for name in before)}",
            hint="windows cannot change: write to a new table, or restore the old list",
        )
    return table


def open_windows_table(job: JobSpec[RollupSpec], environment: Environment) -> DeltaLog:
    """The table of closed windows."""
    schema = windows_schema(job.table.aggregates)
    return open_or_create(job.table.windows_place, job.name, schema, "add", environment)


def _refuse_other_jobs(table: DeltaLog) -> None:
    """A close takes every file of the partials, so two jobs would count each other's points."""
    others = other_jobs(table.transactions(), table.job)
    if others:
        raise UserError(
            f"the table at {table.spec.path} belongs to job {others[0]}",
            detail=f"a rollup counts all points of its tables: with job {table.job} each would count twice",
            hint=f"if the job was renamed, name it {others[0]} again; else choose another path",
        )
