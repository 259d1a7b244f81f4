"""A portion of a close (RULES W2, W3): its Spark jobs, and the commit that makes their files visible.

One job closes windows; where rows are replaced, another one writes the other rows of their files again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from penstock.errors import InvariantError, TransientError
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import ClosedName, owner_tag
from penstock.lake.delta.files import ActiveFile, check_staged, refuse_deletion_vectors
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.delta.vacuum import Dead, Kept, NameRules, Verdict, by_version
from penstock.spark.failures import spark_errors
from penstock.staging.dealing import run_each
from penstock.tables.rollup.close_task import (
    CloseFlow,
    CloseReport,
    close_share,
    rewrite,
)
from penstock.tables.rollup.decide import ClosePortion
from penstock.tables.rollup.files import SPANNED, cut, write_options
from penstock.tables.rollup.numbers import (
    CLOSED,
    CLOSED_PORTIONS,
    CLOSED_UNTIL,
    JOINED,
    LATE,
    SINCE,
    UPDATED,
    number_key,
    number_of,
)
from penstock.tables.rollup.schema import WINDOWS_GROUP_ROWS_MAX
from penstock.tables.rollup.spec import LatePolicy, RollupSpec

TASK_ROWS_MIN = 200_000
"""Of partials: for fewer another task is not worth its start."""
SLICE_ROWS_MAX = 500_000
"""Of partials that a task takes together, if their buckets are about equal."""


class WindowsRewrittenError(TransientError):
    """Another process replaced files of closed windows that a portion replaces too: it has to be done again."""


@dataclass(frozen=True, slots=True)
class StagedPortion:
    """What the Spark jobs of a portion leave for its commit."""

    options: WriteOptions
    files: tuple[StagedFile, ...]
    replaced: tuple[ActiveFile, ...]
    """Files whose rows are in `files`, as far as they were not updated."""
    rows: int
    """Of windows that were closed."""
    updated: int
    """Rows of windows that were closed before."""
    late: Counter[str]
    """Points by interval."""


def stage_portion(
    spark: SparkSession, spec: RollupSpec, partials: Table, windows: Table, portion: ClosePortion
) -> StagedPortion:
    """Write the files of a portion; they are not visible yet."""
    options = write_options(windows, WINDOWS_GROUP_ROWS_MAX)
    active = {file.path: file for file in windows.active_files(SPANNED)}
    flow = CloseFlow(
        partials=partials.storage(),
        windows=options,
        aggregates=spec.aggregates,
        owner=owner_tag(windows.job),
        portion=portion,
        old_files=tuple(active.values() if portion.late_files else ()) if spec.late is LatePolicy.UPDATE else None,
    )
    shares = shares_of(portion.buckets, portion.rows, spark)
    reports = run_each(spark, partial(close_share, flow), shares, CloseReport)
    files = [file for report in reports for file in report.files]
    updates = [file for report in reports for file in report.updates]
    replaced = sum((Counter(report.replaced) for report in reports), Counter[str]())
    kept = _rewritten(spark, flow, {active[path]: rows for path, rows in replaced.items()}, updates)
    return StagedPortion(
        options,
        files=(*files, *updates, *kept),
        replaced=tuple(active[path] for path in replaced),
        rows=sum(file.rows for file in files),
        updated=sum(file.rows for file in updates),
        late=sum((Counter(report.late) for report in reports), Counter[str]()),
    )


def _rewritten(
    spark: SparkSession, flow: CloseFlow, replaced: dict[ActiveFile, int], updates: Sequence[StagedFile]
) -> list[StagedFile]:
    """The rows of these files that stay, in new files."""
    if not replaced:
        return []
    updates_of: dict[tuple[str | None, ...], list[str]] = {}
    for update in updates:
        values = tuple(update.partition_values[name] for name in flow.windows.partition_by)
        updates_of.setdefault(values, []).append(update.path)
    pieces = [(file, updates_of[file.values]) for file in replaced]
    reports = run_each(spark, partial(rewrite, flow), pieces, CloseReport)
    left_out = sum(sum(report.replaced.values()) for report in reports)
    if left_out != sum(replaced.values()):
        raise InvariantError(
            f"close {flow.portion.close} has {sum(replaced.values())} rows of {flow.windows.table_url} to replace "
            f"and left out {left_out}"
        )
    return [file for report in reports for file in report.files]


def shares_of(buckets: range, rows: int, spark: SparkSession) -> list[tuple[range, ...]]:
    """The buckets of each task, in pieces of which each has a bounded number of rows."""
    with spark_errors(spark):
        cores = int(spark.sparkContext.defaultParallelism)
    tasks = max(1, min(cores, -(-rows // TASK_ROWS_MIN)))
    slices = -(-rows // (tasks * SLICE_ROWS_MAX))
    return [tuple(cut(share, slices)) for share in cut(buckets, tasks)]


def land_portion(windows: Table, portion: ClosePortion, staged: StagedPortion) -> bool:
    """Commit the rows of a portion; False if it has landed already, whichever process did it."""

    def decide() -> Change | None:
        if (number_of(windows, CLOSED), number_of(windows, CLOSED_PORTIONS)) != (portion.close - 1, portion.portion):
            return None
        windows.check_schema(staged.options.schema)
        _check_active(windows, staged)
        check_staged(windows.storage(), staged.files)
        removes = [windows.remove_action(file) for file in staged.replaced]
        return Change(
            actions=[*removes, *map(windows.add_action, staged.files)],
            transactions=_numbers(windows, portion, staged),
            metadata=Provenance(
                kind="close",
                job=windows.job,
                batch=f"{portion.close}.{portion.portion}",
                rows=staged.rows + staged.updated,
                size_bytes=sum(file.size_bytes for file in staged.files),
                files_removed=len(removes),
                files_added=len(staged.files),
            ).metadata,
        )

    return windows.swap(decide)


def _check_active(windows: Table, staged: StagedPortion) -> None:
    if not staged.replaced:
        return
    refuse_deletion_vectors(windows.handle, windows.spec.path)
    gone = set(staged.replaced) - set(windows.active_files())
    if gone:
        raise WindowsRewrittenError(
            f"{len(gone)} files of {windows.spec.path} were replaced while late points were added to their windows",
            hint="another writer or a compaction; it will be tried again",
        )


def _numbers(windows: Table, portion: ClosePortion, staged: StagedPortion) -> dict[str, int]:
    """How far the close is, which intervals take part in it, and what it adds to the sums."""
    job, landed = windows.job, portion.portion + 1
    numbers = {number_key(job, CLOSED_PORTIONS): landed % portion.portions}
    if landed == portion.portions:
        numbers |= {number_key(job, CLOSED): portion.close, number_key(job, CLOSED_UNTIL): portion.until_ms}
    for interval in (span.window.name for span in portion.spans):
        # An interval that the job did not have in the close before begins with this one.
        if number_of(windows, JOINED, interval) < portion.close - 1 or not number_of(windows, SINCE, interval):
            numbers[number_key(job, SINCE, interval)] = portion.close
        numbers[number_key(job, JOINED, interval)] = portion.close
        if staged.late[interval]:
            numbers[number_key(job, LATE, interval)] = number_of(windows, LATE, interval) + staged.late[interval]
    if staged.updated:
        numbers[number_key(job, UPDATED)] = number_of(windows, UPDATED) + staged.updated
    return numbers


def windows_rules(windows: Table) -> NameRules:
    """Which files that no version names can go (RULES C7): a close commits nothing after it is complete."""
    owner, closed = owner_tag(windows.job), number_of(windows, CLOSED)

    def of_close(name: ClosedName) -> Verdict:
        if name.owner != owner:
            return Kept.OTHERS
        return Dead.CLOSED if name.close <= closed else Kept.COMMITTABLE

    return NameRules(lambda _: Kept.UNKNOWN, by_version(windows), lambda _: Kept.UNKNOWN, of_close)
