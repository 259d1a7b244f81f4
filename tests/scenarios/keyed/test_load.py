"""Batch loads: each file once, each save mode as documented, overwrites in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.tables.keyed.loading.load import LoadReport
from penstock.tables.kind import CompactRequest, Loading, SaveMode, VacuumRequest
from penstock.tables.registry import kind_of
from tests.scenarios.local_spark import local_session
from tests.support.keyed_tables import SCHEMA, Keyed, row

KEYED = "partition_keys: [device], row_keys: [number], buckets: 3, chunk_rows: 10"


class CrashError(Exception):
    """The process ends here."""


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = {"device": pl.String, "number": pl.Int64, "value": pl.Int64}
    return pl.DataFrame([{name: item.get(name) for name in schema} for item in rows], schema=schema)


def files(folder: Path, *frames: pl.DataFrame) -> str:
    folder.mkdir(exist_ok=True)
    for number, item in enumerate(frames):
        item.write_parquet(folder / f"{number}.parquet")
    return str(folder)


def load(
    table: Keyed, *paths: str, mode: SaveMode = SaveMode.APPEND, environment: Environment | None = None
) -> LoadReport:
    kind = kind_of(table.job)
    assert isinstance(kind, Loading)
    result = kind.load(table.job, paths, mode, local_session(), environment or Environment())
    assert isinstance(result, LoadReport)
    return result


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_load_into_partial_updates_fills_in_what_the_log_left_out(tmp_path: Path, first: bool) -> None:
    table = Keyed(tmp_path, "row_keys: [number], partial_updates: merge")
    source = files(tmp_path / "files", frame(row(1, 10, "loaded"), row(2, 20, "loaded")))
    if first:
        load(table, source)
    table.put({"number": 1, "device": "log"}, {"number": 3, "value": 30})
    table.run()
    if not first:
        load(table, source)
    assert table.values() == {("log", 1): 10, ("loaded", 2): 20, (None, 3): 30}
    load(table, files(tmp_path / "more", frame(row(1, 11, "again"))))
    assert table.values() == {("log", 1): 11, ("loaded", 2): 20, (None, 3): 30}
    assert table.verified(values=False).ok


def test_columns_of_files_with_reserved_names_are_left_out(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number]")
    extra = [pl.Series("_delete", [True]), pl.Series("_SEQUENCE", [9])]
    load(table, files(tmp_path / "files", frame(row(1, 1)).with_columns(extra)))
    load(table, files(tmp_path / "more", frame(row(2, 2))))
    assert table.values() == {("a", 1): 1, ("a", 2): 2}


def test_files_and_folders_become_rows(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    frame(row(1, 1)).write_parquet(tmp_path / "a.parquet")
    folder = files(tmp_path / "in", frame(row(2, 2), row(3, None)), frame(row(4, 4, "x")))
    (tmp_path / "in" / "_SUCCESS").write_bytes(b"")
    assert load(table, str(tmp_path / "a.parquet"), folder) == LoadReport(files=3, rows=4, commits=1)
    assert table.values() == {("a", 1): 1, ("a", 2): 2, ("a", 3): None, ("x", 4): 4}
    assert table.verified(values=False).ok


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.csv.gz", "README.md"])
def test_a_file_of_another_format_is_refused_and_not_skipped(tmp_path: Path, name: str) -> None:
    folder = files(tmp_path / "in", frame(row(1, 1)))
    (tmp_path / "in" / name).write_bytes(b"device,number\na,1\n")
    with pytest.raises(UserError, match=name) as refused:
        load(Keyed(tmp_path, KEYED), folder)
    assert "DuckDB" in refused.value.hint


def test_delta_tables_and_folders_with_values_are_refused(tmp_path: Path) -> None:
    """Their files alone lack rows and values, or have too many."""
    table = Keyed(tmp_path, KEYED)
    frame(row(1, 1)).write_delta(str(tmp_path / "delta"))
    with pytest.raises(UserError, match="Delta table"):
        load(table, str(tmp_path / "delta"))
    (tmp_path / "hive").mkdir()
    folder = files(tmp_path / "hive" / "Device=a", frame(row(1, 1)).drop("device"))
    for path in (folder, str(tmp_path / "hive")):
        with pytest.raises(UserError, match="Device=a"):
            load(table, path)


def test_a_repeated_load_does_nothing(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    folder = files(tmp_path / "in", frame(*(row(number, number) for number in range(50))), frame(row(99, 9)))
    load(table, folder)
    version = table.table().version
    assert load(table, folder) == LoadReport(files_known=2)
    assert table.table().version == version


def test_a_rewritten_file_with_the_same_rows_is_recognized_by_its_chunks(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    rows = frame(*(row(number, number) for number in range(50)))
    load(table, files(tmp_path / "in", rows))
    before = table.files()
    report = load(table, files(tmp_path / "again", rows))
    assert report == LoadReport(files=1, rows=50, skipped=50, commits=1)
    assert table.files() == before


def test_rows_that_were_compacted_are_found_row_by_row(tmp_path: Path) -> None:
    """Their chunks have other names now: every row is compared, and nothing changes."""
    table = Keyed(tmp_path, KEYED)
    parts = [frame(*(row(number, number) for number in range(first, first + 5))) for first in (0, 5)]
    for number, part in enumerate(parts):
        load(table, files(tmp_path / f"in{number}", part))
    kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)
    before = table.files()
    report = load(table, files(tmp_path / "again", parts[0]))
    assert (report.rows, report.skipped) == (5, 5) and table.files() == before
    assert table.verified(values=False).ok


@pytest.mark.parametrize("step", ["runs_staged", "tombstones_written", "committed"])
def test_an_interrupted_load_continues(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables.keyed.loading.load.FILES_PER_COMMIT_MAX", 1)
    table = Keyed(tmp_path, KEYED)
    folder = files(tmp_path / "in", *(frame(row(number, number)) for number in range(4)))
    visits: list[str] = []

    def crash(reached: str) -> None:
        if reached == step:
            visits.append(reached)
            if len(visits) == 3:
                raise CrashError

    with pytest.raises(CrashError):
        load(table, folder, environment=Environment(at_step=crash))
    report = load(table, folder)
    assert report.files + report.files_known == 4 and report.files_known in (2, 3)
    assert table.values() == {("a", number): number for number in range(4)}
    assert table.verified(values=False).ok


def test_a_later_load_replaces_by_key_and_the_last_row_of_a_key_wins(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, files(tmp_path / "one", frame(row(1, 1), row(2, 2), row(2, 22))))
    load(table, files(tmp_path / "two", frame(row(1, 11), row(3, 3))))
    assert table.values() == {("a", 1): 11, ("a", 2): 22, ("a", 3): 3}


def test_records_of_the_log_are_newer_than_every_load(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED + ", delete: gone")
    table.put(row(1, 1), row(2, None, gone=True))
    table.run()
    load(table, files(tmp_path / "in", frame(row(1, 100), row(2, 200), row(3, 300))))
    assert table.values() == {("a", 1): 1, ("a", 3): 300}
    table.put(row(3, 3))
    table.run()
    assert table.values() == {("a", 1): 1, ("a", 3): 3}
    assert table.verified(values=False).ok


def test_an_overwrite_is_one_commit(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, files(tmp_path / "one", frame(row(1, 1), row(2, 2))))
    version = table.table().version
    load(table, files(tmp_path / "two", frame(row(2, 22, "b"))), mode=SaveMode.OVERWRITE)
    assert table.values() == {("b", 2): 22}
    assert table.table().version == version + 1
    assert not [check.name for check in table.verified().checks if check.name == "rows" and not check.ok]


def test_an_overwrite_that_fails_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, files(tmp_path / "one", frame(row(1, 1))))
    bad = files(tmp_path / "two", frame(row(2, 2), {"device": "a", "number": None, "value": 3}))
    with pytest.raises(UserError, match="cannot be stored"):
        load(table, bad, mode=SaveMode.OVERWRITE)
    assert table.values() == {("a", 1): 1}


def test_a_damaged_file_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, files(tmp_path / "one", frame(row(1, 1))))
    (tmp_path / "text.parquet").write_bytes(b"this is not a Parquet file")
    for mode in SaveMode:
        with pytest.raises(UserError, match=r"text\.parquet"):
            load(table, str(tmp_path / "text.parquet"), mode=mode)
    assert table.values() == {("a", 1): 1}


def test_a_column_of_another_type_is_reported_with_its_file(tmp_path: Path) -> None:
    """A fraction is refused in a column of integers, and not rounded."""
    table = Keyed(tmp_path, KEYED)
    rows = pl.DataFrame({"device": ["a"], "number": [1], "value": [1.5]})
    with pytest.raises(UserError, match="do not fit") as refused:
        load(table, files(tmp_path / "in", rows))
    assert "0.parquet" in refused.value.detail
    assert load(table, files(tmp_path / "whole", rows.with_columns(value=2.0))).rows == 1
    assert table.values() == {("a", 1): 2}


def test_new_columns_are_declared_or_ignored(tmp_path: Path) -> None:
    rows = files(tmp_path / "in", frame(row(1, 1)).with_columns(pl.lit("red").alias("color")))
    with pytest.raises(UserError, match="color") as refused:
        load(Keyed(tmp_path, KEYED), rows)
    assert "schema" in refused.value.hint
    load(Keyed(tmp_path, KEYED, on="new_column: ignore"), rows)
    table = Keyed(tmp_path, KEYED, schema=f"{SCHEMA}, color: string")
    assert "color" not in table.rows()[0]
    load(table, rows, mode=SaveMode.OVERWRITE)
    assert table.rows()[0]["color"] == "red"


def test_an_empty_load_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no files to load"):
        load(Keyed(tmp_path, KEYED), str(tmp_path / "nowhere"))


def committable(table: Keyed) -> int:
    """Files that vacuum has to keep because a commit may still name them."""
    report = kind_of(table.job).vacuum(table.job, VacuumRequest(), Environment())
    assert report.deleted == ()
    return report.kept.get("may still be committed", 0)


def test_a_load_that_landed_or_was_refused_leaves_no_runs(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)
    load(table, files(tmp_path / "in", frame(row(1, 1))))
    with pytest.raises(UserError, match="cannot be stored"):
        load(table, files(tmp_path / "bad", frame(row(2, 2)), frame({"device": "a"})))
    assert committable(table) == 0


def test_runs_of_a_load_that_died_stay_while_a_commit_could_name_its_files(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED)

    def crash(reached: str) -> None:
        if reached == "runs_staged":
            raise CrashError

    with pytest.raises(CrashError):
        load(table, files(tmp_path / "in", frame(row(1, 1))), environment=Environment(at_step=crash))
    assert committable(table) == 1


def test_files_loaded_before_an_overwrite_are_loaded_again(tmp_path: Path) -> None:
    """The overwrite has removed their rows."""
    table = Keyed(tmp_path, KEYED)
    one = files(tmp_path / "one", frame(row(1, 1), row(9, 9, "b")))
    two = files(tmp_path / "two", frame(row(2, 2)))
    load(table, one)
    for _ in range(2):
        load(table, two, mode=SaveMode.OVERWRITE)
        assert load(table, two) == LoadReport(files_known=1)
        assert load(table, one).files == 1
        assert table.values() == {("a", 1): 1, ("a", 2): 2, ("b", 9): 9}
        assert load(table, one) == LoadReport(files_known=1)


def test_files_loaded_before_an_overwrite_by_another_job_are_loaded_again(tmp_path: Path) -> None:
    table, other = Keyed(tmp_path, KEYED), Keyed(tmp_path, KEYED, name="other")
    one = files(tmp_path / "one", frame(row(1, 1)))
    load(table, one)
    load(other, files(tmp_path / "two", frame(row(2, 2))), mode=SaveMode.OVERWRITE)
    assert load(table, one).files == 1
    assert table.values() == {("a", 1): 1, ("a", 2): 2}


def test_a_key_that_an_overwrite_restored_is_replaced_by_later_loads(tmp_path: Path) -> None:
    table = Keyed(tmp_path, KEYED + ", delete: gone")
    table.put(row(1, 1), row(1, None, gone=True), row(2, 2), row(2, None, gone=True), row(3, 3))
    table.run()
    load(table, files(tmp_path / "one", frame(row(1, 10))), mode=SaveMode.OVERWRITE)
    load(table, files(tmp_path / "two", frame(row(1, 11), row(2, 21))))
    assert table.values() == {("a", 1): 11}, "the key that was not restored stays deleted"
    table.put(row(1, None, gone=True))
    table.run()
    assert table.values() == {}


def test_an_update_older_than_the_delete_does_not_replace_a_restored_row(tmp_path: Path) -> None:
    """Loads do not break RULES K2 for the log."""
    table = Keyed(tmp_path, KEYED + ", delete: gone, sequence: seq")
    table.put(row(1, 1, seq=1), row(1, None, seq=10, gone=True))
    table.run()
    restored = frame(row(1, 5)).with_columns(seq=pl.lit(5))
    load(table, files(tmp_path / "one", restored), mode=SaveMode.OVERWRITE)
    table.put(row(1, 7, seq=7))
    table.run()
    assert table.values() == {("a", 1): 5}
    table.put(row(1, 11, seq=11))
    table.run()
    assert table.values() == {("a", 1): 11}
