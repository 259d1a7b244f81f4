"""Processes of an export that die at a step, act at one, or begin after another; without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from penstock.environment import Environment
from penstock.failpoints import AtStep
from penstock.lake.compaction import EVERYTHING, CompactionLimits
from penstock.lake.reports import CompactReport
from penstock.tables.export.export import ExportTable
from penstock.tables.export.upkeep import compact
from tests.support.export_root import ONE, ZERO, ExportRoot
from tests.support.pipes import CrashError, once_at


def quiet(at_step: AtStep | None = None, now: Callable[[], float] | None = None) -> Environment:
    """An environment in which nothing waits."""
    environment = Environment(sleep=lambda _: None)
    if at_step is not None:
        environment.at_step = at_step
    if now is not None:
        environment.now = now
    return environment


def dying_at(step: str, visit: int = 1) -> Environment:
    """Of a process that ends when it reaches a step for the n-th time."""
    visits = itertools.count(1)

    def at_step(reached: str) -> None:
        # Types are committed by several threads: only one of them may be the n-th.
        if reached == step and next(visits) == visit:
            raise CrashError(step)

    return quiet(at_step)


def acting_at(step: str, act: Callable[[], object]) -> Environment:
    """Of a process that another one overtakes when it reaches a step for the first time."""
    return quiet(once_at(step, act))


def restarted(root: ExportRoot) -> ExportRoot:
    """The root as the next process finds it, which has finished what others left."""
    root.table = root.open(quiet())
    root.table.finish_pending([ZERO, ONE])
    return root


def compacted(
    table: ExportTable,
    target_bytes: int | None = None,
    *,
    all_days: bool = False,
    effort: CompactionLimits = EVERYTHING,
) -> CompactReport:
    """A compaction with the size of the job file."""
    file_bytes = target_bytes or table.job.flush.min_bytes_per_file
    return compact(table, file_bytes, all_days=all_days, progress=None, effort=effort)
