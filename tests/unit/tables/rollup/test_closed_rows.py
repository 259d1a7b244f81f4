"""What closed windows look like: tags as maps."""

from __future__ import annotations

import json

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.rollup.close_task import tags_of

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"', ",", ":", "{}", '","', '":"', "\\", "", "é"]
)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=4), max_size=20))
def test_tags_survive_canonical_json_unchanged(tags: list[dict[str, str]]) -> None:
    texts = [json.dumps(tag, ensure_ascii=False, separators=(",", ":"), sort_keys=True) for tag in tags]
    result = tags_of(pl.Series(texts, dtype=pl.String))
    assert [dict(item) for item in result.to_pylist()] == tags
