"""The chores of a rollup: begin a close, land its portions, clean and merge partials, one at a time.

The process that holds the lowest partition of the log does them. A second one does no harm: every step is a
compare-and-swap that sees by itself whether it is done, and after a crash the numbers say where to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.logs.log import Log
from penstock.tables.kind import Chore, View
from penstock.tables.rollup.closing.clean import clean
from penstock.tables.rollup.closing.decide import (
    TURNS,
    BeginClose,
    Clean,
    ClosePortion,
    Due,
    Merge,
    Moment,
    PartialsFile,
    decide,
)
from penstock.tables.rollup.closing.files import partials_files
from penstock.tables.rollup.closing.merge import merge
from penstock.tables.rollup.closing.portion.closing_job import ClosingJob
from penstock.tables.rollup.closing.standing import Standing, refuse_apart, standing_of
from penstock.tables.rollup.closing.watermark import PartitionTime, Watermark, watermark
from penstock.tables.rollup.closing.windows_table import StagedPortion, land_portion
from penstock.tables.rollup.events import PartialsCleaned, PartialsMerged, WindowsClosed
from penstock.tables.rollup.partials.schema import close_key, portions_key, until_key, watermark_key
from penstock.tables.rollup.spec import RollupSpec

LOOK_SECONDS = 1.0
"""How often tables and log are asked what is due, while nothing was."""


@dataclass(slots=True)
class _Progress:
    """Of the close that is being landed."""

    rows: int = 0
    updated: int = 0
    late: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, staged: StagedPortion, seconds: float) -> None:
        self.rows += staged.rows
        self.updated += staged.updated
        self.late += Counter(staged.late)
        self.seconds += seconds


class Closing:
    """All that becomes of partials after they are committed."""

    def __init__(
        self,
        job: JobSpec[RollupSpec],
        partials: Table,
        windows: Table,
        spark: SparkSession,
        log: Log,
        environment: Environment,
    ) -> None:
        self._name = job.name
        self._spec = job.table
        self._partials = partials
        self._windows = windows
        self._spark = spark
        self._log = log
        self._environment = environment
        self._job = ClosingJob(job.table, spark, partials, windows)
        self._look_at = 0.0
        self._leads = False
        self._files: tuple[int, tuple[PartialsFile, ...]] | None = None
        self._progress = _Progress()
        self._last = TURNS[-1]

    def chores(self, view: View) -> Sequence[Due]:
        """What is due, for the process that leads."""
        if view.now < self._look_at and not view.flush_now:
            return ()
        partitions = self._log.partitions()
        self._leads = bool(partitions) and partitions[0] in view.tokens
        due = self._due(view.now, flush_late=view.flush_now and view.idle) if self._leads else None
        # What is due may have to give its turn to a batch: then it is asked for again.
        self._look_at = view.now + LOOK_SECONDS if due is None else 0.0
        return () if due is None else (due,)

    def lags(self) -> bool:
        """Whether something is due right now that this process has to do."""
        return self._leads and self._due(self._environment.now(), flush_late=True) is not None

    def perform(self, chore: Chore) -> None:
        # Also of work that fails: it must not take the turn of the others.
        self._last = chore.name
        match chore:
            case BeginClose():
                self._begin(chore)
            case ClosePortion():
                self._close(chore)
            case Clean():
                self._clean(chore)
            case Merge():
                self._merge(chore)
            case _:
                raise InvariantError(f"a rollup has no chore {chore.name}")

    def watermark(self, now: float) -> Watermark:
        """How far event time has come by what table and log say now."""
        partitions = self._log.partitions()
        state = self._partials.state(partitions)
        # The log is asked after the table: a position that is its end then has been its end since it moved.
        bounds = self._log.bounds(partitions)
        times = {
            each: PartitionTime.of((here := state.of(each)).position, bounds[each].end, here.numbers)
            for each in partitions
        }
        committed = self._partials.transaction(watermark_key(self._name))
        return watermark(times, committed, self._spec.idle_after_ms, int(now * 1000))

    def _due(self, now: float, *, flush_late: bool) -> Due | None:
        standing = self._standing()
        if standing is None:
            return None
        at_ms = None if standing.close > standing.closed else self.watermark(now).at_ms
        return decide(standing, self._partials_files(), self._spec, Moment(at_ms, flush_late, self._last))

    def _standing(self) -> Standing | None:
        """How far the closes are; None while another process moves them along."""
        # In this order: a close is begun in partials before it is complete in windows.
        self._partials.refresh()
        self._windows.refresh()
        standing = self._read_standing()
        if standing.closed <= standing.close:
            refuse_apart(standing, self._partials.spec.path, self._windows.spec.path)
            return standing
        self._partials.refresh()
        again = self._read_standing()
        if again.closed > again.close:
            refuse_apart(again, self._partials.spec.path, self._windows.spec.path)
        return None

    def _read_standing(self) -> Standing:
        return standing_of(self._name, self._partials.transactions(), self._windows.transactions())

    def _partials_files(self) -> tuple[PartialsFile, ...]:
        if self._files is None or self._files[0] != self._partials.version:
            self._files = (self._partials.version, partials_files(self._partials.handle))
        return self._files[1]

    def _begin(self, chore: BeginClose) -> None:
        """Say which files the close takes: those that are there in the version before (RULES W2)."""
        job = self._name

        def change() -> Change | None:
            if (self._partials.transaction(close_key(job)) or 0) != chore.close - 1:
                return None
            numbers = {close_key(job): chore.close, until_key(job): chore.until_ms, portions_key(job): chore.portions}
            if chore.watermark_ms is not None:
                numbers[watermark_key(job)] = chore.watermark_ms
            begun = Provenance(kind="close", job=job, batch=str(chore.close), until_ms=chore.until_ms)
            return Change([], numbers, begun.metadata)

        self._partials.swap(change)
        self._progress = _Progress()
        self._environment.reach("close_begun")

    def _close(self, chore: ClosePortion) -> None:
        started_at = self._environment.now()
        staged = self._job.run(chore)
        self._environment.reach("close_staged")
        if not land_portion(self._windows, chore, staged):
            return
        self._environment.reach("close_landed")
        self._progress.add(staged, self._environment.now() - started_at)
        if chore.portion + 1 == chore.portions:
            done, self._progress = self._progress, _Progress()
            late = {interval: points for interval, points in done.late.items() if points}
            self._environment.listener.event(
                WindowsClosed(chore.close, done.rows, done.updated, late, round(done.seconds, 3), chore.until_ms / 1000)
            )

    def _clean(self, chore: Clean) -> None:
        points = clean(self._partials, chore)
        self._environment.reach("cleaned")
        if points is not None:
            self._environment.listener.event(PartialsCleaned(len(chore.files), points))

    def _merge(self, chore: Merge) -> None:
        files = merge(self._partials, self._spark, self._spec, chore)
        self._environment.reach("merged")
        if files is not None:
            self._environment.listener.event(PartialsMerged(len(chore.files), files))
