"""A ledger that is older than the files, or that was lost, is noticed before anything is written twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.logs.log import Bounds
from penstock.tables.export.compact import compact
from penstock.tables.export.ledger.names import day_folder
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.day_answers import day_answers
from tests.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot, filled, job_file, rows_in


def put_back_older(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "_penstock")
    shutil.copytree(root.lake.parent / "older", root.lake / "_penstock")


def kept(root: ExportRoot) -> None:
    """Keep a copy of the ledger as of now."""
    shutil.copytree(root.lake / "_penstock", root.lake.parent / "older")


def test_an_older_copy_of_the_ledger_is_refused_and_can_be_rebuilt(tmp_path: Path) -> None:
    root = filled(tmp_path)
    kept(root)
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    put_back_older(root)
    with pytest.raises(UserError, match=rf"order/day={WEDNESDAY}/shop\.0\.39\.parquet") as refused:
        root.open().agree_on_types()
    assert "--rebuild" in refused.value.hint
    with pytest.raises(UserError, match=r"shop\.0\.39\.parquet"):
        compact(root.open())
    home = root.lake / "_penstock" / "shop"
    for name in ("ledger", "snapshots"):
        shutil.rmtree(home / name, ignore_errors=True)
    (home / "last_snapshot.json").unlink(missing_ok=True)
    assert rebuild(root.open(), {ZERO: Bounds(0, 100), ONE: Bounds(0, 100)}).ok
    assert root.open().agree_on_types().of(ZERO).position == 40
    assert rows_in(root.lake) == root.expected


def test_a_compaction_that_the_ledger_does_not_know_is_noticed(tmp_path: Path) -> None:
    root = filled(tmp_path)
    for partition in (ZERO, ONE):
        root.write(partition, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    kept(root)
    compact(root.table, all_days=True)
    root.write(ZERO, 40, 41, {("click", "2026-03-09"): [40]}, watermark="2026-03-09")
    root.write(ONE, 40, 41, {("click", "2026-03-09"): [40]}, watermark="2026-03-09")
    compact(root.open())
    put_back_older(root)
    with pytest.raises(UserError, match=r"compacted~shop|2026-03-09"):
        root.open().agree_on_types()


def test_a_partition_that_the_ledger_does_not_know_is_noticed(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    kept(root)
    root.start(ONE)
    root.write(ONE, 0, 5, {("order", MONDAY): range(5)})
    put_back_older(root)
    with pytest.raises(UserError, match=r"shop\.1\.4\.parquet"):
        root.open().agree_on_types()


def test_a_file_of_a_type_beyond_its_own_older_position_is_noticed(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 20, {("order", MONDAY): range(10)}, left={"click": range(10, 20)})
    kept(root)
    root.catch_up(ZERO, {"click": 10}, 20, {("click", MONDAY): range(10, 20)})
    put_back_older(root)
    with pytest.raises(UserError, match=r"click/day=.*/shop\.0\.19\.parquet"):
        root.open().agree_on_types()


def test_types_that_are_behind_days_that_are_complete_and_a_restart_refuse_nothing(tmp_path: Path) -> None:
    root = filled(tmp_path)
    root.write(ZERO, 34, 50, {("order", WEDNESDAY): range(34, 40)}, left={"click": range(40, 50)})
    root.write(ZERO, 50, 60, {("order", MONDAY): range(50, 55)}, left={"click": range(55, 60)})
    root.catch_up(ZERO, {"click": 40}, 45, {("click", WEDNESDAY): range(40, 45)})
    compact(root.open(), all_days=True)
    root.open().agree_on_types()


def test_a_type_whose_folder_cannot_be_read_stops_nobody_else(tmp_path: Path) -> None:
    root = filled(tmp_path)
    shutil.rmtree(root.lake / "click")
    (root.lake / "click").write_text("in the way")
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 38), ("click", WEDNESDAY): [38, 39]})
    root.open().agree_on_types()
    assert [each.complete for each in day_answers(job_of(root.job, ExportSpec), WEDNESDAY)] == [False, False]


def test_a_lost_ledger_is_noticed_by_files_of_unknown_types_alone(tmp_path: Path) -> None:
    path = job_file(tmp_path)
    path.write_text(path.read_text().replace("by: field(type)", "by: field(type), unknown: table"))
    root = ExportRoot(path)
    other = next(name for name in root.table.export.all_types if name not in root.table.export.types)
    root.start(ZERO)
    root.write(ZERO, 0, 10, {(other, MONDAY): range(10)})
    shutil.rmtree(root.lake / "_penstock")
    with pytest.raises(UserError, match=day_folder(other, MONDAY)):
        root.open().agree_on_types()
