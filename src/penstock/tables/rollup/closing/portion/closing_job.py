"""The Spark jobs of a portion: one closes windows; where rows are replaced, another takes them out of their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pyspark.sql import SparkSession

from penstock.errors import InvariantError
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import owner_tag
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.rollup.closing.decide import ClosePortion, PartialsFile
from penstock.tables.rollup.closing.files import SPANNED, span_ms
from penstock.tables.rollup.closing.portion.late import OldFile
from penstock.tables.rollup.closing.portion.rewriting import Rewrite, RewriteFlow, RewriteReport, rewrite
from penstock.tables.rollup.closing.portion.task import CloseFlow, CloseReport, close_share
from penstock.tables.rollup.closing.windows_table import StagedPortion
from penstock.tables.rollup.spec import LatePolicy, RollupSpec

TASK_ROWS_MIN = 200_000
"""Of partials: for fewer another task is not worth its start."""
SLICE_ROWS_MAX = 500_000
"""Of partials that a task takes together, if their buckets are about equal."""
ROW_GROUP_ROWS_MAX = 131_072
"""Of closed windows: a reader of one metric reads little."""


@dataclass(frozen=True, slots=True)
class ClosingJob:
    """Runs the portions of one job."""

    spec: RollupSpec
    spark: SparkSession
    partials: Table
    windows: Table

    def run(self, portion: ClosePortion) -> StagedPortion:
        """Write the files of a portion; nobody sees them yet."""
        options = self._options()
        active = {each.path: each for each in self.windows.active_files(SPANNED)}
        flow = self._flow(portion, options, active)
        reports = run_each(self.spark, partial(close_share, flow), flow.shares, CloseReport)
        updates = tuple(file for each in reports for file in each.updates)
        replaced = sum((Counter(each.replaced) for each in reports), Counter[str]())
        kept = self._rewritten(flow, {active[path]: rows for path, rows in replaced.items()}, updates)
        files = tuple(file for each in reports for file in each.files)
        late = sum((Counter(each.late) for each in reports), Counter[str]())
        return StagedPortion(
            schema=options.schema,
            files=(*files, *updates, *kept),
            replaced=tuple(active[path] for path in replaced),
            rows=sum(each.rows for each in files),
            updated=sum(each.rows for each in updates),
            late={interval: points for interval, points in late.items() if points},
        )

    def _options(self) -> WriteOptions:
        place = self.windows.spec
        return WriteOptions(
            place.path,
            self.windows.schema,
            dict(place.storage_options),
            place.partition_by,
            row_group_rows_max=ROW_GROUP_ROWS_MAX,
        )

    def _flow(self, portion: ClosePortion, options: WriteOptions, active: dict[str, ActiveFile]) -> CloseFlow:
        updates = self.spec.late is LatePolicy.UPDATE
        return CloseFlow(
            partials=self.partials.storage(),
            windows=options,
            aggregates=self.spec.aggregates,
            close=portion.close,
            owner=owner_tag(self.windows.job),
            spans=portion.spans,
            files=portion.files,
            late_files=portion.late_files,
            old_files=tuple(_old_files(active.values(), portion.late_files)) if updates else None,
            shares=shares_of(portion.buckets, portion.rows, cores_of(self.spark)),
        )

    def _rewritten(
        self, flow: CloseFlow, replaced: dict[ActiveFile, int], updates: Sequence[StagedFile]
    ) -> tuple[StagedFile, ...]:
        """The rows of these files that stay."""
        if not replaced:
            return ()
        columns = flow.windows.partition_by
        by_values: dict[tuple[str | None, ...], list[str]] = {}
        for each in updates:
            by_values.setdefault(tuple(each.partition_values[name] for name in columns), []).append(each.path)
        rewrites = tuple(Rewrite(each.path, each.scalars, tuple(by_values[each.values])) for each in replaced)
        again = RewriteFlow(flow.windows, flow.close, flow.owner)
        reports = run_each(self.spark, partial(rewrite, again), rewrites, RewriteReport)
        left_out = sum(each.left_out for each in reports)
        if left_out != sum(replaced.values()):
            raise InvariantError(
                f"close {flow.close} found {sum(replaced.values())} rows of {self.windows.spec.path} to replace "
                f"and left out {left_out}"
            )
        return tuple(file for each in reports for file in each.files)


def cores_of(spark: SparkSession) -> int:
    with spark_errors(spark):
        return int(spark.sparkContext.defaultParallelism)


def shares_of(buckets: range, rows: int, cores: int) -> tuple[tuple[range, ...], ...]:
    """The buckets of each task, in pieces of which each has a bounded number of rows."""
    tasks = max(1, min(cores, -(-rows // TASK_ROWS_MIN)))
    slices = max(1, -(-rows // (tasks * SLICE_ROWS_MAX)))
    return tuple(tuple(cut(each, slices)) for each in cut(buckets, tasks))


def cut(buckets: range, pieces: int) -> list[range]:
    """Neighbours together, in at most so many pieces that are about equal and not empty."""
    count = min(pieces, len(buckets))
    ends = [buckets.start + len(buckets) * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _old_files(active: Iterable[ActiveFile], late: Sequence[PartialsFile]) -> Iterator[OldFile]:
    """The files of closed windows, if there may be late rows."""
    if late:
        for each in active:
            interval, day = each.values
            yield OldFile(each.path, str(interval), *span_ms(each, day))
