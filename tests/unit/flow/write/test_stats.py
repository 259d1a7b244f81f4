"""File statistics never lie: every value lies between the bounds that readers skip files by."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.stats import FileStats


def text_of(table: pa.Table, *, indexed_columns_max: int = 32, row_group_rows: int = 1000) -> str:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_rows, coerce_timestamps="us", store_schema=False)
    stats = FileStats(table.schema, indexed_columns_max)
    stats.note(table)
    return stats.as_json(pq.read_metadata(sink))


def stats_of(table: pa.Table, **settings: int) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(text_of(table, **settings), parse_float=Decimal)
    return stats


def bounds_of(values: list[Any], kind: pa.DataType) -> tuple[Any, Any]:
    stats = stats_of(pa.table({"c": pa.array(values, kind)}), row_group_rows=2)
    return stats["minValues"].get("c"), stats["maxValues"].get("c")


def test_numbers_dates_and_strings_over_several_row_groups() -> None:
    table = pa.table(
        {
            "i": pa.array([5, None, -7, 2], pa.int32()),
            "s": ["b", "é", None, "a"],
            "d": [date(2026, 1, 2), date(1969, 12, 31), None, None],
            "b": [True, None, False, True],
            "y": [b"x", None, None, None],
        }
    )
    assert stats_of(table, row_group_rows=1) == {
        "numRecords": 4,
        "minValues": {"i": -7, "s": "a", "d": "1969-12-31"},
        "maxValues": {"i": 5, "s": "é", "d": "2026-01-02"},
        "nullCount": {"i": 1, "s": 1, "d": 2, "b": 1, "y": 3},
    }


def test_statistics_cover_nested_structs_but_not_lists_and_maps() -> None:
    table = pa.table(
        {
            "l": pa.array([[1], None], pa.list_(pa.struct([("p", pa.int32()), ("q", pa.int32())]).field(0).type)),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
            "meta": pa.array([{"a": {"t.u": "x"}, "n": 3}, None]),
            "last": [1, 2],
        }
    )
    assert stats_of(table) == {
        "numRecords": 2,
        "minValues": {"meta": {"a": {"t.u": "x"}, "n": 3}, "last": 1},
        "maxValues": {"meta": {"a": {"t.u": "x"}, "n": 3}, "last": 2},
        "nullCount": {"meta": {"a": {"t.u": 1}, "n": 1}, "last": 0},
    }


def test_only_the_first_columns_are_indexed_and_a_list_counts_as_one() -> None:
    table = pa.table({"l": [[1]], "a": pa.array([{"x": 1, "y": 2}]), "z": [3]})
    assert stats_of(table, indexed_columns_max=2)["nullCount"] == {"a": {"x": 0}}
    assert stats_of(table, indexed_columns_max=3)["nullCount"] == {"a": {"x": 0, "y": 0}}
    assert stats_of(table, indexed_columns_max=0)["nullCount"] == {}


def test_a_long_string_is_cut_and_its_upper_bound_still_sorts_after_it() -> None:
    assert bounds_of(["x" * 32], pa.string()) == ("x" * 32, "x" * 32)
    assert bounds_of(["x" * 33], pa.string()) == ("x" * 32, "x" * 32 + "\U0010ffff")
    assert bounds_of(["é" * 40], pa.string()) == ("é" * 32, "é" * 32 + "\U0010ffff")


def test_an_upper_bound_is_not_cut_before_the_last_code_point() -> None:
    last = "\U0010ffff"
    assert bounds_of(["x" * 32 + last * 2], pa.string()) == ("x" * 32, "x" * 32 + last * 2)
    assert bounds_of(["x" * 32 + last * 2 + "y"], pa.string()) == ("x" * 32, "x" * 32 + last * 3)


def test_a_string_too_long_for_the_footer_has_bounds_all_the_same() -> None:
    assert bounds_of(["a", "b", "x" * 5000], pa.string()) == ("a", "x" * 32 + "\U0010ffff")
    assert bounds_of(["é" * 5000, "z", None, "a", "b"], pa.string()) == ("a", "é" * 32 + "\U0010ffff")
    nested = stats_of(pa.table({"a": pa.array([{"t": "x" * 5000}, None, {"t": "b"}])}), row_group_rows=1)
    assert (nested["minValues"], nested["maxValues"]) == ({"a": {"t": "b"}}, {"a": {"t": "x" * 32 + "\U0010ffff"}})


def test_text_and_names_stay_utf8() -> None:
    assert '"minValues":{"ü𠮷":"𠮷野家"}' in text_of(pa.table({"ü𠮷": ["𠮷野家"]}))


def test_statistics_of_text_that_is_not_utf8_have_no_bounds() -> None:
    assert bounds_of_array(pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())) == (None, None)


def bounds_of_array(values: pa.Array) -> tuple[Any, Any]:
    stats = stats_of(pa.table({"c": values}))
    return stats["minValues"].get("c"), stats["maxValues"].get("c")


def test_instants_are_rounded_outwards_to_milliseconds() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)
    expected = ("2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.124Z")
    assert bounds_of([at], pa.timestamp("us", "UTC")) == expected
    assert bounds_of([at], pa.timestamp("us", "Europe/Paris")) == expected
    assert bounds_of([at.replace(tzinfo=None)], pa.timestamp("us")) == tuple(item[:-1] for item in expected)
    assert bounds_of([-1], pa.timestamp("us", "UTC")) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")
    assert bounds_of([5], pa.timestamp("ms", "UTC")) == ("1970-01-01T00:00:00.005Z",) * 2


def test_instants_and_days_that_no_reader_knows_are_left_out() -> None:
    end = 253_402_300_800_000_000  # 10000-01-01T00:00:00Z
    assert bounds_of([0, end], pa.timestamp("us", "UTC")) == ("1970-01-01T00:00:00.000Z", None)
    assert bounds_of([end - 1], pa.timestamp("us", "UTC")) == (
        "9999-12-31T23:59:59.999Z",
        "9999-12-31T23:59:59.999999Z",
    )
    assert bounds_of_array(pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())) == ("1970-01-01", None)


def test_decimals_are_exact_json_numbers() -> None:
    table = pa.table({"c": pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9))})
    assert '"minValues":{"c":12345678901234567890.123456789}' in text_of(table)
    assert bounds_of([Decimal("-3.10"), Decimal("0.00")], pa.decimal128(5, 2)) == (Decimal("-3.10"), Decimal("0.00"))
    assert "0.0000000001" in text_of(pa.table({"c": pa.array([Decimal("1e-10")], pa.decimal128(20, 10))}))


def test_a_column_with_nan_has_no_maximum_because_spark_sorts_nan_last() -> None:
    assert bounds_of([1.5, math.nan, 2.5], pa.float64()) == (Decimal("1.5"), None)
    assert bounds_of([math.nan], pa.float32()) == (None, None)
    nested = stats_of(pa.table({"a": pa.array([{"f": 1.0}, {"f": math.nan}, None])}))
    assert (nested["minValues"], nested["maxValues"]) == ({"a": {"f": Decimal("1.0")}}, {})


def test_infinities_are_left_out_and_zeros_keep_both_signs_inside() -> None:
    assert bounds_of([-math.inf, 1.0], pa.float64()) == (None, Decimal("1.0"))
    assert bounds_of([1.0, math.inf], pa.float64()) == (Decimal("1.0"), None)
    low, high = bounds_of([0.0, -0.0], pa.float64())
    assert (math.copysign(1, low), math.copysign(1, high)) == (-1.0, 1.0)


def test_a_column_of_nulls_and_an_empty_file_have_no_bounds() -> None:
    table = pa.table({"c": pa.array([None, None], pa.string())})
    assert stats_of(table) == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"c": 2}}
    assert stats_of(table.slice(0, 0))["numRecords"] == 0


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(seconds=1, microseconds=1)

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=40) | st.text("x\U0010ffff\uffff", min_size=30, max_size=40)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.integers(-62_000_000_000, 253_000_000_000).map(lambda item: EPOCH + item * TICK)),
    (pa.decimal128(20, 5), st.decimals(-(10**14), 10**14, places=5)),
]
columns = st.sampled_from(KINDS).flatmap(
    lambda item: st.tuples(st.just(item[0]), st.lists(st.none() | item[1], min_size=1, max_size=30))
)


def read_bound(kind: pa.DataType, bound: Any) -> Any:
    if pa.types.is_date(kind):
        return date.fromisoformat(bound)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(bound)
    return float(bound) if pa.types.is_floating(kind) else bound


@given(columns, st.integers(1, 10))
def test_every_value_lies_between_the_bounds_and_they_are_tight(
    column: tuple[pa.DataType, list[Any]], row_group_rows: int
) -> None:
    kind, values = column
    table = pa.table({"a": pa.StructArray.from_arrays([pa.array(values, kind)], ["c"])})
    stats = stats_of(table, row_group_rows=row_group_rows)
    present = [value for value in values if value is not None]
    ordered = [item for item in present if not (isinstance(item, float) and math.isnan(item))]
    assert stats["numRecords"] == len(values)
    assert stats["nullCount"] == {"a": {"c": len(values) - len(present)}}
    low, high = (stats[name].get("a", {}).get("c") for name in ("minValues", "maxValues"))
    if low is not None:
        low = read_bound(kind, low)
        assert all(low <= value for value in ordered)
    if high is not None:
        high = read_bound(kind, high)
        assert all(value <= high for value in present)
    if ordered and len(ordered) == len(present) and not pa.types.is_floating(kind) and not pa.types.is_string(kind):
        within = timedelta(milliseconds=1) if pa.types.is_temporal(kind) else 0
        assert min(ordered) - low <= within and high - max(ordered) <= within
