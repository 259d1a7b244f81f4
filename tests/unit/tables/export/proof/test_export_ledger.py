"""Whatever is wrong with the ledger of an export is found: in entries, in snapshots, and after a rebuild."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.job.spec import job_of
from penstock.logs.log import Bounds
from penstock.proof.findings import ViolationKind
from penstock.tables.export.proof.facts import BrokenLedger, read_ledger
from penstock.tables.export.rebuild.rebuild import rebuild
from penstock.tables.export.spec import ExportSpec
from tests.export_root import MONDAY, ONE, TUESDAY, ZERO, ExportRoot
from tests.unit.tables.export.proof.damaged import (
    append_bad,
    at,
    bad_root,
    checked,
    edit_json,
    entry_path,
    failed,
    first_violation,
)


def snapshotted(root: ExportRoot) -> Path:
    """A snapshot of the state before the newest entry, as every twentieth entry leaves one; its path."""
    before = root.state
    root.write(ZERO, 34, 35, {("order", TUESDAY): [34]})
    root.table.ledger.keep_snapshot(before)
    return root.lake / root.table.places.snapshot(before.number)


def test_a_snapshot_is_as_good_as_the_entries_that_it_folds(root: ExportRoot) -> None:
    snapshotted(root)
    assert failed(checked(root.job)) == []


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        ({"written": 33, "filtered": 1}, ["slices", "rows", "offsets"]),
        ({"read": 35}, ["totals", "slices"]),
        ({"deferred": 1, "read": 35}, ["totals", "slices"]),
        ({"written": 33}, ["totals", "slices", "rows", "offsets"]),
    ],
)
def test_totals_of_a_snapshot_that_are_off_are_found(
    root: ExportRoot, change: dict[str, int], checks: list[str]
) -> None:
    def edit(body: Any) -> None:
        body["snapshot"]["partitions"][0][1]["totals"] |= change

    edit_json(snapshotted(root), edit)
    found = checked(root.job)
    assert failed(found) == checks
    assert first_violation(found) == at(0, 0, ViolationKind.NOT_COUNTED, end=35)


def test_a_position_of_a_snapshot_that_is_too_far_leaves_a_hole(root: ExportRoot) -> None:
    def edit(body: Any) -> None:
        body["snapshot"]["partitions"][1][1]["position"] = 40

    edit_json(snapshotted(root), edit)
    found = checked(root.job)
    assert failed(found) == ["totals", "slices", "offsets"]
    assert found["slices"].violation == at(1, 34, ViolationKind.HOLE)


def test_rows_of_a_type_that_a_snapshot_miscounts_are_found(root: ExportRoot) -> None:
    def edit(body: Any) -> None:
        body["snapshot"]["types"]["click"]["rows"] += 1

    edit_json(snapshotted(root), edit)
    found = checked(root.job)
    assert failed(found) == ["rows"]
    assert "type click has 24 rows, 25 are counted" in found["rows"].detail


@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_entry_that_is_gone_below_a_snapshot_is_named(root: ExportRoot, number: int) -> None:
    snapshotted(root)
    entry_path(root, number).unlink()
    found = checked(root.job)
    assert "slices" in failed(found)
    assert f"entry {number} is gone" in found["slices"].detail


def test_an_entry_that_is_gone_at_the_end_of_the_chain_is_named(root: ExportRoot) -> None:
    """A process that reads the chain sees its end there, and would write the number again."""
    number = root.state.number - 1
    entry_path(root, number).unlink()
    found = checked(root.job)
    assert failed(found)[0] == "slices"
    assert f"entry {number} is gone" in found["slices"].detail


def test_a_hole_in_the_chain_is_named_with_its_offset(root: ExportRoot) -> None:
    """Entry 4 says that its slice begins at 12 instead of 10; nobody can fold that."""

    def edit(body: Any) -> None:
        [piece] = body["entry"]["slices"]
        assert piece["start"] == 10
        piece["start"] = 12

    edit_json(entry_path(root, 4), edit)
    broken = read_ledger(job_of(root.job, ExportSpec))
    assert isinstance(broken, BrokenLedger)
    assert not broken.slices.ok
    assert broken.slices.violation == at(0, 10, ViolationKind.HOLE)


def test_an_overlap_below_a_snapshot_is_named_with_its_offset(root: ExportRoot) -> None:
    def edit(body: Any) -> None:
        body["entry"]["slices"][0]["start"] = 8

    snapshotted(root)
    edit_json(entry_path(root, 4), edit)
    found = checked(root.job)
    assert failed(found) == ["slices"]
    assert found["slices"].violation == at(0, 8, ViolationKind.OVERLAP)


def test_an_entry_whose_counts_are_off_is_named(root: ExportRoot) -> None:
    def edit(body: Any) -> None:
        body["entry"]["slices"][0]["written"]["order"]["rows"] = 7

    snapshotted(root)
    edit_json(entry_path(root, 4), edit)
    found = checked(root.job)
    assert failed(found) == ["slices"]
    assert found["slices"].violation == at(0, 10, ViolationKind.NOT_COUNTED, end=20)


def test_a_ledger_that_was_made_again_from_its_files_is_proved(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "_penstock" / root.job.name)
    report = rebuild(root.open(), {ZERO: Bounds(0, 34), ONE: Bounds(0, 34)})
    assert report.ok
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["slices"].facts["whole_history"] == 0
    again = ExportRoot(root.job_path)
    again.write(ZERO, 34, 36, {("order", TUESDAY): [34, 35]})
    assert failed(checked(root.job)) == []
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    assert failed(checked(root.job)) == ["rows", "offsets"]


def test_records_that_were_bad_before_the_ledger_was_lost_are_no_alarm(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    append_bad(root)
    shutil.rmtree(root.lake / "_penstock" / root.job.name)
    assert rebuild(root.open(), {ZERO: Bounds(0, 10)}).ok
    checks = checked(root.job)
    assert failed(checks) == []
    assert len(checks["rows"].warnings) == 1
