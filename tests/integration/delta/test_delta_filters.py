"""Delta Spark, skipping files by our statistics, finds the rows that a full scan finds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.filtered_tables import COLUMNS, Filter, filtered_table, filters, spark_literal, written_table

SEED = 3
FILTERS = 16
PLANES = ["A", "é", "\uffff", "😀", "𠮷野家", "\U000e0041", "\U0010ffff", "𠮷" * 33, "\U0010ffff" * 33]


def matching_rows(spark: SparkSession, path: str, conditions: list[Filter]) -> list[list[int]]:
    """All filters as one job; each scans the table for itself, so that each skips files."""
    table = f"delta.`{path}`"
    queries = [
        f"select {number} as q, n from {table} where {item.sql(spark_literal).replace(chr(34), '`')}"
        for number, item in enumerate(conditions)
    ]
    rows: dict[int, list[int]] = defaultdict(list)
    for row in spark.sql(" union all ".join(queries)).collect():
        rows[row["q"]].append(row["n"])
    return [sorted(rows[number]) for number in range(len(conditions))]


def test_skipping_files_changes_no_result(tmp_path: Path, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = filtered_table(tmp_path, SEED)
    conditions = list(filters(table, SEED, FILTERS))
    assert {item.column for item in conditions} == set(COLUMNS)
    judged_by_itself = [condition for condition in conditions if condition.column == "ratio"]
    scanned = dict(zip(judged_by_itself, matching_rows(spark, table.bare, judged_by_itself), strict=True))
    for condition, rows in zip(conditions, matching_rows(spark, table.path, conditions), strict=True):
        in_python = sorted(row["n"] for row in table.rows if condition.holds(row))
        assert rows == scanned.get(condition, in_python), (SEED, condition)


def test_text_of_every_plane_is_found_where_it_is_the_bound_of_its_file(tmp_path: Path, spark: SparkSession) -> None:
    path = written_table(tmp_path / "table", [[text] for text in PLANES])
    rows = matching_rows(spark, path, [Filter("text", "=", text) for text in PLANES])
    assert rows == [[number] for number in range(len(PLANES))]
