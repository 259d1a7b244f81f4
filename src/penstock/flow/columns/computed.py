"""Computed columns: the expressions of a job over decoded rows, with Arrow kernels.

A row for which an expression has no answer (`day` of a text that is not a time) is bad, not its batch. Null gives null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError, did_you_mean
from penstock.flow.columns.fitting import column_at
from penstock.flow.columns.kafka_fields import MICROS_OF_YEAR_1, MICROS_OF_YEAR_10000, record_headers, record_times
from penstock.flow.columns.times import UTC_MICROS, days, hours, timestamps_or_null
from penstock.flow.decode.misfit import quoted
from penstock.flow.rows import BadRows, DecodedRows, bad_rows, rows_without, take
from penstock.job.expressions import Call, Constant, Expression, Field, FunctionName, KafkaField, to_text
from penstock.job.kafka_types import KAFKA_TYPES
from penstock.job.schema import job_type_name, type_at

NAMES_SHOWN_MAX = 20
_CAST = "state another type in the schema, or convert it in sql.select with cast(... as {})"
Faults = dict[int, str]
"""Row number to the reason why the row has no value."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Computed columns, with the rows that have a value in each; the other rows are bad."""

    columns: pa.RecordBatch
    rows: DecodedRows
    bad: BadRows


def compute(rows: DecodedRows, columns: Mapping[str, Expression]) -> Computed:
    """Evaluate every column over the rows; those for which one fails are moved to `bad`, with the column named."""
    faults: Faults = {}
    arrays: list[pa.Array] = []
    for name, expression in columns.items():
        new_faults: Faults = {}
        arrays.append(evaluate(expression, rows, new_faults))
        for row, fault in new_faults.items():
            faults.setdefault(row, f"{name}: {fault}")
    kept = rows_without(rows.kafka.num_rows, faults)
    computed = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    if arrays:
        computed = take(computed, kept)
    return Computed(computed, rows.take(kept), bad_rows(rows.kafka, faults))


def evaluate(expression: Expression, rows: DecodedRows, faults: Faults) -> pa.Array:
    """The values of an expression that fits the rows; a row without an answer is null and named in `faults`."""
    match expression:
        case Field(path=path):
            return column_at(rows.columns, path)
        case KafkaField(name="timestamp" | "headers" as name):
            values, unfit = record_times(rows.kafka) if name == "timestamp" else record_headers(rows.kafka)
            faults.update(unfit)
            return values
        case KafkaField(name=name):
            return rows.kafka.column(name).cast(KAFKA_TYPES[name])
        case Constant(value=value):
            return pa.repeat(pa.scalar(value), rows.kafka.num_rows)
        case Call(function="coalesce", args=args):
            return _coalesced(args, output_type(expression, rows.columns.schema), rows, faults)
        case Call(function=function, args=args):
            return FUNCTIONS[function].apply([evaluate(arg, rows, faults) for arg in args], args, faults)
        case _:
            assert_never(expression)


def output_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """The type of a column over rows of the schema. Raises `UserError` if the expression does not fit them."""
    kind = _type(expression, schema)
    if pa.types.is_null(kind):
        raise UserError(f"{to_text(expression)}: a column that is always null has no type")
    return kind


def is_time(kind: pa.DataType) -> bool:
    """Whether values of the type can be times: text is read as such."""
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_timestamp, pa.types.is_date32))


def _type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    match expression:
        case Field(path=path):
            kind = type_at(schema, path)
            if kind is None:
                raise missing_field(path, schema)
            return kind
        case KafkaField(name=name):
            return KAFKA_TYPES[name]
        case Constant(value=value):
            return pa.scalar(value).type
        case Call(function="coalesce", args=args):
            return _common_type(expression, args, schema)
        case Call(function=function, args=args):
            spec = FUNCTIONS[function]
            # The parser has checked that the bounds of substr are constants.
            for arg in args[:1] if function == "substr" else args:
                kind = _type(arg, schema)
                if not spec.takes(kind):
                    message = f"{to_text(expression)}: {function} takes {spec.expected}, not {job_type_name(kind)}"
                    raise UserError(message, hint=_conversion(function, to_text(arg), kind))
            return spec.gives
        case _:
            assert_never(expression)


def _conversion(function: FunctionName, text: str, kind: pa.DataType) -> str:
    """How a function gets a value of a type that it takes."""
    if function in ("day", "hour") and pa.types.is_integer(kind):
        return f"write {function}(timestamp_millis({text})), or timestamp_seconds or timestamp_micros"
    if FUNCTIONS[function].gives == pa.string():
        return f"concat({text}) is its text" if pa.types.is_integer(kind) else _CAST.format("string")
    if function.startswith("timestamp_") and is_time(kind):
        return "day and hour take times as they are, also as text; for a number in text state long in the schema"
    return _CAST.format("timestamp" if function in ("day", "hour") else "long")


def missing_field(path: tuple[str, ...], schema: pa.Schema) -> UserError:
    """An error that names the first part of the path that does not exist, with the closest match."""
    depth = next(depth for depth in range(1, len(path) + 1) if type_at(schema, path[:depth]) is None)
    missing, above = to_text(Field(path[:depth])), type_at(schema, path[: depth - 1])
    if above is None or not pa.types.is_struct(above):
        return UserError(f"the schema has no field {missing}", hint=f"{'.'.join(path[: depth - 1])} is not a struct")
    names = [to_text(Field((*path[: depth - 1], field.name))) for field in above]
    hint = did_you_mean(missing, names) or f"there are: {', '.join(names[:NAMES_SHOWN_MAX])}"
    return UserError(f"the schema has no field {missing}", hint=hint)


def _common_type(call: Call, args: Sequence[Expression], schema: pa.Schema) -> pa.DataType:
    """That of the arguments which are not constants; constants follow it where they can."""
    computed = [_type(arg, schema) for arg in args if not isinstance(arg, Constant)]
    constants = [pa.scalar(arg.value) for arg in args if isinstance(arg, Constant)]
    kinds = computed or [item.type for item in constants if item.is_valid]
    common = kinds[0] if kinds else pa.null()
    if any(kind != common for kind in kinds):
        names = ", ".join(dict.fromkeys(job_type_name(kind) for kind in kinds))
        texts = pa.string() in kinds and all(FUNCTIONS["concat"].takes(kind) for kind in kinds)
        hint = "concat(...) makes text of a whole number" if texts else "state one type for them in the schema"
        raise UserError(f"{to_text(call)}: coalesce takes one type, not {names}", hint=hint)
    for constant in constants:
        if not casts(constant, common):
            message = f"{to_text(call)}: the constant {constant} is not of type {job_type_name(common)}"
            raise UserError(message, hint=f"use a constant of type {job_type_name(common)}")
    return common


def casts(constant: pa.Scalar, kind: pa.DataType) -> bool:
    """Whether the constant can be of the type."""
    try:
        constant.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _coalesced(args: Sequence[Expression], kind: pa.DataType, rows: DecodedRows, faults: Faults) -> pa.Array:
    values = pa.nulls(rows.kafka.num_rows, kind)
    for arg in args:
        new_faults: Faults = {}
        candidate = evaluate(arg, rows, new_faults).cast(kind)
        # A fault counts only where no earlier argument had an answer.
        faults.update({row: fault for row, fault in new_faults.items() if not values[row].is_valid})
        values = pc.coalesce(values, candidate)
    return values


def times_of(values: pa.Array, faults: Faults) -> pa.Array:
    """Times, dates or texts as times; a text that is none is null and named in `faults`."""
    if not pa.types.is_string(values.type):
        return values.cast(UTC_MICROS)
    times, unreadable = timestamps_or_null(values)
    for row in unreadable:
        faults[row] = f"{quoted(values[row].as_py())} is not a time"
    return times


def _times_of_numbers(numbers: pa.Array, micros: int, faults: Faults) -> pa.Array:
    wide = numbers.cast(pa.int64())
    # Other years exist in no calendar that readers of the table have.
    least, end = -(-MICROS_OF_YEAR_1 // micros), MICROS_OF_YEAR_10000 // micros
    outside = pc.or_(pc.less(wide, least), pc.greater_equal(wide, end))
    for row in pc.indices_nonzero(outside.fill_null(False)).to_pylist():
        faults[row] = f"{quoted(numbers[row].as_py())} is not in the years 1 to 9999"
    inside = pc.if_else(outside, pa.scalar(None, pa.int64()), wide)
    return pc.multiply(inside, micros).cast(UTC_MICROS)


def _day(values: pa.Array, faults: Faults) -> pa.Array:
    return values if pa.types.is_date32(values.type) else days(times_of(values, faults))


def _cut(texts: pa.Array, bounds: Sequence[Expression]) -> pa.Array:
    # The parser has checked that they are whole numbers.
    start, length = (bound.value for bound in bounds if isinstance(bound, Constant))
    assert isinstance(start, int) and isinstance(length, int)
    return pc.utf8_slice_codeunits(texts, start - 1, start - 1 + length)


@dataclass(frozen=True, slots=True)
class _Function:
    """What a function takes and gives, and its kernel over the values of its arguments."""

    takes: Callable[[pa.DataType], bool]
    expected: str
    gives: pa.DataType
    apply: Callable[[Sequence[pa.Array], Sequence[Expression], Faults], pa.Array]


_TIME = (is_time, "a time, a date or text")
_TEXT = (pa.types.is_string, "text", pa.string())
_NUMBER = (pa.types.is_integer, "whole numbers", UTC_MICROS)
FUNCTIONS: dict[FunctionName, _Function] = {
    "day": _Function(*_TIME, pa.date32(), lambda v, _, faults: _day(v[0], faults)),
    "hour": _Function(*_TIME, UTC_MICROS, lambda v, _, faults: hours(times_of(v[0], faults))),
    "timestamp_seconds": _Function(*_NUMBER, lambda v, _, faults: _times_of_numbers(v[0], 1_000_000, faults)),
    "timestamp_millis": _Function(*_NUMBER, lambda v, _, faults: _times_of_numbers(v[0], 1_000, faults)),
    "timestamp_micros": _Function(*_NUMBER, lambda v, _, faults: _times_of_numbers(v[0], 1, faults)),
    "substr": _Function(*_TEXT, lambda v, args, _: _cut(v[0], args[1:])),
    "lower": _Function(*_TEXT, lambda v, *_: pc.utf8_lower(v[0])),
    "upper": _Function(*_TEXT, lambda v, *_: pc.utf8_upper(v[0])),
    "concat": _Function(
        lambda kind: any(test(kind) for test in (pa.types.is_string, pa.types.is_integer, pa.types.is_null)),
        "text and whole numbers",
        pa.string(),
        lambda v, *_: pc.binary_join_element_wise(*(item.cast(pa.string()) for item in v), ""),
    ),
}
"""All but `coalesce`, which has the type of its arguments and looks at one after the other."""
