"""The root of an export with three records in quarantine, and replay runs that die at any step; without Spark."""

from __future__ import annotations

from pathlib import Path

from penstock.environment import Environment, new_batch_id
from penstock.flow.write.offset_ranges import ranges_of
from penstock.tables.export.replays import LedgerRuns, land_replay
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.replay import ReplayRun, finish_replay, remove_run
from penstock.tables.quarantine.rows import count_rows
from penstock.tables.quarantine.table import open_quarantine
from tests.export_root import MONDAY, WEDNESDAY, ZERO, ExportRoot, Rows, job_file
from tests.pipes import crash_at
from tests.quarantine_url import export_quarantine
from tests.unit.tables.export.proof.damaged import append_bad, write_with_bad

BAD = (3, 4, 8)
"""Quarantined by the slice `[0, 10)`."""


def with_bad(folder: Path, **texts: str) -> ExportRoot:
    """Monday and Wednesday of one partition, so that Monday is complete; three records of Monday are in quarantine."""
    root = ExportRoot(job_file(folder, **texts))
    root.start(ZERO)
    good = [each for each in range(10) if each not in BAD]
    write_with_bad(root, ZERO, (0, 10), {("order", MONDAY): good[:4], ("click", MONDAY): good[4:]}, BAD)
    root.expected.update([("order", 0, each) for each in good[:4]] + [("click", 0, each) for each in good[4:]])
    append_bad(root)
    rows = {("order", WEDNESDAY): range(10, 12), ("click", WEDNESDAY): range(12, 14)}
    root.write(ZERO, 10, 14, rows, watermark=WEDNESDAY)
    return root


def with_later_type(root: ExportRoot) -> ExportRoot:
    """The same root under a job file that names one more type."""
    text = root.job_path.read_text()
    view = "  view: {schema: {at: string, id: long}, start: beginning}\n"
    root.job_path.write_text(text.replace("table:", f"{view}table:"))
    return ExportRoot(root.job_path)


def replay(
    root: ExportRoot,
    rows: Rows,
    run: int = 1,
    *,
    step: str = "",
    removes: bool = True,
    table: ExportTable | None = None,
) -> bool:
    """A run that takes these rows out of quarantine; it dies at a step, or before it removes them."""
    found = ReplayRun(run, new_batch_id(), {ZERO: ranges_of(each for offsets in rows.values() for each in offsets)})
    shares = {ZERO: root.stage_replay(ZERO, run, rows)}
    environment = Environment(reach=crash_at(step), sleep=lambda _: None)
    landed = land_replay(table or root.open(environment), found, shares)
    if landed and removes:
        quarantine = open_quarantine(root.job, export_quarantine(root.job))
        assert quarantine is not None
        remove_run(quarantine, found)
    if landed:
        root.expected.update((name, 0, each) for (name, _), offsets in rows.items() for each in offsets)
    return landed


def in_quarantine(root: ExportRoot) -> int:
    quarantine = open_quarantine(root.job, export_quarantine(root.job))
    return 0 if quarantine is None else count_rows(quarantine)


def restart(root: ExportRoot) -> int:
    """What the next process of the job does first; returns the rows that it takes out of quarantine."""
    table = root.open()
    table.agree_on_types()
    return finish_replay(LedgerRuns(table), open_quarantine(root.job, export_quarantine(root.job)))
