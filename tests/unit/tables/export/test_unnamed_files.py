"""Logs that were lost, or that are older than the files, are noticed before anything is written twice (RULES E6)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.tables.export.finishing import refuse_unnamed_files
from penstock.tables.export.kind import existing
from penstock.tables.export.logs import ExportLogs
from tests.support.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot, filled, job_file
from tests.unit.tables.export.processes import compacted


def keep_copy(root: ExportRoot) -> None:
    """Keep a copy of the logs as of now."""
    shutil.copytree(root.lake / "_penstock", root.lake.parent / "older")


def put_back_older(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "_penstock")
    shutil.copytree(root.lake.parent / "older", root.lake / "_penstock")


def start(root: ExportRoot) -> None:
    """What a process does before it writes anything."""
    logs = ExportLogs(root.job, root.environment)
    refuse_unnamed_files(logs)
    logs.agree_on_types()


@pytest.mark.parametrize("what", ["_penstock", "_penstock/shop", "_penstock/shop/_delta_log", "_penstock/shop/types"])
def test_lost_logs_are_refused_with_the_command_that_restores_them(tmp_path: Path, what: str) -> None:
    root = filled(tmp_path)
    shutil.rmtree(root.lake / what)
    with pytest.raises(UserError) as refused:
        start(root)
    assert "penstock rebuild" in refused.value.hint


@pytest.mark.parametrize("what", ["_penstock", "_penstock/shop/_delta_log"])
def test_a_lost_job_log_of_delta_tables_is_refused(tmp_path: Path, what: str) -> None:
    root = filled(tmp_path, export="format: delta")
    shutil.rmtree(root.lake / what)
    with pytest.raises(UserError, match="whose own log is missing") as refused:
        start(root)
    assert "penstock rebuild" in refused.value.hint


def test_an_older_copy_of_the_logs_is_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    keep_copy(root)
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    put_back_older(root)
    with pytest.raises(UserError, match=rf"order/day={WEDNESDAY}/shop\.0\.39\.parquet"):
        start(root)
    with pytest.raises(UserError, match=r"shop\.0\.39\.parquet"):
        existing(root.job, Environment())


def test_an_older_copy_of_the_log_of_one_type_is_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    keep_copy(root)
    root.write(ZERO, 34, 40, {("order", WEDNESDAY): range(34, 40)})
    shutil.rmtree(root.lake / "_penstock/shop/types/order")
    shutil.copytree(root.lake.parent / "older/shop/types/order", root.lake / "_penstock/shop/types/order")
    with pytest.raises(UserError, match=rf"order/day={WEDNESDAY}/shop\.0\.39\.parquet"):
        start(root)


def test_a_partition_that_the_logs_do_not_know_is_noticed(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 10, {("order", MONDAY): range(10)})
    keep_copy(root)
    root.start(ONE)
    root.write(ONE, 0, 5, {("order", MONDAY): range(5)})
    put_back_older(root)
    with pytest.raises(UserError, match=r"shop\.1\.4\.parquet"):
        start(root)


def test_a_file_of_a_type_beyond_its_own_older_position_is_noticed(tmp_path: Path) -> None:
    root = ExportRoot(job_file(tmp_path))
    root.start(ZERO)
    root.write(ZERO, 0, 20, {("order", MONDAY): range(10)}, deferred={"click": range(10, 20)})
    keep_copy(root)
    root.catch_up(ZERO, {"click": 10}, 20, {("click", MONDAY): range(10, 20)})
    put_back_older(root)
    with pytest.raises(UserError, match=r"click/day=.*/shop\.0\.19\.parquet"):
        start(root)


def test_types_that_lag_days_that_are_complete_and_a_restart_are_not_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    root.write(ZERO, 34, 50, {("order", WEDNESDAY): range(34, 40)}, deferred={"click": range(40, 50)})
    root.write(ZERO, 50, 60, {("order", MONDAY): range(50, 55)}, deferred={"click": range(55, 60)})
    root.catch_up(ZERO, {"click": 40}, 45, {("click", WEDNESDAY): range(40, 45)})
    start(root)
    assert compacted(root.open(), all_days=True).files_added
    start(root)


def test_a_file_that_another_program_put_under_such_a_name_is_not_refused(tmp_path: Path) -> None:
    root = filled(tmp_path)
    pq.write_table(pa.table({"id": [1]}), root.lake / "order" / f"day={WEDNESDAY}" / "shop.0.99.parquet")
    start(root)


def test_a_type_whose_folder_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    root = filled(tmp_path)
    shutil.rmtree(root.lake / "click")
    (root.lake / "click").write_text("in the way")
    start(root)
