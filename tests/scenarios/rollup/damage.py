"""Damages the files of a rollup for tests of `verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.scenarios.rollup.rollups import Rollup

Alter = Callable[[pa.Table], pa.Table]
WINDOWS, PARTIALS = "windows", "windows_partials"


def files(rollup: Rollup, table: str, interval: str = "") -> list[Path]:
    """The data files of the newest version; those of one interval if one is named."""
    file_uris = sorted(DeltaTable(rollup.folder / table).file_uris())
    return [Path(item) for item in file_uris if not interval or f"interval={interval}/" in item]


def rewrite(path: Path, alter: Alter) -> None:
    """Rewrite a file in place, with the same number of rows and, if Parquet allows, the same size."""
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


def changed(column: str, change: Callable[[Any], object], row: int = 0) -> Alter:
    """One value of a column is another one."""

    def alter(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[row] = change(values[row])
        return replaced(rows, column, values)

    return alter
