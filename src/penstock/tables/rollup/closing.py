"""The chores of a rollup: begin a close, complete it, clean partials, one at a time (RULES W2, W3). And compaction.

The process that holds the lowest partition of the log does them. A second one does no harm: every step is a
compare-and-swap that does nothing if it is done already, and after a crash the numbers state where to continue.

A close has three steps: commit its number to partials, aggregate the partials before that commit, commit the rows with
the number to the table of windows. Partials of windows that no point can change are removed; their points stay counted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import InvariantError, TransientError
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.columns.partition_values import Values
from penstock.flow.points.series import BUCKETS
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import ClosedName, compacted_name, owner_tag
from penstock.job.spec import JobSpec
from penstock.lake.compaction import CompactionLimits, Merged
from penstock.lake.delta.compact import FileGroup, compact_groups, group_files
from penstock.lake.delta.files import ActiveFile, check_staged, refuse_deletion_vectors
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.lake.delta.vacuum import Dead, KeptReason, NameRules, Verdict, by_version
from penstock.lake.reports import CompactReport
from penstock.logs.log import Log
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.kind import Chore, View
from penstock.tables.rollup.aggregate import SERIES, merge_partials
from penstock.tables.rollup.close_task import CloseFlow, CloseReport, close_share, rewrite
from penstock.tables.rollup.decide import BeginClose, Clean, CompleteClose, Due, decide, open_windows
from penstock.tables.rollup.events import WatermarkMeasured, WindowsClosed
from penstock.tables.rollup.files import SPANNED, cut, partials_files, scan, stage_files, whole_rows, write_options
from penstock.tables.rollup.numbers import (
    CLEANED,
    CLOSE,
    CLOSED,
    CLOSED_UNTIL,
    LATE,
    POINTS_REMOVED,
    UNTIL,
    UPDATED,
    WATERMARK,
    CloseState,
    close_state,
    number_key,
    number_of,
    refuse_apart,
)
from penstock.tables.rollup.schema import EPOCH, PARTIALS_GROUP_ROWS_MAX, SORTED_BY, partials_schema
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.rollup.watermark import PartitionTime, Watermark, watermark

CHECK_SECONDS = 1.0
"""The pause between checks of tables and log while nothing is due."""
TASK_ROWS_MIN = 200_000
"""Partials per task: fewer are not worth the start of another task."""
PARTIALS_BYTES_MIN = 4 * 1024**2
"""Size of compacted files of partials, a few hundred thousand rows: a group is merged in memory."""
_COUNT = pa.schema([("count", pa.int64())])


class WindowsRewrittenError(TransientError):
    """Another process replaced files of closed windows that a close replaces too: the close must be repeated."""


class Closing:
    """Closes the windows of committed partials, and removes partials."""

    def __init__(
        self, job: JobSpec[RollupSpec], partials: DeltaLog, windows: DeltaLog, spark: SparkSession, log: Log
    ) -> None:
        self._name = job.name
        self._spec = job.table
        self._partials = partials
        self._windows = windows
        self._spark = spark
        self._log = log
        self._environment = partials.environment
        self._check_at = 0.0
        self._leads = False

    def chores(self, view: View) -> Sequence[Due]:
        """The chores that are due, if this process leads."""
        if view.now < self._check_at and not view.flush_now:
            return ()
        partitions = self._log.partitions()
        self._leads = bool(partitions) and partitions[0] in view.tokens
        due = self._due(view.now, flush_late=view.flush_now and view.idle) if self._leads else None
        # A batch may be run instead of the chore: then this is called again.
        self._check_at = view.now + CHECK_SECONDS if due is None else 0.0
        return () if due is None else (due,)

    def lags(self) -> bool:
        """Whether a chore of this process is due now."""
        return self._leads and self._due(self._environment.now(), flush_late=True) is not None

    def perform(self, chore: Chore) -> None:
        match chore:
            case BeginClose():
                self._begin(chore)
            case CompleteClose():
                self._complete(chore)
            case Clean():
                self._clean(chore)
            case _:
                raise InvariantError(f"a rollup has no chore {chore.name}")

    def watermark(self, now: float) -> Watermark:
        """The watermark by the present state of table and log."""
        partitions = self._log.partitions()
        state = self._partials.state(partitions)
        # The log is read after the table: a position at its end has been there since the position moved.
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
        files = partials_files(self._partials)
        at = None if at_ms is None else at_ms / 1000
        counts = {window.name: open_windows(window, state, files) for window in self._spec.windows}
        self._environment.listener.event(WatermarkMeasured(at, counts))
        return decide(state, files, self._spec, at_ms, flush_late=flush_late)

    def _state(self) -> CloseState | None:
        """The state of closes; None if another process changed it meanwhile."""
        # Partials first: if a close completes in between, windows are ahead of partials.
        self._partials.refresh()
        self._windows.refresh()
        windows = self._windows.transactions()
        state = close_state(self._name, self._partials.transactions(), windows)
        moved = state.closed > state.close
        if moved:
            self._partials.refresh()
            state = close_state(self._name, self._partials.transactions(), windows)
        if not moved or state.closed > state.close:
            refuse_apart(state, self._partials.spec.path, self._windows.spec.path)
        return None if moved else state

    def _begin(self, chore: BeginClose) -> None:
        """Step 1: commit the number of the close, which takes the files of the version before."""
        numbers = {number_key(self._name, CLOSE): chore.close, number_key(self._name, UNTIL): chore.until_ms}
        if chore.watermark_ms is not None:
            numbers[number_key(self._name, WATERMARK)] = chore.watermark_ms
        begun = Provenance(kind="close", job=self._name, batch=str(chore.close), until_ms=chore.until_ms)

        def change() -> Change | None:
            if number_of(self._partials, CLOSE) != chore.close - 1:
                return None
            return Change([], numbers, begun.metadata)

        self._partials.swap(change)
        self._environment.at_step("close_begun")

    def _complete(self, chore: CompleteClose) -> None:
        """Steps 2 and 3: aggregate the files of the close, and commit its rows."""
        started_at = self._environment.now()
        active = {file.path: file for file in self._windows.active_files(SPANNED)}
        report = self._stage(chore, active)
        self._environment.at_step("close_staged")
        if not self._land(chore, report, [active[path] for path in report.replaced]):
            return
        self._environment.at_step("close_landed")
        self._environment.listener.event(
            WindowsClosed(
                close=chore.close,
                rows=sum(file.rows for file in report.files),
                updated=sum(file.rows for file in report.updates),
                late=report.late,
                seconds=round(self._environment.now() - started_at, 3),
                until=chore.until_ms / 1000,
            )
        )

    def _stage(self, chore: CompleteClose, active: dict[str, ActiveFile]) -> CloseReport:
        """Write the files of a close, which are not visible yet.

        One Spark job closes windows; if rows are replaced, another one rewrites the other rows of their files.
        """
        updates_windows = self._spec.late == "update"
        flow = CloseFlow(
            partials=self._partials.storage(),
            windows=write_options(self._windows),
            aggregates=self._spec.aggregates,
            owner=owner_tag(self._name),
            close=chore,
            old_files=tuple(active.values() if chore.late_files else ()) if updates_windows else None,
        )
        with spark_errors(self._spark):
            cores = int(self._spark.sparkContext.defaultParallelism)
        rows = sum(file.rows for file in {*chore.files, *chore.late_files})
        shares = cut(range(BUCKETS), min(cores, -(-rows // TASK_ROWS_MIN)))
        report = sum(run_each(self._spark, partial(close_share, flow), shares, CloseReport), CloseReport())
        if not report.replaced:
            return report
        pieces = [
            (active[path], [update.path for update in report.updates if self._values(update) == active[path].values])
            for path in report.replaced
        ]
        rewritten = sum(run_each(self._spark, partial(rewrite, flow), pieces, CloseReport), CloseReport())
        if rewritten.replaced != report.replaced:
            raise InvariantError(
                f"close {chore.close} has to replace {report.replaced} rows of {self._windows.spec.path}, "
                f"and replaced {rewritten.replaced}"
            )
        return report + CloseReport(kept=rewritten.kept)

    def _values(self, file: StagedFile) -> Values:
        return tuple(file.partition_values[name] for name in self._windows.spec.partition_by)

    def _land(self, chore: CompleteClose, report: CloseReport, replaced: Sequence[ActiveFile]) -> bool:
        """Commit the rows of a close; False if this or another process has committed them already."""
        windows, files = self._windows, (*report.files, *report.updates, *report.kept)
        written_with = windows.schema

        def decide_change() -> Change | None:
            if number_of(windows, CLOSED) != chore.close - 1:
                return None
            windows.check_schema(written_with)
            self._check_active(replaced)
            check_staged(windows.storage(), files)
            removes = [windows.remove_action(file) for file in replaced]
            return Change(
                actions=[*removes, *map(windows.add_action, files)],
                transactions=self._numbers(chore, report),
                metadata=Provenance(
                    kind="close",
                    job=self._name,
                    batch=str(chore.close),
                    rows=sum(file.rows for file in (*report.files, *report.updates)),
                    size_bytes=sum(file.size_bytes for file in files),
                    files_removed=len(removes),
                    files_added=len(files),
                ).metadata,
            )

        return windows.swap(decide_change)

    def _check_active(self, replaced: Sequence[ActiveFile]) -> None:
        windows = self._windows
        if not replaced:
            return
        refuse_deletion_vectors(windows.handle, windows.spec.path)
        gone = set(replaced) - set(windows.active_files())
        if gone:
            raise WindowsRewrittenError(
                f"{len(gone)} files of {windows.spec.path} were replaced while late points were added to their windows",
                hint="another writer or a compaction replaced them; the close is repeated",
            )

    def _numbers(self, chore: CompleteClose, report: CloseReport) -> dict[str, int]:
        """The numbers of this close, and the sums after it."""
        job, windows = self._name, self._windows
        numbers = {number_key(job, CLOSED): chore.close, number_key(job, CLOSED_UNTIL): chore.until_ms}
        for interval, points in report.late.items():
            numbers[number_key(job, LATE, interval)] = number_of(windows, LATE, interval) + points
        if report.updates:
            updated = sum(file.rows for file in report.updates)
            numbers[number_key(job, UPDATED)] = number_of(windows, UPDATED) + updated
        return numbers

    def _clean(self, chore: Clean) -> None:
        """Remove the files in one commit, unless they changed meanwhile."""
        partials, job = self._partials, self._name
        counts = (rows["count"] for file in chore.files for rows in scan(partials.storage(), file.path, _COUNT))
        points = sum(int(count.sum()) for count in counts)

        def change() -> Change | None:
            active = {file.path: file for file in partials.active_files()}
            # A close that is under way may need the files.
            if number_of(partials, CLOSE) != chore.closed or not all(file.path in active for file in chore.files):
                return None
            return Change(
                actions=[partials.remove_action(active[file.path]) for file in chore.files],
                transactions={
                    number_key(job, CLEANED): max(number_of(partials, CLEANED), chore.cleaned_ms),
                    number_key(job, POINTS_REMOVED): number_of(partials, POINTS_REMOVED) + points,
                },
                metadata=Provenance(kind="clean", job=job, files_removed=len(chore.files)).metadata,
            )

        partials.swap(change)
        self._environment.at_step("cleaned")


def compact_partials(partials: DeltaLog, spec: RollupSpec, effort: CompactionLimits) -> CompactReport:
    """Merge small files of the same day and epoch: closes, positions and totals do not change."""
    if effort.alike_min is not None:
        # An epoch has few files, and gets none once the next close is begun.
        effort = replace(effort, alike_min=2)
    partials.refresh()
    groups = group_files(partials.active_files(), PARTIALS_BYTES_MIN, effort)
    return compact_groups(partials, groups, partial(_merge, partials, spec), effort=effort)


def _merge(
    partials: DeltaLog, spec: RollupSpec, group: FileGroup, schema: pa.Schema, version_max: int
) -> Merged[ActiveFile]:
    """One sorted file with one row for each series and window, so that a range of buckets is a range of row groups."""
    options, storage = write_options(partials, PARTIALS_GROUP_ROWS_MAX), partials.storage()
    batches = [batch for file in group.files for batch in whole_rows(storage, file, options)]
    rows = pl.DataFrame(pa.Table.from_batches(batches))
    merged = merge_partials(rows.lazy(), spec.finest.millis, spec.aggregates, (*SERIES, "day", EPOCH)).collect()
    if merged["count"].sum() != rows["count"].sum():
        raise InvariantError(f"a compaction in {partials.spec.path} changed the number of points of its files")
    columns = partials_schema(spec.aggregates)
    sorted_rows = merged.sort(*SORTED_BY).select(columns.names).to_arrow().cast(columns)
    fitted = (fit_columns(batch, schema) for batch in sorted_rows.to_batches())
    return Merged(group, stage_files(options, lambda: compacted_name(version_max, uuid.uuid4().hex), fitted))


def windows_rules(windows: DeltaLog) -> NameRules:
    """Which files that no version names can be deleted (RULES C7): a close commits nothing after it is complete."""
    owner, closed = owner_tag(windows.job), number_of(windows, CLOSED)

    def of_close(name: ClosedName) -> Verdict:
        if name.owner != owner:
            return KeptReason.OTHERS
        return Dead.CLOSED if name.close <= closed else KeptReason.COMMITTABLE

    return NameRules(lambda _: KeptReason.UNKNOWN, by_version(windows), lambda _: KeptReason.UNKNOWN, of_close)
