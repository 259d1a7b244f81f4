"""The place of a row: topic, partition and offset of its record, in columns of the row (`place`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from penstock.job.expressions import Expression, KafkaField, KafkaName
from penstock.job.faults import InvalidValueError

PLACE: Mapping[KafkaName, str] = {"partition": "kafka_partition", "offset": "kafka_offset", "topic": "kafka_topic"}
"""The columns that are added. Always with the topic: without it, rows would be ambiguous once a second one is read."""


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
