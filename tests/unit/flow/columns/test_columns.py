"""Computed columns over decoded rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.flow.columns.computed import Computed, compute, output_type
from penstock.flow.rows import DecodedRows
from penstock.job.sql_text import parse_expression as parse
from tests.unit.flow.kafka_batches import kafka_batch

MICROS = pa.timestamp("us", "UTC")


def rows_of(kind: pa.DataType, values: list[Any], headers: list[Any] | None = None) -> DecodedRows:
    columns = pa.RecordBatch.from_pydict({"x": pa.array(values, kind)})
    return DecodedRows(columns, kafka_batch([b"{}"] * len(values), headers=headers))


def computed(text: str, rows: DecodedRows) -> list[Any]:
    """The values of one column, whose type must be the one that `output_type` gave."""
    result = compute(rows, {"c": parse(text)})
    assert result.bad.errors.to_pylist() == []
    assert result.rows is not None
    assert result.columns.schema.field("c").type == output_type(parse(text), rows.columns.schema)
    return list(result.columns.column("c").to_pylist())


def offsets(result: Computed) -> tuple[list[int], list[int]]:
    return result.rows.kafka.column("offset").to_pylist(), result.bad.kafka.column("offset").to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "2021-03-24T15:06:17.321710+00:00",
        "2021-03-24T15:06:17.321710123Z",
        "2021-03-24T15:06:17",
        "2021-03-24 15:06:17",
        "2021-03-25T00:30:00+01:00",
        "2021-03-24",
    ],
)
def test_day_is_the_utc_day_of_a_time_in_any_spelling(text: str) -> None:
    assert computed("day(x)", rows_of(pa.string(), [text, None])) == [date(2021, 3, 24), None]


def test_day_of_texts_in_mixed_spellings() -> None:
    texts = ["1969-12-31T23:59:59Z", "2400-02-29 00:00:00", None, "2021-03-24T23:59:59.999999999-01:00"]
    assert computed("day(x)", rows_of(pa.string(), texts)) == [
        date(1969, 12, 31),
        date(2400, 2, 29),
        None,
        date(2021, 3, 25),
    ]


def test_day_and_hour_of_times_and_dates() -> None:
    # 1969-12-31T23:59:59.999999Z and 2001-09-09T01:46:40Z
    times = rows_of(MICROS, [-1, 1_000_000_000_000_000, None])
    assert computed("day(x)", times) == [date(1969, 12, 31), date(2001, 9, 9), None]
    assert computed("hour(x)", times) == [
        datetime(1969, 12, 31, 23, tzinfo=UTC),
        datetime(2001, 9, 9, 1, tzinfo=UTC),
        None,
    ]
    dates = rows_of(pa.date32(), [date(2021, 3, 24)])
    assert computed("day(x)", dates) == [date(2021, 3, 24)]
    assert computed("hour(x)", dates) == [datetime(2021, 3, 24, tzinfo=UTC)]
    assert computed("hour(x)", rows_of(pa.string(), ["2021-03-24T15:59:59+01:00"])) == [
        datetime(2021, 3, 24, 14, tzinfo=UTC)
    ]


def test_a_text_that_is_not_a_time_makes_only_its_row_bad() -> None:
    rows = rows_of(pa.string(), ["2021-03-24", "soon", None, "2021-13-01", "2021-03-25T00:00:00Z"])
    result = compute(rows, {"date": parse("day(x)"), "at": parse("kafka.offset")})
    assert offsets(result) == ([100, 102, 104], [101, 103])
    assert result.columns.to_pylist() == [
        {"date": date(2021, 3, 24), "at": 100},
        {"date": None, "at": 102},
        {"date": date(2021, 3, 25), "at": 104},
    ]
    assert result.rows.columns.column("x").to_pylist() == ["2021-03-24", None, "2021-03-25T00:00:00Z"]
    assert result.bad.errors.to_pylist() == ['date: "soon" is not a time', 'date: "2021-13-01" is not a time']


def test_rows_without_a_fault_are_not_copied() -> None:
    rows = rows_of(pa.string(), ["2021-03-24"])
    assert compute(rows, {"date": parse("day(x)")}).rows.kafka is rows.kafka
    assert compute(rows, {}).rows.kafka is rows.kafka


def test_no_rows_give_no_columns_values() -> None:
    result = compute(rows_of(pa.string(), []), {"date": parse("day(x)"), "h": parse("kafka.headers")})
    assert result.columns.num_rows == 0
    assert result.columns.schema.field("date").type == pa.date32()


def test_numbers_become_times_in_their_unit() -> None:
    expected = [datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), None]
    assert computed("timestamp_seconds(x)", rows_of(pa.int32(), [1_000_000_000, -1, None])) == expected
    assert computed("timestamp_millis(x)", rows_of(pa.int64(), [1_000_000_000_000, -1000, None])) == expected
    assert computed("timestamp_micros(x)", rows_of(pa.int64(), [1_000_000_000_000_000, -(10**6), None])) == expected
    assert computed("day(timestamp_seconds(x))", rows_of(pa.int64(), [86_400])) == [date(1970, 1, 2)]


def test_milliseconds_read_as_seconds_are_bad_rows() -> None:
    values = [253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801, 2**63 - 1, None]
    result = compute(rows_of(pa.int64(), values), {"at": parse("timestamp_seconds(x)")})
    assert offsets(result) == ([100, 102, 105], [101, 103, 104])
    assert result.bad.errors.to_pylist()[0] == "at: 253402300800 is not in the years 1 to 9999"


def test_texts_are_cut_and_changed_by_characters() -> None:
    texts = rows_of(pa.string(), ["Grüße", "ab", "", None])
    assert computed("substr(x, 3, 2)", texts) == ["üß", "", "", None]
    assert computed("substr(x, 1, 2)", texts) == ["Gr", "ab", "", None]
    assert computed("lower(x)", texts) == ["grüße", "ab", "", None]
    assert computed("upper(substr(x, 1, 3))", texts) == ["GRÜ", "AB", "", None]


def test_concat_joins_texts_and_numbers_and_is_null_with_a_null() -> None:
    rows = rows_of(pa.string(), ["a", None])
    assert computed("concat(kafka.topic, '-', kafka.partition, x)", rows) == ["orders-3a", None]


def test_coalesce_takes_the_first_that_is_not_null() -> None:
    assert computed("coalesce(x, 7)", rows_of(pa.int32(), [1, None])) == [1, 7]
    assert computed("coalesce(x, null, 'z')", rows_of(pa.string(), ["a", None])) == ["a", "z"]
    dates = rows_of(pa.date32(), [None, date(2021, 3, 24)])
    assert computed("coalesce(x, '2000-01-01')", dates) == [date(2000, 1, 1), date(2021, 3, 24)]


def test_a_fault_in_an_unused_argument_of_coalesce_is_ignored() -> None:
    columns = pa.RecordBatch.from_pydict({"a": ["2021-03-24", None], "b": ["soon", "later"]})
    rows = DecodedRows(columns, kafka_batch([b"{}", b"{}"]))
    result = compute(rows, {"date": parse("coalesce(day(a), day(b))")})
    assert offsets(result) == ([100], [101])
    assert result.bad.errors.to_pylist() == ['date: "later" is not a time']


def test_fields_inside_structs_are_null_where_a_struct_is() -> None:
    kind = pa.struct([("y", pa.struct([("z", pa.int64())]))])
    assert computed("x.y.z", rows_of(kind, [{"y": {"z": 1}}, {"y": None}, None])) == [1, None, None]


def test_constants_fill_their_column() -> None:
    rows = rows_of(pa.int32(), [1, 2])
    assert computed("'eu'", rows) == ["eu", "eu"]
    assert computed("12", rows) == [12, 12]
    assert computed("1.5", rows) == [1.5, 1.5]
    assert computed("true", rows) == [True, True]


def test_kafka_columns_have_the_values_of_the_log() -> None:
    rows = rows_of(pa.int32(), [1, 2])
    assert computed("kafka.topic", rows) == ["orders", "orders"]
    assert computed("kafka.partition", rows) == [3, 3]
    assert computed("kafka.offset", rows) == [100, 101]
    assert computed("kafka.key", rows) == [b"k0", b"k1"]
    assert computed("kafka.timestamp", rows) == [datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)] * 2
    assert computed("day(kafka.timestamp)", rows) == [date(2024, 5, 6)] * 2
    assert computed("kafka.headers", rows) == [None, None]


def test_kafka_headers_are_a_list_also_of_a_part_of_a_batch() -> None:
    headers = [[{"key": "a", "value": b"1"}], None, [{"key": "b", "value": None}, {"key": "c", "value": b"3"}], []]
    rows = rows_of(pa.int32(), [1, 2, 3, 4], headers)
    assert computed("kafka.headers", rows) == headers
    part = DecodedRows(rows.columns.slice(1, 2), rows.kafka.slice(1, 2))
    assert computed("kafka.headers", part) == headers[1:3]


@pytest.mark.parametrize(
    "text",
    [
        "y",
        "x.y",
        "day(n)",
        "day(kafka.key)",
        "timestamp_seconds(x)",
        "lower(n)",
        "upper(day(x))",
        "substr(n, 1, 2)",
        "concat(f)",
        "coalesce(x, n)",
        "coalesce(n, 'a')",
        "coalesce(null, null)",
        "null",
    ],
)
def test_an_expression_that_does_not_fit_the_schema_is_refused(text: str) -> None:
    schema = pa.schema([("x", pa.string()), ("n", pa.int32()), ("f", pa.float64())])
    with pytest.raises(UserError):
        output_type(parse(text), schema)
