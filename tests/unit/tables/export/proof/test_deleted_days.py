"""Days that a person deleted as a whole are told, and a ledger that is older than its files is named."""

from __future__ import annotations

import shutil

from penstock.tables.export.compact import compact
from tests.export_root import MONDAY, ONE, WEDNESDAY, ZERO, ExportRoot
from tests.unit.tables.export.proof.damaged import checked, failed

ROWS = 2 * 34
"""Of `filled`: 34 in each of two partitions."""


def test_a_complete_day_that_was_deleted_as_a_whole_is_told_and_no_fault(root: ExportRoot) -> None:
    shutil.rmtree(root.lake / "order" / f"day={MONDAY}")
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["rows"].facts == {"rows": ROWS - 36, "quarantine": 0}
    [told] = checks["rows"].warnings
    assert told == f"36 rows of 1 complete days were deleted with their folders and are not checked: order {MONDAY}"
    root.write(ONE, 34, 40, {("click", WEDNESDAY): range(34, 40)})
    assert failed(checked(root.job)) == [], "also after it went on"


def test_a_deleted_day_may_have_been_compacted_and_may_get_late_rows(root: ExportRoot) -> None:
    compact(root.table)
    root.write(ZERO, 34, 40, {("click", WEDNESDAY): range(34, 40)})
    shutil.rmtree(root.lake / "order" / f"day={MONDAY}")
    root.write(ONE, 34, 40, {("order", MONDAY): range(34, 40)})
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["rows"].facts["rows"] == ROWS + 12 - 36
    (root.lake / "order" / f"day={MONDAY}" / "shop.1.39.parquet").unlink()
    assert failed(checked(root.job)) == ["rows", "offsets"], "the day is open again: that file is lost"


def test_a_day_that_is_not_complete_and_a_part_of_a_complete_one_are_lost_not_deleted(root: ExportRoot) -> None:
    shutil.move(root.lake / "order" / f"day={WEDNESDAY}", root.lake / "aside")
    assert failed(checked(root.job)) == ["rows", "offsets"]
    shutil.move(root.lake / "aside", root.lake / "order" / f"day={WEDNESDAY}")
    assert failed(checked(root.job)) == []
    for name in ("shop.0.5.parquet", "shop.0.15.parquet", "shop.0.25.parquet"):
        (root.lake / "order" / f"day={MONDAY}" / name).unlink()
    assert failed(checked(root.job)) == ["rows", "offsets"]


def test_an_older_copy_of_the_ledger_is_told_from_a_damaged_one(root: ExportRoot) -> None:
    shutil.copytree(root.lake / "_penstock", root.lake.parent / "older")
    root.write(ONE, 34, 40, {("click", WEDNESDAY): range(34, 40)})
    shutil.rmtree(root.lake / "_penstock")
    shutil.copytree(root.lake.parent / "older", root.lake / "_penstock")
    detail = checked(root.job)["rows"].detail
    assert "1 files are beyond the positions of the ledger, which is an older copy" in detail
    assert "--rebuild" in detail
