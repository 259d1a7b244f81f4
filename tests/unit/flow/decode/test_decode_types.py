"""JSON values into every type that a job's schema may name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import UserError
from tests.unit.flow.kafka_batches import bad_offsets, decode_json, error_of, good_offsets

MICROS = pa.timestamp("us", "UTC")


def values_of(kind: pa.DataType, *values: str) -> list[Any]:
    """Each text as the field `a` of a record; all have to be rows."""
    schema = pa.schema([("a", kind)])
    decoded = decode_json(schema, [b'{"a":%b}' % value.encode() for value in values])
    assert decoded.bad.errors.to_pylist() == []
    return list(decoded.rows.columns.column("a").to_pylist())


def refused(kind: pa.DataType, value: str) -> str:
    return error_of(pa.schema([("a", kind)]), b'{"a":%b}' % value.encode())


def test_integers_reach_to_the_ends_of_their_types() -> None:
    assert values_of(pa.int8(), "-128", "127", "-0") == [-128, 127, 0]
    assert values_of(pa.int16(), "-32768", "32767") == [-32768, 32767]
    assert values_of(pa.int64(), "-9223372036854775808", "9223372036854775807") == [-(2**63), 2**63 - 1]
    assert refused(pa.int64(), "9223372036854775808") == "a: expected long, found number out of range"


def test_doubles_and_floats() -> None:
    assert values_of(pa.float64(), "1", "0.1", "1e308", "null") == [
        1.0,
        0.1,
        1e308,
        None,
    ]
    assert values_of(pa.float32(), "0.5", "16777217") == [0.5, 16777216.0]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize("value", ["1e309", "-1e309", "9" * 310, "-" + "9" * 310, "0.5e310", "1" + "0" * 309 + ".0"])
def test_a_number_out_of_range_of_its_column_is_bad_in_every_notation(kind: pa.DataType, value: str) -> None:
    assert refused(kind, value).endswith("found number out of range")
    reason = error_of(pa.schema([("a", pa.list_(kind))]), b'{"a":[%b]}' % value.encode())
    assert reason.startswith("a[0]: expected")


def test_a_number_beyond_32_bits_is_bad_in_a_float() -> None:
    assert refused(pa.float32(), "3.5e38") == "a: expected float, found number out of range"
    assert values_of(pa.float32(), "3.4028235e38", "-0e99") == [3.4028234663852886e38, 0.0]


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.list_(pa.decimal128(5, 2))], ids=str)
@pytest.mark.parametrize("zero", ["0e-39", "-0E-18", '"0e-39"', "0e76", "0." + "0" * 76])
def test_a_zero_is_a_decimal_in_every_batch(kind: pa.DataType, zero: str) -> None:
    value = b'{"a":[%b]}' if pa.types.is_list(kind) else b'{"a":%b}'
    schema = pa.schema([("a", kind)])
    for neighbours in ([], [value % b"1.5"] * 3, [value % b'"bad"'] * 3, [b"{"] * 40):
        decoded = decode_json(schema, [*neighbours, value % zero.encode(), *neighbours])
        assert 100 + len(neighbours) in good_offsets(decoded)
        assert (Decimal(0) if kind == pa.decimal128(5, 2) else [Decimal(0)]) in decoded.rows.columns.column(
            "a"
        ).to_pylist()


def test_decimals_are_exact_from_numbers_and_from_text() -> None:
    kind = pa.decimal128(10, 2)
    assert values_of(kind, "1.5", '"1.5"', "99999999.99", "1e7", "1.500", '"-0.01"') == [
        Decimal("1.50"),
        Decimal("1.50"),
        Decimal("99999999.99"),
        Decimal("10000000.00"),
        Decimal("1.50"),
        Decimal("-0.01"),
    ]


@pytest.mark.parametrize("value", ["1.005", "123456789.1", "1e8", '"abc"', "NaN", '""', "true", '" 1"'])
def test_a_decimal_that_would_be_rounded_or_overflow_is_bad(value: str) -> None:
    assert refused(pa.decimal128(10, 2), value).startswith("a: expected decimal(10,2), found ")


@pytest.mark.parametrize("value", ["0e400", '"0e99999"', "0." + "0" * 77, "1." + "0" * 76])
def test_a_decimal_of_more_than_76_digits_is_bad_even_if_it_is_zero(value: str) -> None:
    assert refused(pa.decimal128(5, 2), value).startswith(("not readable: ", "a: expected decimal(5,2), found "))


def test_dates_are_iso_text() -> None:
    assert values_of(pa.date32(), '"2021-03-24"', '"2400-02-29"', "null") == [
        date(2021, 3, 24),
        date(2400, 2, 29),
        None,
    ]
    assert refused(pa.date32(), '"2021-02-29"') == "a: expected date, found string"
    assert refused(pa.date32(), '"2021-03-24T00:00:00Z"').startswith("a: expected date")
    assert refused(pa.date32(), "18710") == "a: expected date, found number"


def test_timestamps_are_utc_in_every_notation() -> None:
    expected = datetime(2021, 3, 24, 15, 6, 17, tzinfo=UTC)
    spellings = [
        '"2021-03-24T15:06:17Z"',
        '"2021-03-24T15:06:17"',
        '"2021-03-24 15:06:17"',
        '"2021-03-24T16:06:17+01:00"',
        '"2021-03-24T07:36:17-0730"',
        '"2021-03-24 15:06:17.000000"',
    ]
    assert values_of(MICROS, *spellings) == [expected] * len(spellings)
    for spelling in spellings:
        assert values_of(MICROS, spelling) == [expected]


def test_fractions_beyond_microseconds_are_cut_off() -> None:
    assert values_of(MICROS, '"2021-03-24T15:06:17.123456999Z"', '"2400-01-01 00:00:00.1"') == [
        datetime(2021, 3, 24, 15, 6, 17, 123456, tzinfo=UTC),
        datetime(2400, 1, 1, 0, 0, 0, 100000, tzinfo=UTC),
    ]


@pytest.mark.parametrize("value", ['"yesterday"', '"2021-13-01T00:00:00Z"', '"2021-03-24T25:00"', '""', "1616598377"])
def test_a_value_that_is_not_a_time_is_bad(value: str) -> None:
    assert refused(MICROS, value).startswith("a: expected timestamp, found ")


def test_binary_is_base64_text() -> None:
    assert values_of(pa.binary(), '"AAH/"', '""', "null") == [b"\x00\x01\xff", b"", None]
    assert refused(pa.binary(), '"AAH"') == "a: expected binary, found string"
    assert refused(pa.binary(), '"ä==="').startswith("a: expected binary")


def test_types_inside_structs_and_lists_are_converted_there() -> None:
    kind = pa.list_(pa.struct([("at", MICROS), ("amounts", pa.list_(pa.decimal128(5, 1)))]))
    text = '[{"at":"2021-03-24T15:06:17Z","amounts":["1.5",null]},null,{"amounts":[]}]'
    assert values_of(kind, text, "null", "[]") == [
        [
            {"at": datetime(2021, 3, 24, 15, 6, 17, tzinfo=UTC), "amounts": [Decimal("1.5"), None]},
            None,
            {"at": None, "amounts": []},
        ],
        None,
        [],
    ]
    assert refused(kind, '[{"amounts":[1]},{"amounts":[2,"x"]}]') == (
        "a[1].amounts[1]: expected decimal(5,1), found string"
    )


def test_maps_keep_every_key() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.date32()))
    assert values_of(kind, '{"a b":["2021-03-24"],"":null}', "{}", "null") == [
        [("a b", [date(2021, 3, 24)]), ("", None)],
        [],
        None,
    ]
    assert refused(kind, '{"x":[1]}') == "a[...][0]: expected date, found number"
    assert refused(kind, '{"x":[],"x":[]}') == "a.x: given twice"


def test_every_type_has_the_same_value_with_and_without_a_map_column() -> None:
    fields = [
        ("f", pa.float32()),
        ("d", pa.decimal128(10, 2)),
        ("t", MICROS),
        ("day", pa.date32()),
        ("b", pa.binary()),
        ("l", pa.list_(pa.struct([("i", pa.int16())]))),
    ]
    value = b'{"f":0.1,"d":1.5,"t":"2021-03-24T15:06:17.1Z","day":"2021-03-24","b":"AAH/","l":[{"i":5},null]}'
    plain = decode_json(pa.schema(fields), [value]).rows.columns
    with_map = decode_json(pa.schema([*fields, ("m", pa.map_(pa.string(), pa.int32()))]), [value]).rows.columns
    assert with_map.select([name for name, _ in fields]).equals(plain)


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.decimal128(38, 10)], ids=str)
@pytest.mark.parametrize("number", ["-3.97e-214", "1e-239", "0.05e-194", "5.000E-0195"])
def test_a_decimal_with_an_exponent_that_arrow_takes_for_zero_is_bad(kind: pa.DataType, number: str) -> None:
    schema = pa.schema([("a", kind), ("b", pa.float64())])
    decoded = decode_json(schema, [b'{"a":1}', f'{{"a":{number}}}'.encode(), f'{{"a":0,"b":{number}}}'.encode()])
    assert bad_offsets(decoded) == [101]


MISREAD = ["1" + "0" * 60 + "e-106", "1." + "0" * 70 + "e-36", "1" + "0" * 60 + "e-98"]


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal128(38, 0)], ids=str)
@pytest.mark.parametrize(
    "number",
    [*MISREAD, "0e-40", "0e-400", "0." + "0" * 36 + "e-1", "1e-239", "0.05e-194", "1e-80", "1.2345678901234567e-99"],
)
@pytest.mark.parametrize("shape", ['{"a":%s}', '{"a":"%s"}', '{"l":[%s]}', '{"m":{"k":%s}}'])
def test_decimals_that_arrow_misreads_are_bad(kind: pa.DataType, number: str, shape: str) -> None:
    """Arrow's reader takes some of these for 0, and some for another number."""
    schema = pa.schema([("a", kind), ("l", pa.list_(kind)), ("m", pa.map_(pa.string(), kind)), ("s", pa.string())])
    for neighbour in (b'{"a":1}', b'{"a":0}', b'{"s":5}', b'{"a":1,"a":2}'):
        decoded = decode_json(schema, [neighbour, (shape % number).encode(), neighbour])
        assert 101 in bad_offsets(decoded)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.struct([("m", pa.map_(pa.string(), pa.int64()))]),
        pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_a_map_that_is_not_a_column_is_refused_with_a_hint(kind: pa.DataType) -> None:
    with pytest.raises(UserError) as caught:
        decode_json(pa.schema([("a", kind)]), [b"{}"])
    assert caught.value.hint is not None
