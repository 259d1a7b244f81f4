"""The root of an export with three records in quarantine, and replay runs that die at any step; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.manifest import Counts, ranges_of
from penstock.lake.delta.provenance import ReplayedOffsets, placed
from penstock.quarantine.replay import ReplayRun, StagedRun, finish_replay, remove_run
from penstock.quarantine.table import open_quarantine
from penstock.tables.export.export import Export
from penstock.tables.export.writer import ExportRuns, ExportTarget
from tests.support.export_root import MONDAY, WEDNESDAY, ZERO, ExportRoot, Rows, job_file
from tests.support.quarantine_url import export_quarantine
from tests.unit.tables.export.bad_records import write_with_bad
from tests.unit.tables.export.processes import quiet

BAD = (3, 4, 8)
"""Quarantined by the slice `[0, 10)`."""


def with_bad(folder: Path, **texts: str) -> ExportRoot:
    """Monday and Wednesday of one partition, so that Monday is complete; three records of Monday are in quarantine."""
    root = ExportRoot(job_file(folder, **texts))
    root.start(ZERO)
    good = [offset for offset in range(10) if offset not in BAD]
    write_with_bad(root, ZERO, (0, 10), {("order", MONDAY): good[:4], ("click", MONDAY): good[4:]}, BAD)
    rows = {("order", WEDNESDAY): range(10, 12), ("click", WEDNESDAY): range(12, 14)}
    root.write(ZERO, 10, 14, rows, watermark=WEDNESDAY)
    return root


def with_later_type(root: ExportRoot) -> ExportRoot:
    """The same root under a job file that names one more type."""
    text = root.job_path.read_text()
    view = "  view: {schema: {at: string, id: long}}\n"
    root.job_path.write_text(text.replace("table:", f"{view}table:"))
    return ExportRoot(root.job_path, expected=root.expected)


def staged_run(root: ExportRoot, rows: Rows, number: int = 1) -> StagedRun[Any]:
    """The files of a run that takes these rows out of quarantine."""
    offsets = ranges_of(offset for of_type in rows.values() for offset in of_type)
    shares = root.stage_replay(ZERO, number, rows)
    listed = [ReplayedOffsets(*placed(ZERO), share.replayed, name, share.files) for name, share in shares.items()]
    return StagedRun(ReplayRun(number, new_batch_id(), {ZERO: offsets}), Counts(), tuple(listed))


def commit_run(root: ExportRoot, staged: StagedRun[Any], table: Export | None = None) -> None:
    """Commit a run; it raises `OvertakenError` if another one came first."""
    ExportTarget(table or root.open(), cast(Any, None)).commit(staged)


def replay(
    root: ExportRoot, rows: Rows, number: int = 1, *, environment: Environment | None = None, removes: bool = True
) -> None:
    """A whole run: its rows are landed, and removed from quarantine."""
    staged = staged_run(root, rows, number)
    commit_run(root, staged, root.open(environment or quiet()))
    if removes:
        quarantine = open_quarantine(root.job, export_quarantine(root.job))
        assert quarantine is not None
        remove_run(quarantine, staged.run)
    root.expected.update((name, 0, offset) for (name, _), offsets in rows.items() for offset in offsets)


def finish_runs(root: ExportRoot) -> int:
    """What the next process of the job does first; returns the rows that it takes out of quarantine."""
    root.table = root.open()
    removed = finish_replay(ExportRuns(root.table), open_quarantine(root.job, export_quarantine(root.job)))
    root.table.finish_pending([ZERO])
    return removed
