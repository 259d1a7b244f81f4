"""`verify` finds what was done to the files and numbers of a rollup, or says that it could not prove them."""

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
from deltalake import DeltaTable

from penstock.lake.delta.keys import field_key
from penstock.lake.delta.table import Table, open_table
from penstock.proof.findings import Verdict
from penstock.tables.rollup.spec import partials_job
from tests.scenarios.rollup.rollups import START, Rollup, partition, point

Alter = Callable[[pa.Table], pa.Table]
WINDOWS, PARTIALS, QUARANTINE = "windows", "windows_partials", "windows_quarantine"


KEPT = "late: update\nupdate_grace: 30d\naggregates: [first, last, mean]\nquantiles: [0.5]\n"


def filled(folder: Path, more: str = KEPT) -> Rollup:
    """Windows of two hosts, closed, open and corrected ones, and a bad record."""
    rollup = Rollup(folder, more)
    for number, host in enumerate("ab"):
        rollup.send(number, *(point(START + each, each % 7, host) for each in range(0, 700, 10)))
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


def files(rollup: Rollup, table: str, interval: str = "") -> list[Path]:
    """The data files of the newest version; those of one interval if one is named."""
    found = sorted(DeltaTable(rollup.folder / table).file_uris())
    return [Path(each) for each in found if not interval or f"interval={interval}/" in each]


def rewrite(path: Path, alter: Alter) -> None:
    """In its place and of the same rows' number and size, as far as Parquet lets it."""
    pq.write_table(alter(pq.ParquetFile(path).read()), path)


def raised(column: str, by: float = 1) -> Alter:
    """The first value of a column is greater."""

    def alter(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[0] += by
        return replaced(rows, column, values)

    return alter


def replaced(rows: pa.Table, column: str, values: list[object]) -> pa.Table:
    index = rows.schema.get_field_index(column)
    return rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))


def shifted(rows: pa.Table) -> pa.Table:
    """The first window begins and ends a second late."""
    for column in ("window_start", "window_end"):
        values = rows.column(column).to_pylist()
        rows = replaced(rows, column, [values[0] + timedelta(seconds=1), *values[1:]])
    return rows


def changed(column: str, change: Callable[[Any], object], row: int = 0) -> Alter:
    """One value of a column is another one."""

    def alter(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[row] = change(values[row])
        return replaced(rows, column, values)

    return alter


def test_what_nobody_touched_is_proven(rollup: Rollup) -> None:
    trimmed = bool(rollup.log.firsts)
    verdicts = rollup.verdicts(values=True)
    assert verdicts.pop("values") == ("not proven" if trimmed else "proven")
    assert set(verdicts.values()) == {"proven"}


@pytest.mark.parametrize("table", [WINDOWS, PARTIALS])
def test_a_missing_file_is_found(table: str, rollup: Rollup) -> None:
    files(rollup, table)[0].unlink()
    assert "violated" in rollup.verdicts().values()


@pytest.mark.parametrize("interval", ["1m", "10m"])
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
        raised("q50", 100),
        changed("q50", lambda value: 1.0 if value != 1.0 else 2.0),
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
        *["count", "count less", "sum", "min", "max", "first", "last", "mean", "quantile", "quantile within"],
        *["alignment", "no sum", "metric", "no metric", "tags", "no tags"],
        *["close after", "close before", "close unknown", "no close", "close of last", "revision", "revision moved"],
        *["revision below 0", "bucket", "bucket unknown", "series", "row missing"],
    ],
)
def test_an_altered_window_is_found(alter: Alter, interval: str, rollup: Rollup) -> None:
    rewrite(files(rollup, WINDOWS, interval)[0], alter)
    assert rollup.verdicts()["windows"] == "violated"


def test_a_window_that_is_there_twice_is_found(rollup: Rollup) -> None:
    rewrite(files(rollup, WINDOWS, "1m")[0], lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    assert rollup.verdicts()["windows"] == "violated"


def test_a_window_in_place_of_another_is_found(rollup: Rollup) -> None:
    """As many points as before, of another series."""

    def alter(rows: pa.Table) -> pa.Table:
        return replaced(rows, "series", ["cpu.load{}", *rows.column("series").to_pylist()[1:]])

    rewrite(files(rollup, WINDOWS, "1m")[0], alter)
    assert rollup.verdicts()["windows"] == "violated"


def test_a_missing_quarantine_file_is_found(rollup: Rollup) -> None:
    files(rollup, QUARANTINE)[0].unlink()
    assert rollup.verdicts()["quarantine"] == "violated"


def test_a_number_of_points_that_was_changed_is_found(rollup: Rollup) -> None:
    job = rollup.job
    table: Table = open_table(partials_job(job).table, job.name)  # type: ignore[arg-type]
    key = field_key(job.name, partition(0), "points")
    table.commit_actions([], {key: (table.transaction(key) or 0) + 1}, {})
    assert rollup.verdicts()["points"] == "violated"


def cleaned(folder: Path) -> Rollup:
    """Windows of which one hour is closed for good, and late points, which only the longer windows have."""
    rollup = Rollup(folder)
    for number, host in enumerate("ab"):
        rollup.send(number, *(point(START + each, each % 7, host) for each in range(0, 500, 10)))
    rollup.clock = START + 500
    rollup.run()
    rollup.send(0, point(START + 5, 99.0))
    for _ in range(2):
        rollup.run()
        rollup.clock += 3600
    rollup.run()
    assert rollup.late() == {"1m": 1, "10m": 0}
    return rollup


@pytest.mark.parametrize("column", ["sum", "min", "max"])
def test_partials_with_right_counts_and_other_values_are_found_in_the_log(column: str, tmp_path: Path) -> None:
    """Both tables tell the same: only the records of the log know better."""
    rollup = Rollup(tmp_path)
    rollup.send(0, *(point(START + each, each % 7) for each in range(0, 50, 10)))
    rollup.clock = START + 50
    rollup.run()
    assert rollup.verdicts(values=True)["values"] == "proven"
    rewrite(files(rollup, PARTIALS)[0], raised(column, 1 if column != "min" else -1))
    assert rollup.verdicts()["points"] == "proven"
    assert rollup.verdicts(values=True)["values"] == "violated"
