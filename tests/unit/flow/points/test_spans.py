"""Literals and bytes in spans, against what Python finds in each text by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.points.spans import find_alike, next_of, places_of
from penstock.flow.spans import spans_of

PIECES = st.sampled_from(["ab", "a", "b", "ü", "", "xyz", "😀", "}"])
TEXTS = st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=12)


@pytest.mark.parametrize("from_end", [False, True])
@given(TEXTS)
def test_a_literal_is_found_in_each_span_that_holds_it_and_in_no_other(from_end: bool, texts: list[str]) -> None:
    spans = spans_of(pa.array(texts, pa.string()))
    places = find_alike(spans, "ab", from_end=from_end).tolist()
    assert [place >= 0 for place in places] == ["ab" in item for item in texts]
    for text, start, place in zip(texts, spans.starts.tolist(), places, strict=True):
        assert place < 0 or text.encode()[place - start :].startswith(b"ab")


@given(TEXTS)
def test_the_next_place_of_a_byte_is_the_first_at_or_after_the_start(texts: list[str]) -> None:
    spans = spans_of(pa.array(texts, pa.string()))
    data = "".join(texts).encode()
    expected = [data.find(b"}", start) if b"}" in data[start:] else len(data) for start in spans.starts.tolist()]
    assert next_of(places_of(spans, ord("}")), spans.starts).tolist() == expected


def test_spans_may_be_a_part_of_their_buffer() -> None:
    texts = pa.array(["}ab", "xab", "ab}"], pa.string()).slice(1)
    spans = spans_of(texts)
    assert find_alike(spans, "ab", from_end=True).tolist() == [4, 6]
    assert places_of(spans, ord("}")).tolist() == [8, 9]
    assert find_alike(spans.where(np.zeros(2, np.bool_)), "ab", from_end=False).tolist() == []
