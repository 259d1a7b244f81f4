"""Values have the same hash exactly if they are the same, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.proof.values import column_hashes

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
def test_different_values_have_different_hashes_wherever_they_are(kind: pa.DataType, values: Sequence[Any]) -> None:
    hashes = _hashes(pa.array(values, kind))
    assert len(set(hashes)) == len(values)
    alone = [_hashes(pa.array([value], kind))[0] for value in values]
    assert hashes == alone == _hashes(pa.array([values[0], *values], kind).slice(1))


def _hashes(values: pa.Array) -> list[int]:
    return column_hashes(pa.table({"a": values})).to_series().to_list()
