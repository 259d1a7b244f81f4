"""Buckets of a lookup by key: none is missed, and a whole partition key needs only one."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.tables.keyed.layout import Layout, buckets_of, key_frame
from penstock.tables.keyed.lookup import KEYS_MAX, buckets_with, requested_values
from penstock.tables.keyed.spec import decode_layout, encode_layout

KINDS = pa.schema(
    [
        ("device", pa.string()),
        ("number", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("part", pa.int32()),
        ("raw", pa.binary()),
    ]
)
LAYOUTS = [
    Layout(("number",), ("device",), buckets=7),
    Layout(("at",), ("device", "number"), buckets=7),
    Layout(("number",), ("device", "at"), buckets=7),
    Layout(("device", "day"), (), buckets=7),
    Layout(("device", "number"), ("part", "raw"), buckets=5),
]
ROWS = st.fixed_dictionaries(
    {
        "device": st.text("abc", min_size=1, max_size=3),
        "number": st.integers(-50, 50),
        "at": st.integers(1_577_836_800, 1_893_456_000).map(lambda second: datetime.fromtimestamp(second, UTC)),
        "day": st.dates(date(2020, 1, 1), date(2030, 1, 1)),
        "part": st.integers(0, 9),
        "raw": st.binary(max_size=3),
    }
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@settings(max_examples=30)
@given(rows=st.lists(ROWS, min_size=1, max_size=5))
def test_a_row_is_searched_in_its_bucket(layout: Layout, rows: list[dict[str, object]]) -> None:
    table = pa.Table.from_pylist(rows, KINDS)
    values = requested_values(layout, KINDS, {name: [row[name] for row in rows] for name in layout.keys})
    result = buckets_with(layout, KINDS, values)
    assert result is not None
    assert set(buckets_of(layout, key_frame(layout, table)).to_list()) <= set(result)


def test_rows_of_one_partition_key_are_in_one_bucket() -> None:
    layout = LAYOUTS[0]
    result = buckets_with(layout, KINDS, requested_values(layout, KINDS, {"device": "a"}))
    assert result is not None and len(result) == 1
    assert buckets_with(layout, KINDS, requested_values(layout, KINDS, {"number": 1})) is None


def test_a_null_has_no_bucket() -> None:
    layout = LAYOUTS[0]
    assert buckets_with(layout, KINDS, requested_values(layout, KINDS, {"device": []})) == []
    assert buckets_with(layout, KINDS, requested_values(layout, KINDS, {"device": None})) == []


def test_too_many_combinations_are_searched_in_all_buckets() -> None:
    layout = LAYOUTS[1]
    keys = {"device": [f"d{number}" for number in range(200)], "number": range(100)}
    values = requested_values(layout, KINDS, keys)
    assert len(values["device"]) * len(values["number"]) > KEYS_MAX
    assert buckets_with(layout, KINDS, values) is None


def test_values_are_converted_to_the_type_of_the_column() -> None:
    layout = LAYOUTS[2]
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    asked = {"at": ["2026-03-01T12:00:00Z", noon.replace(tzinfo=None), noon], "device": None, "number": 7}
    assert requested_values(layout, KINDS, asked) == {"at": [noon] * 3, "device": [None], "number": [7]}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"devise": "a"}, "device"),
        ({"number": "x"}, "not a value"),
        ({"number": True}, "not a value"),
        ({"day": 1}, "day"),
    ],
)
def test_nonsensical_settings_are_reported(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        requested_values(LAYOUTS[0], KINDS, keys)
    assert message in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_table_keeps_its_keys(layout: Layout) -> None:
    assert decode_layout(encode_layout(layout)) == layout


def test_the_text_of_the_layout_property_does_not_change() -> None:
    """It is what tables are recognised by: written down, not computed."""
    assert encode_layout(LAYOUTS[4]) == (
        '{"version":4,"partition_keys":["part","raw"],"row_keys":["device","number"],"sequence":null,"buckets":5}'
    )
    with pytest.raises(UserError, match="property"):
        decode_layout('{"version":4}')
