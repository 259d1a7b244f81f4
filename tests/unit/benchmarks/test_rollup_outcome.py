"""A benchmark of rollups compares what both sides wrote: every value counts, the order of rows and tags does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks.rollup import our_job, outcome
from benchmarks.sides import check_same
from penstock.embedded.sample import MetricSample, metric_records
from penstock.errors import TransientError
from penstock.tables.registry import load_job
from penstock.tables.rollup.spec import RollupSpec
from tests.support.metric_windows import SECONDS, expected_windows

SAMPLE = MetricSample(60, hosts=3)
_INSTANT = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("interval", pa.string()),
        ("window_start", _INSTANT),
        ("window_end", _INSTANT),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
    ]
)


def rows() -> list[dict[str, Any]]:
    return [
        {
            "metric": window.metric,
            "tags": list(window.tags),
            "interval": window.interval,
            "window_start": datetime.fromtimestamp(window.start, UTC),
            "window_end": datetime.fromtimestamp(window.start + SECONDS[window.interval], UTC),
            "count": totals.count,
            "sum": totals.sum,
            "min": totals.min,
            "max": totals.max,
        }
        for window, totals in expected_windows(value for _, value in metric_records(SAMPLE)).items()
    ]


def written(path: Path, content: Sequence[Mapping[str, Any]], files: int = 1) -> dict[str, Any]:
    for number in range(files):
        part = pa.Table.from_pylist(list(content[number::files]), schema=_SCHEMA)
        write_deltalake(str(path), part, mode="append", partition_by=["interval"])
    return outcome(path)


def test_the_outcome_counts_windows_and_their_points(tmp_path: Path) -> None:
    result = written(tmp_path, rows())
    assert (result["windows"], result["window_points"]) == (len(rows()), SAMPLE.points * 4)


def test_the_order_of_rows_and_tags_and_the_number_of_files_do_not_matter(tmp_path: Path) -> None:
    turned = [{**row, "tags": row["tags"][::-1]} for row in rows()[::-1]]
    assert written(tmp_path / "one", rows()) == written(tmp_path / "three", turned, files=3)


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("metric", "cpu.other"),
        ("tags", [("dc", "eu"), ("host", "host-99999")]),
        ("window_start", datetime(2020, 1, 1, tzinfo=UTC)),
        ("window_end", datetime(2020, 1, 1, tzinfo=UTC)),
        ("count", 99),
        ("sum", 0.015625),
        ("min", -1.0),
        ("max", 1000.0),
    ],
)
def test_one_other_value_makes_another_outcome(tmp_path: Path, column: str, other: object) -> None:
    first, *more = rows()
    changed = written(tmp_path / "changed", [{**first, column: other}, *more])
    assert changed["digest"] != written(tmp_path / "whole", rows())["digest"]


def test_a_window_in_another_interval_makes_another_outcome(tmp_path: Path) -> None:
    first, *more = rows()
    assert first["interval"] == "1m"
    moved = written(tmp_path / "moved", [{**first, "interval": "10m"}, *more])
    assert moved["digest"] != written(tmp_path / "whole", rows())["digest"]


def test_the_job_of_our_side_asks_for_the_windows_that_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(our_job("localhost:9092", "metrics", str(tmp_path / "windows")))
    table = load_job(path).table
    assert isinstance(table, RollupSpec)
    assert {window.name: window.millis for window in table.windows} == {
        name: seconds * 1000 for name, seconds in SECONDS.items()
    }


def test_a_side_with_another_outcome_stops_the_benchmark() -> None:
    check_same("penstock", [{"digest": "a"}])
    check_same("baseline", [{"digest": "a"}, {"digest": "a"}])
    with pytest.raises(TransientError, match="baseline"):
        check_same("baseline", [{"digest": "a"}, {"digest": "b"}])
