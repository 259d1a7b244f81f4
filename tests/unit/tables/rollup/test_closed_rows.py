"""What closed windows look like: tags as maps, names of quantiles."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.rollup.close_task import tags_of
from penstock.tables.rollup.schema import quantile_column

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"', ",", ":", "{}", '","', '":"', "\\", "", "é"]
)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=4), max_size=20))
def test_tags_come_out_of_canonical_json_as_they_went_in(tags: list[dict[str, str]]) -> None:
    texts = [json.dumps(tag, ensure_ascii=False, separators=(",", ":"), sort_keys=True) for tag in tags]
    result = tags_of(pl.Series(texts, dtype=pl.String))
    assert [dict(item) for item in result.to_pylist()] == tags


@pytest.mark.parametrize(
    ("rank", "name"), [(0.5, "q50"), (0.99, "q99"), (0.999, "q99_9"), (0.07, "q7"), (0.295, "q29_5")]
)
def test_a_quantile_has_a_name_that_sql_needs_no_quotes_for(rank: float, name: str) -> None:
    assert quantile_column(rank) == name
