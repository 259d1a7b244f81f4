"""Rows that the table has already cost no writes, and a table is the same with and without that shortcut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.environment import Environment
from penstock.tables.keyed import merger
from penstock.tables.keyed.loading.load import LoadReport
from penstock.tables.keyed.merging import merge
from penstock.tables.kind import CompactRequest, Loading, SaveMode
from penstock.tables.registry import kind_of
from tests.scenarios.local_spark import local_session
from tests.support.keyed_tables import Keyed
from tests.support.tries import tries

SCHEMA = "device: string, number: long, value: double, tags: [string], gone: boolean, seq: long"
KEYED = "partition_keys: [device], row_keys: [number], delete: gone, buckets: 2, chunk_rows: 10"
LAYOUTS = {
    "log": KEYED,
    "sequence": f"{KEYED}, sequence: seq",
    "partial updates": f"{KEYED}, partial_updates: merge",
    "partial updates, sequence": f"{KEYED}, partial_updates: merge, sequence: seq",
    "copy on write": f"{KEYED}, deletion_vectors: false",
}
TYPES: dict[str, Any] = {
    "device": pl.String,
    "number": pl.Int64,
    "value": pl.Float64,
    "tags": pl.List(pl.String),
    "gone": pl.Boolean,
    "seq": pl.Int64,
}
WALKS, STEPS = 2, 10
Row = dict[str, Any]


def measurement(number: int, value: float | None, seq: int = 0, **more: Any) -> Row:
    return {"device": "ab"[number % 2], "number": number, "value": value, "seq": seq, **more}


def load(table: Keyed, *files: list[Row], mode: SaveMode = SaveMode.APPEND) -> LoadReport:
    kind = kind_of(table.job)
    assert isinstance(kind, Loading)
    folder = table.folder / f"files-{len(list(table.folder.iterdir()))}"
    folder.mkdir()
    for number, rows in enumerate(files):
        pl.DataFrame(rows, schema=TYPES).write_parquet(folder / f"{number}.parquet")
    report = kind.load(table.job, [str(folder)], mode, local_session(), Environment())
    assert isinstance(report, LoadReport)
    return report


def compact(table: Keyed) -> None:
    kind_of(table.job).compact(table.job, CompactRequest(), Environment(), None)


def stored(table: Keyed) -> list[str]:
    """All columns of all rows, as text: zeros of both signs differ."""
    rows = pl.read_delta(table.path).sort("device", "number").to_dicts()
    return [str(sorted(row.items())) for row in rows]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_the_table_has_are_not_written_again(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger, "REWRITE_SHARE", 0.5)
    table = Keyed(tmp_path, LAYOUTS[layout], schema=SCHEMA)
    rows = [measurement(number, number / 4 if number % 3 else None, tags=["x"] * (number % 4)) for number in range(60)]
    load(table, rows[:25], rows[20:])
    load(table, [measurement(8, -8.0, seq=1, tags=["new"]), measurement(9, 2.25, gone=True, seq=1)])
    rows[8] = measurement(8, -8.0, seq=1, tags=["new"])
    # A load that deletes is older than the log, but the rows of a later load are newer than it.
    rows = [row for row in rows if row["number"] != 9]
    before, vectors = table.files(), table.table().vectors()
    assert bool(vectors) is (layout != "copy on write")
    shuffled = random.Random(1).sample(rows, len(rows))
    for part in ([rows], [rows[:7], rows[7:31], rows[31:]], [shuffled[:30], shuffled[30:]], [shuffled[::3]]):
        report = load(table, *part)
        assert report.skipped == report.rows == sum(map(len, part))
        assert table.files() == before and table.table().vectors() == vectors
    compact(table)
    before = table.files()
    assert load(table, shuffled).skipped == len(rows) and table.files() == before


def test_one_changed_row_among_the_same_ones_is_the_only_one_that_is_written(tmp_path: Path) -> None:
    table = Keyed(tmp_path, "row_keys: [number], buckets: 1", schema=SCHEMA)
    load(table, [measurement(number, 0.0, seq=1) for number in range(100)])
    before = table.files()
    changed = [measurement(number, -0.0 if number == 7 else 0.0, seq=2 if number == 8 else 1) for number in range(100)]
    assert load(table, changed).skipped == 98
    [new] = table.files() - before
    assert before < table.files() and pl.read_parquet(new)["number"].to_list() == [7, 8]
    assert str(pl.read_parquet(new)["value"].to_list()) == "[-0.0, 0.0]"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_is_the_same_with_and_without_the_shortcut(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger, "REWRITE_SHARE", 0.4)
    for seed in range(tries(WALKS)):
        tables = []
        for name in ("with", "without"):
            (tmp_path / f"{seed}-{name}").mkdir()
            table = Keyed(tmp_path / f"{seed}-{name}", LAYOUTS[layout], schema=SCHEMA)
            with monkeypatch.context() as patch:
                if name == "without":
                    patch.setattr(merge, "without_same", lambda combined, base, keys: combined)
                    patch.setattr(merge, "_without_present", lambda flow, plan, incoming: incoming)
                walk(table, random.Random(seed))
            tables.append(table)
        assert stored(tables[0]) == stored(tables[1]), seed
        assert not any(check.violated for check in tables[0].verified(values=False).checks)


def walk(table: Keyed, chance: random.Random) -> None:
    """Loads, many of whose rows were loaded before, among records of the log, deletes, overwrites and compactions."""
    loaded: list[Row] = []

    def fresh(count: int) -> list[Row]:
        return [
            measurement(
                chance.randrange(40),
                chance.choice([None, 0.0, -0.0, float("nan"), 1.5]),
                seq=chance.randrange(3),
                tags=chance.choice([None, [], ["x"], ["x", None]]),
                gone=chance.choice([None, False, False, False, True]),
            )
            for _ in range(count)
        ]

    load(table, [measurement(number, 0.0, tags=["x"]) for number in range(40)])
    for _ in range(STEPS):
        match chance.randrange(6):
            case 0:
                table.put(*({**row, "value": chance.choice([None, 0.0, 1.5])} for row in fresh(chance.randrange(1, 9))))
                table.run()
            case 1:
                compact(table)
            case 2 if chance.random() < 0.3:
                load(table, fresh(30), mode=SaveMode.OVERWRITE)
            case _:
                again = chance.sample(loaded, chance.randrange(len(loaded) + 1))
                rows = again + fresh(chance.choice([1, 3, 30]) if not again or chance.random() < 0.5 else 0)
                loaded += rows
                cut = chance.randrange(len(rows))
                load(table, *[part for part in (rows[:cut], rows[cut:]) if part])
