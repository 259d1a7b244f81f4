"""`verify` finds damage to the files and numbers of a rollup, or reports what it could not prove."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.lake.delta.keys import field_key
from penstock.lake.delta.opening import open_table
from penstock.lake.delta.table import DeltaLog
from penstock.proof.findings import Check, Verdict
from penstock.tables.rollup.spec import partials_job
from tests.scenarios.rollup.damage import (
    PARTIALS,
    WINDOWS,
    Alter,
    changed,
    files,
    raised,
    replaced,
    rewrite,
)
from tests.scenarios.rollup.rollups import START, Rollup, partition, point
from tests.support.quarantine_url import quarantine_folders

KEPT = "late: update\nupdate_grace: 30d\naggregates: [first, last, mean]\n"


def filled(folder: Path, more: str = KEPT) -> Rollup:
    """Windows of two hosts, closed, open and corrected ones, and a bad record."""
    rollup = Rollup(folder, more)
    for number, host in enumerate("ab"):
        rollup.send(number, *(point(START + item, item % 7, host) for item in range(0, 700, 10)))
    rollup.send(0, b"no json")
    rollup.clock = START + 700
    rollup.run()
    rollup.send(0, point(START + 5, 3.0))
    rollup.send(1, point(START + 700, 3.0))
    rollup.run()
    return rollup


@pytest.fixture(scope="module", params=["plain", "compacted", "trimmed"])
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rollup:
    """As it was written, after a compaction, and after the log lost its first records."""
    rollup = filled(tmp_path_factory.mktemp("healthy"))
    if request.param == "compacted":
        rollup.compact()
    elif request.param == "trimmed":
        rollup.log.firsts[partition(0)] = 10
    return rollup


@pytest.fixture
def rollup(healthy: Rollup, tmp_path: Path) -> Rollup:
    """One of its own for each test to damage; the log is only read."""
    shutil.copytree(healthy.folder, tmp_path, dirs_exist_ok=True)
    return replace(healthy, folder=tmp_path)


@pytest.fixture
def interval(request: pytest.FixtureRequest) -> str:
    """The longer one where the table is compacted: each damage is done to both."""
    return "10m" if request.node.callspec.params["healthy"] == "compacted" else "1m"


def shifted(rows: pa.Table) -> pa.Table:
    """The first window begins and ends a second late."""
    for column in ("window_start", "window_end"):
        values = rows.column(column).to_pylist()
        rows = replaced(rows, column, [values[0] + timedelta(seconds=1), *values[1:]])
    return rows


def test_an_untouched_table_is_proven(rollup: Rollup) -> None:
    trimmed = bool(rollup.log.firsts)
    verdicts = rollup.verdicts(values=True)
    assert verdicts.pop("values") == ("not proven" if trimmed else "proven")
    assert set(verdicts.values()) == {"proven"}


@pytest.mark.parametrize("table", [WINDOWS, PARTIALS])
def test_a_missing_file_is_found(table: str, rollup: Rollup) -> None:
    files(rollup, table)[0].unlink()
    assert "violated" in rollup.verdicts().values()


@pytest.mark.parametrize(
    "alter",
    [
        raised("count"),
        raised("count", -1),
        raised("sum", 0.5),
        raised("min", -1),
        raised("max", 5),
        raised("first"),
        raised("last"),
        raised("mean"),
        shifted,
        changed("sum", lambda _: None),
        changed("metric", lambda _: "cpu.idle"),
        changed("metric", lambda _: None),
        changed("tags", lambda _: [("host", "c")]),
        changed("tags", lambda _: None),
        changed("close", lambda close: close + 1),
        changed("close", lambda close: close - 1),
        changed("close", lambda _: 99),
        changed("close", lambda _: None),
        changed("close", lambda close: close + 1, row=-1),
        changed("revision", lambda revision: revision + 1),
        changed("revision", lambda revision: 1 - revision),
        changed("revision", lambda _: -1),
        changed("bucket", lambda bucket: (bucket + 1) % 256),
        changed("bucket", lambda _: 300),
        changed("series", lambda _: "cpu.load{}"),
        lambda rows: rows.slice(1),
    ],
    ids=[
        *["count", "count less", "sum", "min", "max", "first", "last", "mean"],
        *["alignment", "no sum", "metric", "no metric", "tags", "no tags"],
        *["close after", "close before", "close unknown", "no close", "close of last", "revision", "revision moved"],
        *["revision below 0", "bucket", "bucket unknown", "series", "row missing"],
    ],
)
def test_an_altered_window_is_found(alter: Alter, interval: str, rollup: Rollup) -> None:
    rewrite(files(rollup, WINDOWS, interval)[0], alter)
    assert rollup.verdicts()["windows"] == "violated"


def test_a_duplicate_window_is_found(rollup: Rollup) -> None:
    rewrite(files(rollup, WINDOWS, "1m")[0], lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert rollup.verdicts()["windows"] == "violated"


def test_a_window_in_place_of_another_is_found(rollup: Rollup) -> None:
    """As many points as before, of another series."""

    def alter(rows: pa.Table) -> pa.Table:
        return replaced(rows, "series", ["cpu.load{}", *rows.column("series").to_pylist()[1:]])

    rewrite(files(rollup, WINDOWS, "1m")[0], alter)
    assert rollup.verdicts()["windows"] == "violated"


def test_a_missing_quarantine_file_is_found(rollup: Rollup) -> None:
    [quarantine] = quarantine_folders(rollup.folder / PARTIALS)
    next(quarantine.glob("*.pq")).unlink()
    assert rollup.verdicts()["quarantine"] == "violated"


def test_a_number_of_points_that_was_changed_is_found(rollup: Rollup) -> None:
    job = rollup.job
    table: DeltaLog = open_table(partials_job(job).table, job.name)  # type: ignore[arg-type]
    key = field_key(job.name, partition(0), "points")
    table.commit_actions([], {key: (table.transaction(key) or 0) + 1}, {})
    assert rollup.verdicts()["points"] == "violated"


def test_windows_of_an_interval_that_the_job_does_not_have_are_foreign_rows(rollup: Rollup) -> None:
    rollup.windows_asked = "1m"
    check = check_of(rollup, "windows")
    assert (check.verdict, "2 foreign rows" in check.detail) == (Verdict.VIOLATED, True), check.detail


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Rollup:
    """Windows whose partials are removed, closed ones of which they are still there, and open ones."""
    rollup = Rollup(tmp_path_factory.mktemp("aged"), "aggregates: [first, last, mean]\n")
    for number, host in enumerate("ab"):
        rollup.send(number, *(point(START + item, item % 7, host) for item in range(0, 500, 10)))
    rollup.clock = START + 500
    rollup.run()
    rollup.send(0, point(START + 5, 99.0))
    for _ in range(2):
        rollup.run()
        rollup.clock += 3600
    for number, host in enumerate("ab"):
        rollup.send(number, *(point(rollup.clock + second, second % 5, host) for second in range(0, 200, 10)))
    rollup.clock += 200
    rollup.run()
    assert rollup.late() == {"1m": 1, "10m": 0}
    return rollup


@pytest.fixture
def old(aged: Rollup, tmp_path: Path) -> Rollup:
    shutil.copytree(aged.folder, tmp_path, dirs_exist_ok=True)
    return replace(aged, folder=tmp_path)


def check_of(rollup: Rollup, name: str, values: bool = False) -> Check:
    return next(check for check in rollup.verify(values).checks if check.name == name)


def test_partials_that_were_removed_as_designed_are_counted_and_the_rest_is_proven(old: Rollup) -> None:
    assert rollup_is_proven(old)
    [warning] = check_of(old, "windows").warnings
    assert warning == "20 windows: partials removed as designed, values not compared"


def rollup_is_proven(rollup: Rollup) -> bool:
    return set(rollup.verdicts(values=True).values()) == {"proven"}


@pytest.mark.parametrize("row", [0, -1], ids=["partials removed", "partials there"])
@pytest.mark.parametrize(
    "alter", ["count", "mean", "metric", "tags", "close", "bucket", "revision", "missing", "sum", "max", "last"]
)
def test_damage_is_found_where_some_partials_were_deleted(alter: str, row: int, old: Rollup) -> None:
    """Without partials only values that contradict the row itself, or the sums over all rows, are found."""
    changes: dict[str, Callable[[Any], object]] = {
        "metric": lambda _: "cpu.idle",
        "tags": lambda _: [("host", "c")],
        "mean": lambda value: value + 0.5,
        "max": lambda value: value + 50,
    }

    def damage(rows: pa.Table) -> pa.Table:
        rows = rows.sort_by([("window_start", "ascending"), ("series", "ascending")])
        if alter == "missing":
            return rows.slice(1) if row == 0 else rows.slice(0, rows.num_rows - 1)
        return changed(alter, changes.get(alter, lambda value: value + 1), row)(rows)

    files_of_1m = files(old, WINDOWS, "1m")
    starts = {
        path: min(pq.ParquetFile(path).read(["window_start"])["window_start"].to_pylist()) for path in files_of_1m
    }
    rewrite((min if row == 0 else max)(starts, key=lambda path: starts[path]), damage)
    result = row == -1 or alter not in ("max", "last")
    assert (old.verdicts()["windows"] == "violated") == result


@pytest.mark.parametrize("column", ["sum", "min", "max", "first", "last", "metric"])
def test_altered_open_partials_are_found_in_the_log(column: str, old: Rollup) -> None:
    """Both tables agree: only the records of the log reveal it, also where earlier partials are removed."""
    newest = max(
        files(old, PARTIALS), key=lambda path: pq.ParquetFile(path).read(["window_start"])["window_start"][0].as_py()
    )
    alter = changed(column, lambda value: "cpu.idle" if column == "metric" else value - (column == "min") - 0.25)
    rewrite(newest, alter)
    assert old.verdicts()["points"] == "proven"
    assert old.verdicts(values=True)["values"] == "violated"


@pytest.mark.parametrize(
    ("column", "by", "verdict"),
    [("count", -1, "violated"), ("max", -1, "violated"), ("sum", 1, "not proven"), ("first", 1, "not proven")],
)
def test_partials_whose_records_the_log_lost_have_at_least_the_retained_points(
    column: str, by: int, verdict: str, tmp_path: Path
) -> None:
    rollup = Rollup(tmp_path, "aggregates: [first, last]\n")
    rollup.send(0, *(point(START + number, number / 10) for number in range(0, 50, 10)))
    rollup.clock = START + 50
    rollup.run()
    rollup.log.firsts[partition(0)] = 1
    assert rollup.verdicts(values=True)["values"] == "not proven"
    rewrite(files(rollup, PARTIALS)[0], raised(column, by * 2))
    assert rollup.verdicts(values=True)["values"] == verdict
