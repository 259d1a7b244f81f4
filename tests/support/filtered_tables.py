"""Tables of hostile values in many files, and filters over them: what readers skip by statistics must not matter."""

from __future__ import annotations

import math
import operator
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import staged_name
from penstock.lake.delta.compact import compact
from penstock.lake.delta.files import active_files
from penstock.lake.delta.opening import open_or_create
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("whole", pa.int64()),
        ("exact", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ratio", pa.float64()),
    ]
)
COLUMNS = SCHEMA.names[1:]
FILES = 8
ROWS_PER_FILE = 12
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CHARACTERS = (
    "aZ\x00\x7fé\u07ff\ud7ff\ue000\uffff\U00010000\U0001f600\U00020bb7\U0002ffff\U000e0001\U00100000\U0010ffff"
)
_NAMES = [
    "",
    "a",
    "𠮷野家",
    "吉野家",
    "😀",
    "\U000e0041",
    "\U0010fffd",
    "\U0010ffff",
    "Ω'\"\\\n",
    "x" * 31,
    "x" * 32,
    "x" * 33,
]
_RATIOS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1.7e308, -1.7e308, 0.1, 1 / 3]

_INSTANTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1900, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]

Row = dict[str, Any]
Reader = Callable[[str, "Filter"], list[int]]


@dataclass(frozen=True, slots=True)
class Filter:
    """A comparison of a column with a value, or with null."""

    column: str
    operator: str
    value: Any = None

    def holds(self, row: Row) -> bool:
        """As SQL sees it."""
        result = row[self.column]
        if self.operator == "is null":
            return result is None
        if self.operator == "is not null":
            return result is not None
        return result is not None and OPERATORS[self.operator](result, self.value)

    def sql(self, literal: Callable[[str, Any], str]) -> str:
        if self.operator.startswith("is"):
            return f'"{self.column}" {self.operator}'
        return f'"{self.column}" {self.operator} {literal(self.column, self.value)}'


@dataclass(frozen=True, slots=True)
class Filtered:
    """A table with statistics, its twin without, and their rows."""

    path: str
    bare: str
    rows: list[Row]

    def expected(self, condition: Filter, reader: Reader) -> list[int]:
        """A full scan in Python; readers disagree on NaN and on the sign of zero, so each is its own judge there."""
        if condition.column == "ratio":
            return reader(self.bare, condition)
        return sorted(row["n"] for row in self.rows if condition.holds(row))


def filtered_table(folder: Path, seed: int) -> Filtered:
    """Each file has few values, near each other, so that most filters allow most files to be skipped."""
    rng = random.Random(seed)
    files = [_file_rows(rng, number) for number in range(FILES)]
    table, bare = _created(str(folder / "table")), _created(str(folder / "bare"))
    for number, rows in enumerate(files):
        _append(table, rows, number)
    if seed % 2:
        compact(table, 2 * max(file.size_bytes for file in active_files(table.handle)))
    for file in active_files(table.handle):
        shutil.copy(folder / "table" / file.path, folder / "bare" / file.path)
        bare.commit_actions([bare.add_action(StagedFile("", 0, file.path, 0, file.size_bytes))], {}, {})
        bare.refresh()
    return Filtered(str(folder / "table"), str(folder / "bare"), [row for rows in files for row in rows])


def written_table(path: Path, files: list[list[str]]) -> str:
    """A table with one file for each list of texts; `n` counts through all of them."""
    table, count = _created(str(path)), 0
    for number, texts in enumerate(files):
        rows = [dict.fromkeys(COLUMNS) | {"n": count + index, "text": text} for index, text in enumerate(texts)]
        _append(table, rows, number)
        count += len(texts)
    return str(path)


def filters(table: Filtered, seed: int, count: int) -> Iterator[Filter]:
    rng = random.Random(seed)
    for _ in range(count):
        column = rng.choice(COLUMNS)
        kind = rng.choice([*OPERATORS, *OPERATORS, "is null", "is not null"])
        if kind.startswith("is"):
            yield Filter(column, kind)
            continue
        present = [row[column] for row in table.rows if row[column] is not None]
        value = rng.choice(present) if present and rng.random() < 0.8 else _value(rng, column)
        yield Filter(column, kind, value)


def with_deltalake(path: str, condition: Filter) -> list[int]:
    query = f"select n from t where {condition.sql(_datafusion)}"
    result = QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all()
    return sorted(pa.table(result).column("n").to_pylist())


def with_polars(path: str, condition: Filter) -> list[int]:
    column = pl.col(condition.column)
    if condition.operator.startswith("is"):
        chosen = column.is_null() if condition.operator == "is null" else column.is_not_null()
    else:
        chosen = OPERATORS[condition.operator](column, pl.lit(condition.value, dtype=_POLARS[condition.column]))  # type: ignore[assignment]
    result = pl.scan_delta(path).filter(chosen).select("n").collect()
    return sorted(result.get_column("n").to_list())


def with_duckdb(path: str, condition: Filter) -> list[int]:
    """Over the files of deltalake's data set, which carries the statistics: DuckDB's own extension is a download."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("t", DeltaTable(path).to_pyarrow_dataset())
        return sorted(n for (n,) in connection.execute(f"select n from t where {condition.sql(_duckdb)}").fetchall())


def spark_literal(column: str, value: Any) -> str:
    match value:
        case str():
            return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"
        case float():
            return f"double('{value!r}')".replace("inf", "Infinity")
        case Decimal():
            return f"{value:f}BD"
        case datetime():
            return f"timestamp'{_instant(value)}'"
        case date():
            return f"date'{value.isoformat()}'"
        case _:
            return "(-9223372036854775807L - 1L)" if value == -(2**63) else f"{value}L"


_POLARS: dict[str, Any] = {
    "text": pl.String,
    "whole": pl.Int64,
    "exact": pl.Decimal(20, 4),
    "day": pl.Date,
    "at": pl.Datetime("us", "UTC"),
    "ratio": pl.Float64,
}


def _datafusion(column: str, value: Any) -> str:
    kind = {
        "text": "Utf8",
        "whole": "Int64",
        "exact": "Decimal128(20, 4)",
        "day": "Date32",
        "at": 'Timestamp(Microsecond, Some("UTC"))',
        "ratio": "Float64",
    }[column]
    return f"arrow_cast({_quoted(_text(value))}, '{kind}')"


def _duckdb(column: str, value: Any) -> str:
    if isinstance(value, str):
        return f"decode(unhex('{value.encode().hex()}'))"
    kind = {"whole": "bigint", "exact": "decimal(20, 4)", "day": "date", "at": "timestamptz", "ratio": "double"}[column]
    return f"{_quoted(_text(value))}::{kind}"


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return _instant(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _instant(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file_rows(rng: random.Random, number: int) -> list[Row]:
    # A column of one file has few values, and sometimes none at all.
    pools = {
        column: [None] if rng.random() < 0.05 else [_value(rng, column) for _ in range(rng.randint(1, 3))]
        for column in COLUMNS
    }
    nulls = {column: rng.choice([0.0, 0.0, 0.3]) for column in COLUMNS}
    return [
        {"n": number * ROWS_PER_FILE + row}
        | {name: None if rng.random() < nulls[name] else rng.choice(pool) for name, pool in pools.items()}
        for row in range(ROWS_PER_FILE)
    ]


def _value(rng: random.Random, column: str) -> Any:
    match column:
        case "text":
            drawn = "".join(rng.choice(_CHARACTERS) for _ in range(rng.choice([1, 2, 3, 40, 2_000])))
            return rng.choice([drawn, rng.choice(_NAMES), "x" * 32 + drawn])
        case "whole":
            return rng.choice([-(2**63), 2**63 - 1, 2**53 + 1, 0, -1, rng.randint(-(2**63), 2**63 - 1)])
        case "exact":
            return Decimal(rng.choice([10**20 - 1, 1 - 10**20, 0, rng.randint(-(10**20), 10**20)])).scaleb(-4)
        case "day":
            return rng.choice([date.min, date.max, date(1969, 12, 31), date(1582, 10, 4)]) + timedelta(0)
        case "at":
            drawn_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randint(-(10**16), 10**17))
            return rng.choice([drawn_at, rng.choice(_INSTANTS)])
        case _:
            return rng.choice([*_RATIOS, rng.uniform(-1e9, 1e9)])


def _created(path: str) -> DeltaLog:
    return open_or_create(TablePlace(path), "filters", SCHEMA, "add")


def _append(table: DeltaLog, rows: list[Row], number: int) -> None:
    options = WriteOptions(table.spec.path, SCHEMA, row_group_rows_max=5)
    writer = StagedWriter(options, lambda: staged_name("t", 0, number, number + 1, uuid.uuid4().hex), "t", 0)
    writer.write(pa.RecordBatch.from_pylist(rows, SCHEMA))
    table.commit_actions([table.add_action(item) for item in writer.finish()], {}, {})
    table.refresh()
