"""Every state that an export may be in is proved: lags, half-landed batches, pending files, deleted days."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.lake.delta.keys import field_key
from penstock.logs.log import Partition
from penstock.tables.export.export import Export
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.rebuild import rebuild
from penstock.tables.export.state import lag_numbers
from penstock.watch.verify import Check, Verdict, VerifyReport, Violation, ViolationKind
from tests.support.export_root import MONDAY, ONE, WEDNESDAY, ZERO
from tests.support.pipes import CrashError
from tests.unit.tables.export.damaged_root import (
    BAD,
    DELTA,
    KINDS,
    PLAIN,
    TRIMMED,
    Kind,
    Lake,
    event,
    made,
    make_job,
    rewritten,
    set_numbers,
    started,
)

FORMATS = pytest.mark.parametrize("kind", [PLAIN, DELTA], ids=str)
MALL = Partition("mall", "topicM", 0)
ORDER, CLICK, BAD_ORDER = event("order"), event("click"), event("order", MONDAY, "x")


def not_proven(report: VerifyReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict is Verdict.NOT_PROVEN]


def check_of(report: VerifyReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_export_that_holds_each_record_once_is_proved(tmp_path: Path, kind: Kind) -> None:
    lake = made(tmp_path, kind)
    checks = lake.prove()
    assert list(checks) == ["totals", "slices", "rows", "offsets", "log", "records", "values"]
    # Of 27 and 15 records two are bad and one is dropped.
    assert checks["rows"].facts == {"rows": 39, "quarantine": 2}
    assert checks["offsets"].facts == {"offsets": 41}
    assert checks["records"].facts == {"records": 42, "offsets_deleted": 0}
    lake.log.firsts = dict.fromkeys((ZERO, ONE), TRIMMED)
    assert lake.verify().ok
    assert not_proven(lake.verify(values=True)) == ["values"], "the log no longer has all records"


def test_before_its_first_run_there_is_nothing_to_prove(tmp_path: Path) -> None:
    lake = made(tmp_path, PLAIN)
    shutil.rmtree(lake.path)
    assert [check.name for check in lake.verify().checks] == ["table"]


@FORMATS
def test_a_position_beyond_the_log_and_a_row_that_the_log_does_not_have_are_found(tmp_path: Path, kind: Kind) -> None:
    lake = made(tmp_path, kind)
    values = dict(lake.log.values[ZERO])
    lake.log.values[ZERO] = {offset: value for offset, value in values.items() if offset != 3}
    assert check_of(lake.verify(), "records").violation == Violation("shop", 0, 3, ViolationKind.NOT_IN_LOG)
    lake.log.values[ZERO], lake.log.ends[ZERO] = {offset: values[offset] for offset in range(20)}, 20
    beyond = Violation("shop", 0, 20, ViolationKind.BEYOND_POSITION, end=27)
    assert check_of(lake.verify(deep=False), "log").violation == beyond


# half-landed batches


def half_landed(lake: Lake, *records: bytes) -> None:
    """A process dies when the first type has committed."""
    with pytest.raises(CrashError):
        lake.write(ZERO, *records, table=lake.crashing("type_committed"))


def next_process(lake: Lake) -> Export:
    """It finishes what the one before it left, and continues."""
    table = lake.root.open()
    table.finish_pending([ZERO, ONE])
    return table


@FORMATS
@pytest.mark.parametrize(
    "records", [[ORDER, ORDER], [ORDER, CLICK, ORDER], [ORDER, BAD_ORDER, BAD]], ids=["one type", "two types", "bad"]
)
def test_a_type_that_is_ahead_of_the_job_is_not_proven(tmp_path: Path, kind: Kind, records: list[bytes]) -> None:
    lake = made(tmp_path, kind)
    half_landed(lake, *records)
    report = lake.verify()
    assert not_proven(report) == ["types"]
    assert "a batch is half landed" in check_of(report, "types").unproven[0].what
    # The next process begins with what the types list for the quarantine.
    following = next_process(lake)
    assert not_proven(lake.verify(values=True)) == ["types"]
    lake.run(ZERO, table=following)
    lake.prove()


@FORMATS
def test_a_half_landed_batch_is_proved_once_the_job_has_read_up_to_its_types(tmp_path: Path, kind: Kind) -> None:
    lake = started(make_job(tmp_path, kind), kind)
    lake.write(ZERO, CLICK, ORDER)
    half_landed(lake, ORDER, BAD_ORDER, ORDER, BAD_ORDER, ORDER)
    for end in (3, 4, 5):
        lake.run(ZERO, end, table=next_process(lake))
        assert not_proven(lake.verify()) == ["types"]
    lake.run(ZERO, 7, table=next_process(lake))
    lake.prove()


@FORMATS
def test_rows_missing_from_a_type_that_was_ahead_are_found(tmp_path: Path, kind: Kind) -> None:
    lake = started(make_job(tmp_path, kind), kind)
    lake.write(ZERO, ORDER, CLICK)
    half_landed(lake, ORDER, ORDER)
    next_process(lake)
    rewritten(lake.files()[0], lambda rows: rows[1:])
    assert not_proven(lake.verify(deep=False)) == ["types"]
    lake.run(ZERO, table=next_process(lake))
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED


# types that lag


@FORMATS
def test_records_deferred_for_a_type_are_counted_until_it_has_caught_up(tmp_path: Path, kind: Kind) -> None:
    lake = made(tmp_path, kind)
    lake.write(ZERO, ORDER, CLICK, CLICK, lagging=["click"])
    lake.prove()
    lake.write(ZERO, CLICK, ORDER)
    assert lake.root.state.of(ZERO).totals.deferred == 3
    lake.prove()
    with pytest.raises(CrashError):
        lake.catch_up(ZERO, "click", table=lake.crashing("type_committed"))
    assert not_proven(lake.verify()) == ["types"]
    lake.catch_up(ZERO, "click", end=30, table=next_process(lake))
    assert not_proven(lake.verify()) == ["types"]
    lake.catch_up(ZERO, "click", table=next_process(lake))
    assert lake.root.state.of(ZERO).totals.deferred == 0
    lake.prove()


@FORMATS
@pytest.mark.parametrize("what", ["removed", "moved", "rows", "total"])
def test_a_lag_that_was_removed_or_altered_is_found(tmp_path: Path, kind: Kind, what: str) -> None:
    lake = made(tmp_path, kind)
    lake.write(ZERO, ORDER, CLICK, CLICK, lagging=["click"])
    lag = lake.root.logs.state().of(ZERO).lags["click"]
    altered = {
        "removed": replace(lag, deferred=0),
        "moved": replace(lag, position=99),
        "rows": replace(lag, deferred=1),
        "total": lag,
    }[what]
    numbers = lag_numbers("shop", ZERO, {"click": altered})
    if what == "total":
        numbers = {field_key("shop", ZERO, "deferred"): 1}
    set_numbers(lake.log_of(), **{key: lambda _, to=to: to for key, to in numbers.items()})
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED


@FORMATS
def test_records_that_the_log_lost_before_their_type_came_back_are_counted(tmp_path: Path, kind: Kind) -> None:
    lake = started(make_job(tmp_path, kind), kind)
    lake.write(ZERO, ORDER, CLICK, CLICK, ORDER, lagging=["click"])
    lake.log.expire(ZERO, 2)
    assert lake.root.logs.state().of(ZERO).lags["click"].position == 1
    lake.catch_up(ZERO, "click")
    assert lake.root.state.of(ZERO).totals.vanished == 1
    assert lake.verify().ok


# restored logs


@FORMATS
def test_a_restored_job_log_is_not_proven_until_the_job_has_read_up_to_its_types(tmp_path: Path, kind: Kind) -> None:
    lake = started(make_job(tmp_path, kind, unknown="quarantine"), kind)
    lake.write(ZERO, ORDER, CLICK, event("view"), event("order", number="bad"))
    lake.write(ONE, ORDER)
    shutil.rmtree(lake.path / "_penstock" / "shop" / "_delta_log")
    assert rebuild(ExportLogs(lake.root.job, lake.root.environment), [ZERO, ONE]).ok
    lake = lake.reopened(lake.root.job_path)
    assert not_proven(lake.verify()) == ["types"]
    lake.run(ZERO)
    lake.run(ONE)
    lake.prove()
    lake.write(ZERO, CLICK, ORDER)
    lake.write(ONE, CLICK)
    checks = lake.prove()
    assert checks["rows"].facts == {"rows": 6, "quarantine": 0}, "the bad records are in the former quarantine"
    rewritten(lake.files("order")[0], lambda rows: rows[:-1])
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED


# plain files


@pytest.mark.parametrize("step", ["renaming", "renamed"])
def test_files_that_were_not_renamed_are_proved_once_the_job_has_gone_on(tmp_path: Path, step: str) -> None:
    lake = made(tmp_path, PLAIN)
    with pytest.raises(CrashError):
        lake.write(ZERO, ORDER, CLICK, table=lake.crashing(step))
    assert not_proven(lake.verify()) == ["types"]
    lake.run(ZERO, table=next_process(lake))
    lake.prove()


@pytest.mark.parametrize("step", ["compact_committed", "removing", "removed", "renaming", "renamed"])
def test_a_compaction_that_was_cut_short_is_proved_once_it_is_finished(tmp_path: Path, step: str) -> None:
    lake = made(tmp_path, PLAIN)
    with pytest.raises(CrashError):
        lake.compact(lake.crashing(step))
    assert not_proven(lake.verify()) == ([] if step == "renamed" else ["types"])
    lake.root.open().finish_renames()
    lake.prove()


def test_staged_files_that_were_deleted_before_they_were_renamed_are_never_proved(tmp_path: Path) -> None:
    lake = made(tmp_path, PLAIN)
    with pytest.raises(CrashError):
        lake.compact(lake.crashing("renaming"))
    assert lake.root.staged()
    shutil.rmtree(lake.path / "_penstock/shop/staged")
    assert not lake.verify(deep=False).ok


def test_a_file_that_came_back_after_its_compaction_is_named(tmp_path: Path) -> None:
    lake = made(tmp_path, PLAIN)
    [file] = [path for path in lake.files() if path.name == "shop.0.24.parquet"]
    kept = file.read_bytes()
    lake.compact()
    file.write_bytes(kept)
    rows = check_of(lake.verify(deep=False), "rows")
    assert f"1 files that readers see are not in the logs: order/day={MONDAY}/shop.0.24.parquet" in rows.detail


def test_files_hidden_from_readers_are_not_violations(tmp_path: Path) -> None:
    lake = made(tmp_path, PLAIN)
    for name in ("_probe.1", "_SUCCESS", ".1.parquet.crc", "_old.parquet"):
        (lake.path / "order" / f"day={MONDAY}" / name).write_text("")
    lake.prove()


# deleted days


@pytest.mark.parametrize("compacted", [False, True])
def test_a_deleted_complete_day_is_not_proven_and_not_a_violation(tmp_path: Path, compacted: bool) -> None:
    lake = made(tmp_path, replace(PLAIN, compacted=compacted))
    shutil.rmtree(lake.path / "order" / f"day={MONDAY}")
    report = lake.verify()
    assert not_proven(report) == ["offsets"]
    [unproven] = check_of(report, "offsets").unproven
    assert unproven.what.startswith("18 offsets are not found, and there are 18 rows of deleted days")
    lake.write(ZERO, CLICK)
    assert lake.verify(values=True).verdict is Verdict.NOT_PROVEN
    lake.files("click")[0].unlink()
    assert lake.verify().verdict is Verdict.VIOLATED, "the rest is checked as before"


def test_a_deleted_day_that_is_not_complete_is_a_violation(tmp_path: Path) -> None:
    lake = made(tmp_path, replace(PLAIN, compacted=True))
    shutil.rmtree(lake.path / "order" / f"day={MONDAY}")
    shutil.rmtree(lake.path / "click" / f"day={WEDNESDAY}")
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED


def test_a_day_that_is_not_complete_and_a_part_of_a_complete_one_are_lost(tmp_path: Path) -> None:
    lake = made(tmp_path, PLAIN)
    folder = lake.path / "order" / f"day={WEDNESDAY}"
    shutil.move(folder, tmp_path / "kept")
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED
    shutil.move(tmp_path / "kept", folder)
    assert lake.verify(deep=False).ok
    next((lake.path / "order" / f"day={MONDAY}").iterdir()).unlink()
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED


# topics and jobs


@FORMATS
@pytest.mark.parametrize("compacted", [False, True])
def test_each_of_two_jobs_below_one_root_proves_its_own_rows(tmp_path: Path, kind: Kind, compacted: bool) -> None:
    shop = made(tmp_path, kind)
    side = Partition("side", "topicS", 0)
    mall = started(make_job(tmp_path, kind, name="mall", topic="mall, side"), kind, MALL, side)
    mall.write(MALL, ORDER, ORDER, CLICK, BAD)
    # Only one type has rows of the second topic.
    mall.write(side, ORDER)
    if compacted:
        shop.compact()
    for lake in (shop, mall):
        lake.prove()
    if kind.is_plain:
        path = next(path for path in mall.files("click") if path.name == "mall.0.2.parquet")
        path.unlink()
        assert mall.verify(deep=False).verdict is Verdict.VIOLATED
        shop.prove()


# rows without places


@FORMATS
def test_rows_without_places_are_counted_and_the_rest_is_not_proven(tmp_path: Path, kind: Kind) -> None:
    lake = made(tmp_path, replace(kind, places=False))
    assert not_proven(lake.verify()) == ["offsets"]
    assert not_proven(lake.verify(values=True)) == ["offsets", "values"]
    rewritten(lake.files()[0], lambda rows: rows[1:])
    assert lake.verify(deep=False).verdict is Verdict.VIOLATED
