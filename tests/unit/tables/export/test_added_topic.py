"""Topics and clusters that are added to an export later: the files that are there stay its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.job.spec import job_of
from penstock.logs.log import Bounds, Partition
from penstock.tables.export.compact import compact
from penstock.tables.export.delta_types import open_export
from penstock.tables.export.kind import existing
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from penstock.tables.registry import load_job
from tests.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot, filled, job_file, rows_in
from tests.unit.tables.export.proof.damaged import checked, failed

MALL = Partition("mall", "topicM", 0)
LOG = {ZERO: Bounds(0, 100), ONE: Bounds(0, 100), MALL: Bounds(0, 100)}


def with_second_topic(folder: Path) -> ExportRoot:
    """An export of one topic whose job file names another later; its first rows are of Monday too."""
    before = filled(folder)
    root = ExportRoot(job_file(folder, topic="shop, mall"), expected=before.expected)
    root.start(MALL)
    root.write(MALL, 0, 10, {("order", MONDAY): range(6), ("click", MONDAY): range(6, 10)}, watermark=WEDNESDAY)
    return root


def test_a_second_topic_makes_no_file_a_strangers(tmp_path: Path) -> None:
    assert failed(checked(with_second_topic(tmp_path).job)) == []


def test_files_from_before_the_second_topic_are_compacted(tmp_path: Path) -> None:
    root = with_second_topic(tmp_path)
    report = compact(root.table, all_days=True)
    assert (report.files_removed, report.files_added) == (7, 1), "six of the first topic, one of the second"
    assert rows_in(root.lake) == root.expected
    assert failed(checked(root.job)) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_a_rebuild_finds_the_files_of_both_topics(tmp_path: Path, compacted: bool) -> None:
    root = with_second_topic(tmp_path)
    if compacted:
        compact(root.table, all_days=True)
    shutil.rmtree(root.lake / "_penstock")
    report = rebuild(root.open(), LOG)
    assert (report.ambiguities, report.rows) == ((), sum(root.expected.values()))
    state = root.open().state()
    assert {each: state.of(each).position for each in LOG} == {ZERO: 34, ONE: 34, MALL: 10}


def test_a_rebuild_finds_the_files_of_a_topic_that_the_job_no_longer_reads(tmp_path: Path) -> None:
    """Read again some day, it goes on where it was."""
    with_second_topic(tmp_path)
    root = ExportRoot(job_file(tmp_path, topic="mall"))
    shutil.rmtree(root.lake / "_penstock")
    assert rebuild(root.open(), {MALL: LOG[MALL]}).ambiguities == ()
    assert root.open().state().of(ZERO).position == 34


def test_a_rebuild_leaves_the_files_of_another_job_alone_also_where_all_claims_are_lost(tmp_path: Path) -> None:
    root = filled(tmp_path)
    other = ExportRoot(job_file(tmp_path, name="other", topic="mall"))
    other.start(MALL)
    other.write(MALL, 0, 10, {("order", MONDAY): range(10)})
    shutil.rmtree(root.lake / "_penstock")
    assert rebuild(root.open(), {ZERO: LOG[ZERO], ONE: LOG[ONE]}).ambiguities == ()
    assert root.open().state().of(MALL).position is None


def test_a_cluster_that_is_named_later_is_refused_by_every_command(tmp_path: Path) -> None:
    root = filled(tmp_path)
    named = job_file(tmp_path, export="cluster: eu")
    with pytest.raises(UserError) as refused:
        ExportRoot(named)
    assert ("shop." in refused.value.primary, "eu.shop." in refused.value.detail) == (True, True)
    assert "table.export.cluster" in refused.value.hint
    with pytest.raises(UserError):
        existing(job_of(load_job(named), ExportSpec), Environment())
    assert rows_in(root.lake) == root.expected


def test_a_rebuild_under_another_cluster_names_the_ambiguity(tmp_path: Path) -> None:
    """With the ledger the claims are lost too: only the footers tell that the files are ours."""
    root = filled(tmp_path)
    shutil.rmtree(root.lake / "_penstock")
    job = job_of(load_job(job_file(tmp_path, export="cluster: eu")), ExportSpec)
    report = rebuild(open_export(job, Environment()), LOG)
    assert report.state is None
    assert {"cluster" in each.reason for each in report.ambiguities} == {True}
