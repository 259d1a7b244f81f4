"""An export's root is proved against its ledger, and every damage to it is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.environment import Environment
from penstock.job.spec import job_of
from penstock.proof.files import GoneError
from penstock.proof.findings import Verdict, Violation, ViolationKind
from penstock.tables.export.compact import compact
from penstock.tables.export.proof.facts import read_ledger
from penstock.tables.export.proof.files import parquet_files
from penstock.tables.export.spec import ExportSpec
from tests.export_root import MONDAY, ONE, TUESDAY, WEDNESDAY, ZERO, ExportRoot, filled, job_file
from tests.quarantine_url import export_quarantine
from tests.unit.tables.export.proof.damaged import (
    append_bad,
    at,
    bad_root,
    checked,
    facts_of,
    failed,
    first_violation,
    rewrite_rows,
    write_with_bad,
)

ROWS = 2 * 34
"""Of `filled`: 34 in each of two partitions."""


class Crash(BaseException):
    """The process ends here."""


def crashing(at: str) -> Environment:
    def reach(step: str) -> None:
        if step == at:
            raise Crash(step)

    return Environment(sleep=lambda _: None, reach=reach)


def test_a_root_that_holds_each_record_once_is_proved(root: ExportRoot) -> None:
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["totals"].facts == {"read": ROWS}
    assert checks["slices"].facts == {"slices": 8, "whole_history": 1, "entries_read": root.state.number}
    assert checks["rows"].facts == {"rows": ROWS, "quarantine": 0}
    assert checks["offsets"].facts == {"offsets": ROWS}
    assert [check.warnings for check in checks.values()] == [(), (), (), ()]


def test_the_proof_is_the_same_in_many_small_passes(root: ExportRoot) -> None:
    assert failed(checked(root.job, offsets_per_pass_max=5)) == []
    (root.lake / "order" / f"day={MONDAY}" / "shop.1.15.parquet").unlink()
    assert first_violation(checked(root.job, offsets_per_pass_max=5)) == at(1, 10, ViolationKind.MISSING)


def test_without_a_ledger_nothing_is_proved(tmp_path: Path) -> None:
    job = ExportRoot(job_file(tmp_path)).job
    shutil.rmtree(tmp_path / "lake")
    assert read_ledger(job_of(job, ExportSpec)) is None


# files


def test_a_file_that_was_deleted_is_named_with_its_first_offset(root: ExportRoot) -> None:
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert f"click/day={MONDAY}/shop.0.19.parquet" in checks["rows"].detail
    assert "type click has 20 rows, 24 are counted" in checks["rows"].detail
    assert first_violation(checks) == at(0, 16, ViolationKind.MISSING)


def test_a_file_that_was_copied_under_another_name_of_ours_is_named(root: ExportRoot) -> None:
    folder = root.lake / "order" / f"day={MONDAY}"
    shutil.copy(folder / "shop.1.25.parquet", folder / "shop.1.99.parquet")
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert "1 files are not in the ledger: order/day=2026-03-02/shop.1.99.parquet" in checks["rows"].detail
    assert first_violation(checks) == at(1, 20, ViolationKind.TWICE)


@pytest.mark.parametrize(
    "place", [f"day={MONDAY}/backup.parquet", "backup.parquet", f"day={MONDAY}/0/shop.1.25.parquet"]
)
def test_a_file_of_no_job_that_readers_would_see_is_named(root: ExportRoot, place: str) -> None:
    target = root.lake / "order" / place
    target.parent.mkdir(exist_ok=True)
    shutil.copy(root.lake / "order" / f"day={MONDAY}" / "shop.1.25.parquet", target)
    checks = checked(root.job)
    assert failed(checks) == ["rows"]
    assert f"1 files are of no job: order/{place}" in checks["rows"].detail


def test_what_readers_pass_over_is_no_fault(root: ExportRoot) -> None:
    for name in ("_probe.1", "_SUCCESS", ".1.parquet.crc", "_old.parquet"):
        (root.lake / "order" / f"day={MONDAY}" / name).write_text("")
    assert failed(checked(root.job)) == []


def test_files_of_another_job_below_the_same_root_are_its_own_business(tmp_path: Path) -> None:
    one = filled(tmp_path, name="one", topic="shop", export="cluster: paris")
    other = filled(tmp_path, name="other", topic="shop", export="cluster: berlin")
    assert sorted({each.rsplit("/", 1)[-1].split(".")[0] for each in one.files()}) == ["berlin", "paris"]
    compact(other.table)
    assert [failed(checked(each.job)) for each in (one, other)] == [[], []]
    (one.lake / "order" / f"day={WEDNESDAY}" / "berlin.shop.1.33.parquet").unlink()
    assert [failed(checked(each.job)) for each in (one, other)] == [[], ["rows", "offsets"]]


def test_a_file_that_is_no_parquet_any_more_is_named(root: ExportRoot) -> None:
    (root.lake / "order" / f"day={WEDNESDAY}" / "shop.0.33.parquet").write_bytes(b"PAR1 and nothing else")
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert f"1 files cannot be read: order/day={WEDNESDAY}/shop.0.33.parquet" in checks["rows"].detail


def test_a_file_in_the_folder_of_another_type_is_found(root: ExportRoot) -> None:
    """All rows are there and all offsets once: only names and counts by type tell."""
    source = root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet"
    source.rename(root.lake / "order" / f"day={MONDAY}" / "shop.0.19.parquet")
    checks = checked(root.job)
    assert failed(checks) == ["rows"]
    assert "type order has 48 rows, 44 are counted" in checks["rows"].detail
    assert "type click has 20 rows, 24 are counted" in checks["rows"].detail


def test_a_row_whose_offset_was_doubled_is_named(root: ExportRoot) -> None:
    def double(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*rows[:3], {**rows[3], "kafka_offset": 12}, *rows[4:]]

    rewrite_rows(root.lake / "order" / f"day={MONDAY}" / "shop.0.15.parquet", double)
    checks = checked(root.job)
    assert failed(checks) == ["offsets"]
    assert first_violation(checks) == at(0, 12, ViolationKind.TWICE)


def test_an_offset_that_is_in_two_types_is_named(root: ExportRoot) -> None:
    """Row 17 of the clicks becomes a second row 12, which the orders have."""

    def stray(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [rows[0], {**rows[1], "kafka_offset": 12}, *rows[2:]]

    rewrite_rows(root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet", stray)
    assert first_violation(checked(root.job)) == at(0, 12, ViolationKind.TWICE)


@pytest.mark.parametrize(
    ("added", "violation"),
    [
        ({"kafka_offset": 34}, at(0, 34, ViolationKind.BEYOND_POSITION)),
        ({"kafka_offset": -1}, at(0, -1, ViolationKind.BEFORE_ORIGIN)),
        ({"kafka_partition": 7}, Violation("shop", 7, 33, ViolationKind.UNKNOWN_PARTITION)),
    ],
)
def test_a_row_that_no_slice_can_hold_is_named(root: ExportRoot, added: dict[str, int], violation: Violation) -> None:
    path = root.lake / "order" / f"day={WEDNESDAY}" / "shop.0.33.parquet"
    rewrite_rows(path, lambda rows: [*rows, {**rows[-1], **added}])
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert checks["offsets"].violation == violation


def test_a_compacted_root_is_proved_and_its_files_are_no_less_watched(root: ExportRoot) -> None:
    report = compact(root.table)
    assert report.files_added == 2
    assert failed(checked(root.job)) == []
    [path] = (root.lake / "click").glob("day=*/compacted~*")
    rewrite_rows(path, lambda rows: rows[:-1])
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert first_violation(checks) == at(1, 29, ViolationKind.MISSING)


def test_a_removed_file_that_came_back_is_named(root: ExportRoot) -> None:
    old = root.lake / "order" / f"day={MONDAY}" / "shop.0.5.parquet"
    kept = old.read_bytes()
    compact(root.table)
    assert not old.exists()
    old.write_bytes(kept)
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert first_violation(checks) == at(0, 0, ViolationKind.TWICE)


# what is still to be done


def test_files_that_an_entry_has_yet_to_move_are_counted_where_they_are_staged(root: ExportRoot) -> None:
    root.table = root.open(crashing("entry_written"))
    with pytest.raises(Crash):
        root.write(ZERO, 34, 40, {("order", TUESDAY): range(34, 38), ("click", TUESDAY): [38, 39]})
    assert len(root.staged()) == 2
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["rows"].facts["rows"] == ROWS + 6
    [warning] = checks["rows"].warnings
    assert warning.startswith("6 rows in 2 files wait")
    (root.lake / root.staged()[0]).unlink()
    assert failed(checked(root.job)) == ["rows", "offsets"]
    root.table = root.open()


@pytest.mark.parametrize("step", ["entry_written", "removing", "removed"])
def test_a_compaction_that_was_cut_short_is_proved_at_every_step(root: ExportRoot, step: str) -> None:
    with pytest.raises(Crash):
        compact(root.open(crashing(step)))
    checks = checked(root.job)
    assert failed(checks) == []
    assert len(checks["rows"].warnings) == 1
    root.open().complete()
    after = checked(root.job)
    assert failed(after) == []
    assert after["rows"].warnings == ()


def test_a_rename_that_could_not_be_done_is_carried_and_counted(root: ExportRoot) -> None:
    """Something else lies where the file should go, and later entries go on without it."""
    taken = root.lake / "order" / f"day={TUESDAY}" / "shop.0.37.parquet"
    taken.mkdir(parents=True)
    (taken / "x").write_text("")
    root.write(ZERO, 34, 38, {("order", TUESDAY): range(34, 38)})
    root.write(ONE, 34, 38, {("click", TUESDAY): range(34, 38)})
    assert len(root.state.pending) == 1
    checks = checked(root.job)
    assert failed(checks) == []
    [warning] = checks["rows"].warnings
    assert warning.startswith("4 rows in 1 files wait")


def test_what_is_written_while_one_entry_is_checked_gives_no_alarm(root: ExportRoot) -> None:
    facts = facts_of(root.job)
    root.write(ZERO, 34, 40, {("order", TUESDAY): range(34, 40)})
    checks = checked(root.job, facts)
    assert failed(checks) == []
    assert checks["rows"].facts["rows"] == ROWS


def test_a_compaction_meanwhile_is_told_so_that_the_proof_begins_anew(root: ExportRoot) -> None:
    facts = facts_of(root.job)
    compact(root.table)
    with pytest.raises(GoneError):
        parquet_files(facts.table, facts.state, facts.chain, None)
    assert failed(checked(root.job)) == []


# types that lag


def test_what_is_left_to_a_type_that_is_behind_is_counted_until_it_has_caught_up(root: ExportRoot) -> None:
    root.write(ZERO, 34, 40, {("order", TUESDAY): [34, 35, 36]}, left={"click": [37, 38, 39]})
    root.write(ZERO, 40, 50, {("order", TUESDAY): range(45, 50)}, left={"click": range(40, 45)})
    lagging = checked(root.job)
    assert failed(lagging) == []
    assert lagging["offsets"].facts == {"offsets": ROWS + 8}
    root.catch_up(ZERO, {"click": 37}, 42, {("click", TUESDAY): [37, 38, 39, 40, 41]})
    assert failed(checked(root.job)) == []
    root.catch_up(ZERO, {"click": 42}, 50, {("click", TUESDAY): [42, 43, 44]})
    after = checked(root.job)
    assert failed(after) == []
    assert after["offsets"].facts == {"offsets": ROWS + 16}
    (root.lake / "click" / f"day={TUESDAY}" / "shop.0.44.parquet").unlink()
    assert first_violation(checked(root.job)) == at(0, 42, ViolationKind.MISSING)


def test_records_that_the_log_lost_before_their_type_came_back_are_counted(root: ExportRoot) -> None:
    root.write(ZERO, 34, 40, {("order", TUESDAY): [34]}, left={"click": range(35, 40)})
    root.catch_up(ZERO, {"click": 35}, 40, {("click", TUESDAY): [38, 39]})
    assert root.state.of(ZERO).totals.vanished == 3
    checks = checked(root.job)
    assert failed(checks) == []
    (root.lake / "click" / f"day={TUESDAY}" / "shop.0.39.parquet").unlink()
    assert first_violation(checked(root.job)) == at(0, 34, ViolationKind.MISSING, end=40)


# quarantine


def test_quarantined_records_are_counted_before_and_after_they_are_appended(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    before = checked(root.job)
    assert failed(before) == []
    assert len(before["rows"].warnings) == 1
    append_bad(root)
    after = checked(root.job)
    assert failed(after) == []
    assert after["rows"].warnings == ()
    assert after["rows"].facts == {"rows": 6, "quarantine": 2}


def test_a_listing_that_the_quarantine_took_while_we_looked_is_not_missed(tmp_path: Path) -> None:
    """Two listings behind the version of the quarantine that was opened: both count as pending."""
    root = bad_root(tmp_path)
    append_bad(root)
    write_with_bad(root, ZERO, (10, 12), {("order", MONDAY): [10]}, [11])
    write_with_bad(root, ZERO, (12, 14), {("order", MONDAY): [12]}, [13])
    checks = checked(root.job)
    assert failed(checks) == []
    assert "2 quarantined rows wait" in checks["rows"].warnings[0]


def test_a_quarantine_file_that_is_gone_is_named(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    append_bad(root)
    [path] = Path(export_quarantine(root.job)).glob("*.pq")
    path.unlink()
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert f"quarantine: 1 files that the table names are gone: {path.name}" in checks["rows"].detail


def test_a_row_that_lost_its_place_is_found_and_hides_nothing_elsewhere(root: ExportRoot) -> None:
    folder = root.lake / "order" / f"day={MONDAY}"
    rewrite_rows(folder / "shop.1.25.parquet", lambda rows: [{**rows[0], "kafka_offset": None}, *rows[1:]])
    checks = checked(root.job)
    assert failed(checks) == ["offsets"]
    found = first_violation(checks)
    assert found is not None
    assert (found.partition, found.kind) == (1, ViolationKind.NO_PLACE)
    (root.lake / "click" / f"day={MONDAY}" / "shop.0.19.parquet").unlink()
    assert first_violation(checked(root.job)) == at(0, 16, ViolationKind.MISSING)


def test_a_row_that_was_deleted_from_quarantine_is_found(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    append_bad(root)
    DeltaTable(export_quarantine(root.job)).delete('"offset" = 7')
    checks = checked(root.job)
    assert failed(checks) == ["rows", "offsets"]
    assert first_violation(checks) == at(0, 0, ViolationKind.MISSING_IN_QUARANTINE, end=10)


def test_a_row_that_is_also_in_quarantine_is_named(tmp_path: Path) -> None:
    root = bad_root(tmp_path)
    path = root.lake / "order" / f"day={MONDAY}" / "shop.0.5.parquet"
    rewrite_rows(path, lambda rows: [*rows[:-1], {**rows[-1], "kafka_offset": 6}])
    assert first_violation(checked(root.job)) == at(0, 6, ViolationKind.BOTH)


# a type that is added later


def with_new_type(tmp_path: Path) -> ExportRoot:
    """Type view begins at the beginning: offsets 6 and 7, quarantined as unknown, are its rows now, and so is 8."""
    bad = bad_root(tmp_path)
    append_bad(bad)
    path = bad.job_path
    view = "\n  view: {schema: {type: string, at: string, id: long}, start: beginning}\ntable:"
    path.write_text(path.read_text().replace("\ntable:", view))
    root = ExportRoot(path)
    root.catch_up(ZERO, {"view": 0}, 10, {("view", MONDAY): [6, 7, 8]})
    return root


def test_a_type_that_was_added_later_may_have_what_quarantine_has(tmp_path: Path) -> None:
    root = with_new_type(tmp_path)
    assert root.state.of(ZERO).totals.backfilled == 3
    checks = checked(root.job)
    assert failed(checks) == []
    assert checks["offsets"].facts == {"offsets": 11}


def test_one_type_never_has_an_offset_twice_even_if_it_was_added_later(tmp_path: Path) -> None:
    root = with_new_type(tmp_path)
    path = root.lake / "view" / f"day={MONDAY}" / "shop.0.8.parquet"
    rewrite_rows(path, lambda rows: [rows[0], {**rows[1], "kafka_offset": 6}, rows[2]])
    assert first_violation(checked(root.job)) == at(0, 6, ViolationKind.TWICE)


def test_behind_the_beginning_of_a_new_type_every_offset_is_once_again(tmp_path: Path) -> None:
    root = with_new_type(tmp_path)
    root.write(ZERO, 10, 12, {("order", MONDAY): [10], ("click", MONDAY): [11]})
    assert failed(checked(root.job)) == []
    path = root.lake / "click" / f"day={MONDAY}" / "shop.0.11.parquet"
    rewrite_rows(path, lambda rows: [{**rows[0], "kafka_offset": 10}])
    assert first_violation(checked(root.job)) == at(0, 10, ViolationKind.TWICE)


def test_of_a_job_that_keeps_no_offsets_rows_are_counted_and_the_rest_is_not_proven(root: ExportRoot) -> None:
    job = replace(root.job, columns={})
    checks = checked(job)
    assert failed(checks) == []
    assert checks["offsets"].verdict is Verdict.NOT_PROVEN
    rewrite_rows(root.lake / "order" / f"day={WEDNESDAY}" / "shop.0.33.parquet", lambda rows: rows[1:])
    assert failed(checked(job)) == ["rows"]
