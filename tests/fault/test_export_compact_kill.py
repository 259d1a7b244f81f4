"""`kill -9` of a real `penstock compact` of an export at every step: the next one finishes it, every row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.job.spec import job_of
from penstock.lake.reports import CompactReport
from penstock.tables.export.spec import ExportSpec
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of
from tests.support.export_root import MONDAY, WEDNESDAY, ZERO, ExportRoot, filled, job_file, rows_in
from tests.support.jobs import KILLED
from tests.support.processes import command_json, penstock

STEPS = (
    "compact_staged",
    "compact_checked",
    "removing",
    "removing:2",
    "removed",
    "renaming",
    "renamed",
    "compact_committed",
)
BEFORE_THE_COMMIT = ("compact_staged", "compact_checked")


def failpoint(step: str) -> str:
    name, _, visit = step.partition(":")
    return f"{name}:kill:{visit or 1}"


def compact(root: ExportRoot) -> CompactReport:
    job = job_of(root.job, ExportSpec)
    return kind_of(job).compact(job, CompactRequest(), root.environment, None)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_compaction_the_next_process_finishes_it(tmp_path: Path, step: str) -> None:
    root = filled(tmp_path)
    with penstock("compact", str(root.job_path), failpoint=failpoint(step)) as process:
        assert process.exit_code() == KILLED, process.last_words
    rows = rows_in(root.lake)
    assert set(rows.values()) <= {1}, "a reader sees a row twice"
    if step in BEFORE_THE_COMMIT:
        assert rows == root.expected
    assert compact(root).failed == ()
    assert rows_in(root.lake) == root.expected
    assert sum(path.startswith(f"order/day={MONDAY}") for path in root.files()) == 1
    assert compact(root).files_removed == 0


def test_killed_repeatedly_the_job_still_completes(tmp_path: Path) -> None:
    """Each process finishes the work of the one before, and is then killed."""
    root = filled(tmp_path)
    for step in ("removing:2", "removing:4", "renaming"):
        with penstock("compact", str(root.job_path), failpoint=failpoint(step)) as process:
            assert process.exit_code() == KILLED, process.last_words
        assert set(rows_in(root.lake).values()) <= {1}
    command_json("compact", str(root.job_path))
    assert rows_in(root.lake) == root.expected


def test_a_batch_after_a_killed_compaction_finishes_it_first(tmp_path: Path) -> None:
    """The next process of the job finishes what is pending before it plans anything (RULES E4)."""
    root = filled(tmp_path)
    with penstock("compact", str(root.job_path), failpoint="removing:kill:3") as process:
        assert process.exit_code() == KILLED, process.last_words
    assert sum(rows_in(root.lake).values()) < sum(root.expected.values())
    root.table = root.open()
    root.table.finish_pending([ZERO])
    root.write(ZERO, 34, 40, {("click", WEDNESDAY): range(34, 40)})
    assert rows_in(root.lake) == root.expected


def test_vacuum_keeps_files_that_a_killed_compaction_still_needs(tmp_path: Path) -> None:
    root = filled(tmp_path)
    with penstock("compact", str(root.job_path), failpoint="removed:kill") as process:
        assert process.exit_code() == KILLED, process.last_words
    assert command_json("vacuum", str(root.job_path))["deleted"] == []
    command_json("compact", str(root.job_path))
    assert rows_in(root.lake) == root.expected


def test_a_reader_during_compaction_may_miss_rows_but_never_sees_one_twice(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    for start in range(0, 600, 5):
        root.write(ZERO, start, start + 5, {("order", MONDAY): range(start, start + 5)})
    root.write(ZERO, 600, 601, {("order", WEDNESDAY): [600]}, watermark=WEDNESDAY)
    looks = 0
    with penstock("compact", str(root.job_path), "--json") as process:
        while not process.ended(0):
            rows = rows_in(root.lake)
            assert set(rows.values()) <= {1}
            assert not rows - root.expected
            looks += 1
        assert process.exit_code() == 0, process.last_words
    assert looks > 1
    assert rows_in(root.lake) == root.expected
    assert len(root.files()) == 2
