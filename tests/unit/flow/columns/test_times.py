"""Times as text: a whole array gives what its texts give one by one, however usual and odd spellings are mixed."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.columns.times import timestamp_micros, timestamps_or_null
from tests.support.tries import tries

DAYS = st.sampled_from(["2026-03-01", "2024-02-29", "2023-02-29", "0000-02-29", "9999-12-31", "2026-13-01", "1900-1-1"])
CLOCKS = st.sampled_from(["", "T10:00:00", " 23:59:59.123456", "T10:00:00.123456789", "T10:00", "T24:00:00"])
ZONES = st.sampled_from(["", "Z", "+00:00", "-00:30", "+23:59", "-23:59", "+24:00", "+0130", "-05", "z"])
TEXTS = st.none() | st.just("yesterday") | st.builds("{}{}{}".format, DAYS, CLOCKS, ZONES)


@settings(max_examples=tries(300))
@given(st.lists(TEXTS, max_size=8))
def test_an_array_of_times_gives_what_its_texts_give_one_by_one(texts: list[str | None]) -> None:
    expected: list[int | None] = []
    unreadable = []
    for row, text in enumerate(texts):
        try:
            expected.append(None if text is None else timestamp_micros(text))
        except ValueError:
            expected.append(None)
            unreadable.append(row)
    times, misfits = timestamps_or_null(pa.array(texts, pa.string()))
    assert times.cast(pa.int64()).to_pylist() == expected
    assert list(misfits) == unreadable
