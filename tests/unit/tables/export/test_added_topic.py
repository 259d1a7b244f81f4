"""Topics and clusters that are added to an export later: existing files still belong to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.logs.log import Partition
from penstock.tables.export.finishing import refuse_unnamed_files
from penstock.tables.export.kind import existing
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.support.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot, filled, job_file, rows_in
from tests.unit.tables.export.processes import compacted, quiet

MALL = Partition("mall", "topicM", 0)
PRESENT = (ZERO, ONE, MALL)


def with_second_topic(folder: Path) -> ExportRoot:
    """An export of one topic whose job file names another later; its first rows are of Monday too."""
    before = filled(folder)
    root = ExportRoot(job_file(folder, topic="shop, mall"), expected=before.expected)
    root.start(MALL)
    root.write(MALL, 0, 10, {("order", MONDAY): range(6), ("click", MONDAY): range(6, 10)}, watermark=WEDNESDAY)
    return root


def test_a_second_topic_has_names_and_positions_of_its_own(tmp_path: Path) -> None:
    root = with_second_topic(tmp_path)
    assert {partition: root.state.of(partition).position for partition in (ZERO, ONE, MALL)} == {
        ZERO: 34,
        ONE: 34,
        MALL: 10,
    }
    assert f"order/day={MONDAY}/mall.0.5.parquet" in root.files()
    assert f"order/day={MONDAY}/shop.0.5.parquet" in root.files()
    assert rows_in(root.lake) == root.expected
    refuse_unnamed_files(root.open().logs)


def test_files_from_before_the_second_topic_are_compacted(tmp_path: Path) -> None:
    root = with_second_topic(tmp_path)
    report = compacted(root.table, all_days=True)
    assert (report.files_removed, report.files_added) == (7, 1), "six of the first topic, one of the second"
    assert rows_in(root.lake) == root.expected


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_rebuild_finds_the_files_of_both_topics(tmp_path: Path, is_compacted: bool) -> None:
    root = with_second_topic(tmp_path)
    if is_compacted:
        compacted(root.table, all_days=True)
    shutil.rmtree(root.lake / "_penstock")
    assert rebuild(ExportLogs(root.job, quiet()), PRESENT).ok
    state = ExportLogs(root.job, quiet()).state()
    assert {partition: state.of(partition).position for partition in PRESENT} == {ZERO: 30, ONE: 30, MALL: 10}


def test_a_cluster_that_is_named_later_is_refused_by_every_command(tmp_path: Path) -> None:
    root = filled(tmp_path)
    named = job_file(tmp_path, export="cluster: eu")
    job = job_of(load_job(named), ExportSpec)
    with pytest.raises(UserError) as refused:
        existing(job, Environment())
    assert "shop." in refused.value.primary
    assert "table.export.cluster" in refused.value.hint
    with pytest.raises(UserError):
        refuse_unnamed_files(ExportLogs(job, Environment()))
    assert rows_in(root.lake) == root.expected
