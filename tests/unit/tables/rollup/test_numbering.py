"""Series by number: nothing is mixed up on the way to a number and back, and the order is that of the table."""

from __future__ import annotations

import json

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.rollup.close_task import CloseNumbers

SERIES = st.tuples(st.sampled_from(["cpu", "cpu.a", "a", "é"]), st.sampled_from(["{}", '{"a":"1"}', '{"a":"2"}']))
ROWS = st.lists(SERIES, max_size=12)


def frame(series: list[tuple[str, str]], first_count: int = 0) -> pl.DataFrame:
    rows = [(metric, tags, len(metric), first_count + number) for number, (metric, tags) in enumerate(series)]
    kinds = {"metric": pl.String, "tags": pl.String, "bucket": pl.Int16, "count": pl.Int64}
    return pl.DataFrame(rows, kinds, orient="row")


@given(st.lists(ROWS, max_size=4))
def test_every_row_keeps_its_series_after_any_history(several: list[list[tuple[str, str]]]) -> None:
    numbering = CloseNumbers()
    numbered = [numbering.numbered(frame(rows, 100 * index)) for index, rows in enumerate(several)]
    ordered = numbering.ordered()
    for index, (rows, numbers) in enumerate(zip(several, numbered, strict=True)):
        assert numbers["count"].to_list() == list(range(100 * index, 100 * index + len(rows)))
        columns = ordered.columns(ordered.places(numbers["series"]))
        assert columns["metric"].to_pylist() == [metric for metric, _ in rows]
        assert columns["series"].to_pylist() == [metric + tags for metric, tags in rows]
        assert [dict(column) for column in columns["tags"].to_pylist()] == [json.loads(tags) for _, tags in rows]
        assert columns["bucket"].to_pylist() == [len(metric) for metric, _ in rows]


@given(ROWS)
def test_rows_are_numbered_by_metric_and_series(rows: list[tuple[str, str]]) -> None:
    numbering = CloseNumbers()
    numbers = numbering.numbered(frame(rows))["series"]
    expected = sorted({(metric, metric + tags) for metric, tags in rows})
    places = numbering.ordered().places(numbers).to_list()
    assert places == [expected.index((metric, metric + tags)) for metric, tags in rows]
