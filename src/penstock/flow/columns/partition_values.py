"""Partition values: rows split by them, their text in the Delta log, and folders for readers that look at paths."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UserError
from penstock.flow.columns.kafka_fields import MICROS_OF_DAY, MICROS_OF_YEAR_1, MICROS_OF_YEAR_10000
from penstock.flow.rows import groups, take
from penstock.job.kafka_types import utf8
from penstock.job.schema import job_type_name

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES_MAX = 255
"""The longest name that common file systems take."""
FOLDERS_BYTES_MAX = 700
"""Of all folders of a path together: object stores limit a key to 1,024 bytes."""

Values = tuple[str | None, ...]


def can_partition(kind: pa.DataType) -> bool:
    """Whether a column of this type can partition a table; NaN and -0.0 are not one value to every reader."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind))


def check_partition_type(name: str, kind: pa.DataType) -> None:
    """Refuse a column that cannot partition a table."""
    if not can_partition(kind):
        raise UserError(f"column {name} cannot partition a table", detail=f"its type is {job_type_name(kind)}")


def partition_value(scalar: pa.Scalar) -> str | None:
    """The text of a value in the log, `None` for null.

    The empty string is null too: deltalake reads it as null and Spark as '', so a table that held it would differ from
    reader to reader.
    """
    value = scalar.as_py()
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case int() | str():
            return str(value)
        case Decimal():
            return format(value, "f")
        case datetime.datetime():
            return _timestamp_text(value)
        case datetime.date():
            return value.isoformat()
    raise UserError("a value cannot name a partition", detail=f"its type is {job_type_name(scalar.type)}")


def partition_faults(rows: pa.RecordBatch, partition_by: Sequence[str]) -> dict[int, str]:
    """The rows that cannot be written because no log can hold a partition value of theirs, with the reason."""
    faults: dict[int, str] = {}
    for name in partition_by:
        column = rows.column(rows.schema.get_field_index(name))
        for row in _unwritable(column):
            faults.setdefault(row, f"{name}: {_shown(column[row])} cannot name a partition")
    return faults


def _unwritable(column: pa.Array) -> list[int]:
    bounds = _bounds(column.type)
    if bounds is None:
        return _not_text(column) if pa.types.is_string(column.type) else []
    numbers = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    ends = pc.min_max(numbers)
    least, most = bounds
    if not ends["min"].is_valid or (ends["min"].as_py() >= least and ends["max"].as_py() <= most):
        return []
    outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    return list(pc.indices_nonzero(outside.fill_null(False)).to_pylist())


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The numbers of a kind that lie in the years 1 to 9999: readers have no others."""
    if pa.types.is_date32(kind):
        return MICROS_OF_YEAR_1 // MICROS_OF_DAY, MICROS_OF_YEAR_10000 // MICROS_OF_DAY - 1
    return (MICROS_OF_YEAR_1, MICROS_OF_YEAR_10000 - 1) if pa.types.is_timestamp(kind) else None


def _not_text(column: pa.Array) -> list[int]:
    """Rows whose text is not UTF-8: Spark may return such bytes as text."""
    try:
        column.validate(full=True)
        return []
    except pa.ArrowInvalid:
        pass
    values = enumerate(column.cast(pa.binary()).to_pylist())
    return [row for row, value in values if value is not None and utf8(value) is None]


def _shown(scalar: pa.Scalar) -> str:
    kind = scalar.type
    if pa.types.is_date32(kind):
        return f"the day {scalar.cast(pa.int32()).as_py()} days after 1970, outside the years 1 to 9999,"
    if pa.types.is_timestamp(kind):
        return f"the time {scalar.cast(pa.int64()).as_py()} {kind.unit} after 1970, outside the years 1 to 9999,"
    return "text that is not UTF-8"


def split_by_values(rows: pa.RecordBatch, columns: Sequence[pa.Array]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each combination of the columns' values, in their order."""
    if all(_is_constant(column) for column in columns):
        yield _values_at(columns, 0), rows
        return
    # Copies, not slices: a slice keeps the memory of all rows alive for as long as it waits for its row group.
    for _, chosen in groups(_codes(columns).to_numpy()):
        yield _values_at(columns, int(chosen[0])), take(rows, chosen)


def partition_folder(values: Mapping[str, str | None]) -> str:
    """The folder `a=1/b=x/` of a file, or '' where the table has no partitions or a value is too long for a name.

    The log alone decides a file's values; but Polars' own Delta reader takes them from the path. Where no path has them
    it reads null, and where only some have it fails: with a value too long for a name, Polars needs `use_pyarrow`.
    """
    parts = [f"{_escaped(name)}={_folder_text(value)}" for name, value in values.items()]
    if any(len(part) > FOLDER_BYTES_MAX for part in parts) or sum(map(len, parts)) > FOLDERS_BYTES_MAX:
        return ""
    return "".join(part + "/" for part in parts)


def _values_at(columns: Sequence[pa.Array], row: int) -> Values:
    return tuple(partition_value(column[row]) for column in columns)


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    ends = pc.min_max(column)
    return bool(ends["min"] == ends["max"])


def _codes(columns: Sequence[pa.Array]) -> pa.Array:
    """A number per row, the same for equal combinations and for no others."""
    codes = _codes_of(columns[0])
    for column in columns[1:]:
        own = _codes_of(column)
        both = pc.add(pc.multiply(codes, pc.add(pc.max(own), 1)), own)
        # Dense again, so that the product over many columns cannot overflow.
        codes = _codes_of(both)
    return codes


def _codes_of(column: pa.Array) -> pa.Array:
    return column.dictionary_encode(null_encoding="encode").indices.cast(pa.int64())


def _timestamp_text(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        # deltalake refuses the `T` here, and Spark reads a value without a zone unchanged.
        return value.isoformat(sep=" ", timespec="microseconds")
    return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _folder_text(value: str | None) -> str:
    if value is None:
        return NULL_FOLDER
    escaped = _escaped(value)
    return "%5F" + escaped[1:] if escaped == NULL_FOLDER else escaped


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")
