"""Kafka's metadata of a record: its types, and the columns of a row that hold the place of its record (`place`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from penstock.job.expressions import KAFKA_NAMES, Expression, KafkaField, KafkaName
from penstock.job.faults import InvalidValueError

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""A list, not a map: a record may carry the same header several times."""

RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""A record as tasks get it from any log."""

RAW_SCHEMA = pa.schema([("value", pa.binary())])
"""A row of a job that decodes nothing."""

KAFKA_TYPES: dict[KafkaName, pa.DataType] = {name: RECORD_SCHEMA.field(name).type for name in KAFKA_NAMES}
PLACE: Mapping[KafkaName, str] = {"partition": "kafka_partition", "offset": "kafka_offset", "topic": "kafka_topic"}
"""The columns that are added. Always with the topic: without it, rows would be ambiguous once a second one is read."""


def utf8(value: bytes | None) -> str | None:
    """Bytes of a record as text; None if there are none, or if they are not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def place_columns(columns: Mapping[str, Expression], select: Sequence[str] = ()) -> Iterator[tuple[KafkaName, str]]:
    """The columns of a table that hold a part of the place, with the names that they have in the table."""
    names = {name.lower(): name for name in columns} if not select or "*" in select else {}
    names |= _selected(select)
    for name, expression in columns.items():
        if isinstance(expression, KafkaField) and expression.name in PLACE and name.lower() in names:
            yield expression.name, names[name.lower()]


def _selected(select: Sequence[str]) -> dict[str, str]:
    """The columns that a projection keeps unchanged, in lower case, with their names after it."""
    if not select:
        return {}
    from penstock.job.sql_text import read_select  # noqa: PLC0415 - imports sqlglot

    names: dict[str, str] = {}
    for entry in select:
        with suppress(InvalidValueError):
            item = read_select(entry)
            if item.path is not None and len(item.path) == 1:
                names[item.path[0].lower()] = item.name
    return names
