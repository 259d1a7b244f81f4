"""Rows have the same digest exactly if they have the same values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.export.old_proof.values.digests import column_digests, row_digests

NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.list_(pa.int32()))])))])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [0, 1, -1, None, 2**62]),
        (pa.string(), ["", "a", "A", None, "𠮷", "a\0"]),
        (pa.binary(), [b"", b"a", None, b"\xff"]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.5, 1e300, None, float("inf")]),
        (pa.decimal128(38, 10), [Decimal("1.1"), Decimal("-1.1"), None]),
        (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), None]),
        (pa.list_(pa.int32()), [[], [1], [1, 2], [2, 1], None, [None], [1, None]]),
        (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", 2)], [("b", 1)], None]),
        (
            NESTED,
            [
                None,
                {"a": None, "b": None},
                {"a": 1, "b": []},
                {"a": 1, "b": [{"c": "x", "d": [1, 2]}]},
                {"a": 1, "b": [{"c": "x", "d": [1]}, {"c": None, "d": [2]}]},
                {"a": 1, "b": [{"c": "x", "d": [1, 2]}, None]},
            ],
        ),
    ],
)
def test_different_values_have_different_digests_wherever_they_stand(kind: pa.DataType, values: Sequence[Any]) -> None:
    digests = column_digests(pa.array(values, kind)).tolist()
    assert len(set(digests)) == len(values)
    alone = [column_digests(pa.array([each], kind)).tolist()[0] for each in values]
    sliced = column_digests(pa.array([values[0], *values], kind).slice(1)).tolist()
    assert digests == alone == sliced


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["x", "y", None])), max_size=6)


@given(rows, rows)
def test_sums_of_digests_are_equal_exactly_if_the_rows_are(one: list[Any], other: list[Any]) -> None:
    def total(values: list[Any]) -> int:
        table = {name: pa.array([row[at] for row in values], kind) for at, (name, kind) in enumerate(KINDS.items())}
        digests = {name: column_digests(each) for name, each in table.items()}
        return int(np.sum(row_digests(digests, KINDS, np.uint64(1)), dtype=np.uint64))

    key = str
    assert (total(one) == total(other)) == (sorted(one, key=key) == sorted(other, key=key))


KINDS = {"a": pa.int64(), "b": pa.int64(), "c": pa.string()}
