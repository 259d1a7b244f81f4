"""Replay: decode quarantined records with the current job; valid ones land once, the others stay (RULES Q2).

A run has a number and four steps, each of which can be the last before a crash:

    1. finish     an earlier run: its rows are removed from quarantine
    2. stage      a bounded set of quarantined records goes through the job's flow
    3. commit     the rows that fit, with the run's number and offsets; refused if another run came first
    4. remove     the same offsets from quarantine, with the same number

A crash before 3 leaves staged files that no commit names; after 3, step 1 of the next process removes the rows.
Steps 2 and 3 are those of the kind of table (`replay_target` of each kind).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Generic

from pyspark.sql import SparkSession

from penstock.environment import Environment, new_batch_id
from penstock.errors import TransientError
from penstock.events import Listener, ReplayCommitted, ReplayFinished, ReplayRestarted
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import DeltaLog, SchemaMovedError
from penstock.logs.registry import open_log
from penstock.quarantine.replay import (
    Chunk,
    F,
    OvertakenError,
    ReplayOptions,
    Target,
    chunks_of,
    finish_replay,
    remove_run,
)
from penstock.quarantine.rows import count_rows
from penstock.spark.session import open_spark
from penstock.tables.registry import kind_of

__all__ = ["OvertakenError", "ReplayOptions", "ReplayReport", "replay"]

PASSES_MAX = 20
"""How often a pass over the quarantine starts again because of another replay or a new column."""
_PAUSE_SECONDS_MAX = 1.0


@dataclass(slots=True)
class ReplayReport:
    """What a replay has done: rows finished for an earlier run, rows of its own, and what stays in quarantine."""

    runs: int = 0
    finished: int = 0
    replayed: int = 0
    still_bad: int = 0
    filtered: int = 0
    """Records that would be rows, but that the job's filter drops: they stay, so that the counts remain right (I3)."""
    left_to_log: int = 0
    """Records of an export whose type reads them, or has read them, from the log: they stay, and no row is doubled."""
    remaining: int = 0
    """Rows in quarantine afterwards, including those that were not selected."""


def replay(
    job: JobSpec,
    listener: Listener | None = None,
    options: ReplayOptions | None = None,
    *,
    environment: Environment | None = None,
    spark: SparkSession | None = None,
) -> ReplayReport:
    """Decode the quarantined records of a job again.

    The job, and another replay, may run at the same time. Without `spark` a session is opened and stopped.
    """
    session = spark or open_spark(job.spark, name=f"penstock replay {job.name}")
    environment = environment or Environment()
    environment = replace(environment, listener=listener or environment.listener)
    try:
        with closing(open_log(job)) as log:
            target = kind_of(job).open_writer(job, session, log, environment).replay_target()
            return _Replay(target, options or ReplayOptions()).run()
    finally:
        if spark is None:
            session.stop()


@dataclass(slots=True)
class _Replay(Generic[F]):
    """One call of `replay`."""

    target: Target[F]
    options: ReplayOptions
    report: ReplayReport = field(default_factory=ReplayReport)

    def run(self) -> ReplayReport:
        quarantine = self.target.quarantine.table()
        if quarantine is None:
            return self.report
        for _ in range(PASSES_MAX):
            try:
                self._pass(quarantine)
                quarantine.refresh()
                self.report.remaining = count_rows(quarantine)
                return self.report
            except (OvertakenError, SchemaMovedError) as error:
                self.target.listener.event(ReplayRestarted(reason=error.primary))
                environment = self.target.environment
                environment.sleep(environment.rng.uniform(0, _PAUSE_SECONDS_MAX))
        raise TransientError(f"gave up after {PASSES_MAX} passes: other replays of {quarantine.job} came first")

    def _pass(self, quarantine: DeltaLog) -> None:
        """Replay every selected record once.

        The number is read before the quarantine: if another replay commits later, this one is refused.
        """
        done = self.report
        self.report = ReplayReport(done.runs, done.finished, done.replayed)
        self.target.refresh()
        number = self.target.runs.last()
        self._finish(quarantine)
        for chunk in chunks_of(quarantine, self.options):
            if self._replay_chunk(quarantine, chunk, number + 1):
                number += 1

    def _finish(self, quarantine: DeltaLog) -> None:
        quarantine.refresh()
        removed = finish_replay(self.target.runs, quarantine)
        if removed:
            self.report.finished += removed
            self.target.listener.event(ReplayFinished(run=self.target.runs.last(), rows=removed))

    def _replay_chunk(self, quarantine: DeltaLog, chunk: Chunk, number: int) -> bool:
        """One run; whether it committed anything."""
        staged = self.target.stage(chunk, new_batch_id(), number)
        run, total = staged.run, staged.total
        if run.rows:
            self.target.environment.at_step("replay_staged")
            self.target.commit(staged)
            self.target.environment.at_step("replay_committed")
            remove_run(quarantine, run)
            self.report.runs += 1
            self.report.replayed += run.rows
            self.target.listener.event(ReplayCommitted(run=number, rows=run.rows, still_bad=total.quarantined))
        self.report.still_bad += total.quarantined
        self.report.filtered += total.filtered
        self.report.left_to_log += total.skipped
        return run.rows > 0
