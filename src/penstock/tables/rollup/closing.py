"""The chores of a rollup: begin a close, land its portions, clean and merge partials, one at a time.

The process that holds the lowest partition of the log does them. A second one does no harm: every step is a
compare-and-swap that sees by itself whether it is done, and after a crash the numbers say where to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import SparkSession

from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.logs.log import Log
from penstock.tables.kind import Chore, View
from penstock.tables.rollup.close_portion import StagedPortion, land_portion, stage_portion
from penstock.tables.rollup.decide import TURNS, BeginClose, Clean, ClosePortion, Due, Merge, Moment, decide
from penstock.tables.rollup.events import WindowsClosed
from penstock.tables.rollup.files import partials_files
from penstock.tables.rollup.numbers import (
    CLOSE,
    PORTIONS,
    UNTIL,
    WATERMARK,
    CloseState,
    close_state,
    number_key,
    number_of,
    refuse_apart,
)
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.rollup.upkeep import clean, merge
from penstock.tables.rollup.watermark import PartitionTime, Watermark, watermark

LOOK_SECONDS = 1.0
"""How often tables and log are asked what is due, while nothing was."""


class Closing:
    """All that becomes of partials after they are committed."""

    def __init__(
        self, job: JobSpec[RollupSpec], partials: Table, windows: Table, spark: SparkSession, log: Log
    ) -> None:
        self._name = job.name
        self._spec = job.table
        self._partials = partials
        self._windows = windows
        self._spark = spark
        self._log = log
        self._environment = partials.environment
        self._look_at = 0.0
        self._leads = False
        self._landed: list[tuple[StagedPortion, float]] = []
        """The portions of the close under way that this process landed, with the seconds that each took."""
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
                clean(self._partials, chore)
            case Merge():
                merge(self._partials, self._spec, chore)
            case _:
                raise InvariantError(f"a rollup has no chore {chore.name}")

    def watermark(self, now: float) -> Watermark:
        """How far event time has come by what table and log say now."""
        partitions = self._log.partitions()
        state = self._partials.state(partitions)
        # The log is asked after the table: a position that is its end then has been its end since it moved.
        bounds = self._log.bounds(partitions)
        times = {
            partition: PartitionTime.of((own := state.of(partition)).position, bounds[partition].end, own.numbers)
            for partition in partitions
        }
        committed = self._partials.transaction(number_key(self._name, WATERMARK))
        return watermark(times, committed, self._spec.idle_after_ms, int(now * 1000))

    def _due(self, now: float, *, flush_late: bool) -> Due | None:
        state = self._state()
        if state is None:
            return None
        at_ms = None if state.under_way else self.watermark(now).at_ms
        return decide(state, partials_files(self._partials), self._spec, Moment(at_ms, flush_late, self._last))

    def _state(self) -> CloseState | None:
        """How far the closes are; None while another process moves them along."""
        # In this order: a close is begun in partials before it is complete in windows.
        self._partials.refresh()
        self._windows.refresh()
        state = self._loaded_state()
        if state.closed <= state.close:
            refuse_apart(state, self._partials.spec.path, self._windows.spec.path)
            return state
        self._partials.refresh()
        again = self._loaded_state()
        if again.closed > again.close:
            refuse_apart(again, self._partials.spec.path, self._windows.spec.path)
        return None

    def _loaded_state(self) -> CloseState:
        return close_state(self._name, self._partials.transactions(), self._windows.transactions())

    def _begin(self, chore: BeginClose) -> None:
        """Say which files the close takes: those that are there in the version before (RULES W2)."""
        job = self._name
        numbers = {
            number_key(job, CLOSE): chore.close,
            number_key(job, UNTIL): chore.until_ms,
            number_key(job, PORTIONS): chore.portions,
        }
        if chore.watermark_ms is not None:
            numbers[number_key(job, WATERMARK)] = chore.watermark_ms
        begun = Provenance(kind="close", job=job, batch=str(chore.close), until_ms=chore.until_ms)

        def change() -> Change | None:
            if number_of(self._partials, CLOSE) != chore.close - 1:
                return None
            return Change([], numbers, begun.metadata)

        self._partials.swap(change)
        self._landed.clear()
        self._environment.reach("close_begun")

    def _close(self, chore: ClosePortion) -> None:
        started_at = self._environment.now()
        staged = stage_portion(self._spark, self._spec, self._partials, self._windows, chore)
        self._environment.reach("close_staged")
        if not land_portion(self._windows, chore, staged):
            return
        self._environment.reach("close_landed")
        self._landed.append((staged, self._environment.now() - started_at))
        if chore.portion + 1 == chore.portions:
            self._report_closed(chore)
            self._landed.clear()

    def _report_closed(self, chore: ClosePortion) -> None:
        late = sum((staged.late for staged, _ in self._landed), Counter[str]())
        self._environment.listener.event(
            WindowsClosed(
                close=chore.close,
                rows=sum(staged.rows for staged, _ in self._landed),
                updated=sum(staged.updated for staged, _ in self._landed),
                late=dict(late),
                seconds=round(sum(seconds for _, seconds in self._landed), 3),
                until=chore.until_ms / 1000,
            )
        )
