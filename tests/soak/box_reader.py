"""The black box of exports as another engine sees it: DuckDB over the plain Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq

from tests.soak.box_events import Event, checksum
from tests.support.quarantine_url import export_quarantines

READS_MAX = 5
SHOWN_MAX = 5

Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared of a row: its folder, its id, its contents."""

    type: str
    day: date
    id: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Records without a row that equals them, and rows that are duplicated or equal no record."""

    missing: tuple[tuple[Place, Row], ...]
    extra: tuple[tuple[Place, Row], ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)

    def __str__(self) -> str:
        lines = []
        for label, rows in (("missing", self.missing), ("not sent so, or too many", self.extra)):
            folders = dict(Counter((row.type, str(row.day)) for _, row in rows))
            lines.append(f"{label}: {len(rows)} in {folders}, as {rows[:SHOWN_MAX]}")
        return "\n".join(lines)


def difference(root: Path, sent: Mapping[Place, Event], types: Iterable[str]) -> Difference:
    """Compare the files of these types with what was sent, row by row."""
    names = set(types)
    expected = Counter(
        (place, Row(item.type, item.day, item.id, item.checksum))
        for place, item in sent.items()
        if item.type is not None and item.type in names
    )
    counter: Counter[tuple[Place, Row]] = Counter()
    for name in names:
        counter.update(_rows(root, name))
    return Difference(tuple((expected - counter).elements()), tuple((counter - expected).elements()))


def _rows(root: Path, name: str) -> list[tuple[Place, Row]]:
    """As in `docs/exports.md`: list first, then open; again if a listed file was deleted."""
    for attempt in range(READS_MAX):
        files = [str(item) for item in (root / name).glob("day=*/*.parquet")]
        try:
            return _read(name, files) if files else []
        except duckdb.IOException:
            if attempt == READS_MAX - 1:
                raise
    return []


def _read(name: str, files: list[str]) -> list[tuple[Place, Row]]:
    with duckdb.connect() as connection:
        answer = connection.execute(
            "SELECT * FROM read_parquet(?, hive_partitioning = true, union_by_name = true)", [files]
        )
        columns = [item[0] for item in answer.description or ()]
        bodies = [dict(zip(columns, values, strict=True)) for values in answer.fetchall()]
    result = []
    for body in bodies:
        place = (body.pop("kafka_topic"), body.pop("kafka_partition"), body.pop("kafka_offset"))
        result.append((place, Row(name, body.pop("day"), body["id"], checksum(body))))
    return result


def visible(root: Path, name: str) -> int:
    """How many rows of a type a reader sees now; a file may be deleted meanwhile."""
    total = 0
    for path in (root / name).glob("day=*/*.parquet"):
        try:
            total += _count(str(path), path.stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return total


@cache
def _count(path: str, written_ns: int) -> int:
    return int(pq.read_metadata(path).num_rows)


def quarantined(root: Path) -> Counter[Place]:
    """How often each record is in quarantine."""
    counter: Counter[Place] = Counter()
    for folder in export_quarantines(root):
        counter.update(pl.read_delta(str(folder)).select("topic", "partition", "offset").rows())
    return counter
