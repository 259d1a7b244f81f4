"""The place of a row: topic, partition and offset of its record, as columns that every row carries (`place`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from penstock.job.expressions import Expression, KafkaField, KafkaName
from penstock.job.faults import RefusedError, kind_of, nearest, shown
from penstock.job.values import text

PLACE: tuple[KafkaName, ...] = ("partition", "offset", "topic")
"""Always with the topic: rows that are there already could not say theirs once a second one is added."""
DEFAULT_PLACE: Mapping[KafkaName, str] = {part: f"kafka_{part}" for part in PLACE}
NO_PLACE = "none"


def place_names(value: object) -> dict[KafkaName, str]:
    """What a job file states: the names of the columns, by default `DEFAULT_PLACE`; `none`: there are none."""
    if value == NO_PLACE:
        return {}
    hint = "write {topic: name, partition: name, offset: name}, or none"
    if not isinstance(value, dict):
        raise RefusedError(f"expected names of columns or none, found {kind_of(value)}", hint)
    for key in value:
        if key not in DEFAULT_PLACE:
            raise RefusedError(f"{shown(str(key))} is no part of a place", nearest(str(key), DEFAULT_PLACE) or hint)
    return {part: text(value.get(part, name)) for part, name in DEFAULT_PLACE.items()}


def place_columns(columns: Mapping[str, Expression], select: Sequence[str] = ()) -> Iterator[tuple[KafkaName, str]]:
    """The columns of a table that are a part of the place and nothing else, with the names that they have there."""
    names = {name.lower(): name for name in columns} if not select or "*" in select else {}
    names |= _selected(select)
    for name, expression in columns.items():
        if isinstance(expression, KafkaField) and expression.name in PLACE and name.lower() in names:
            yield expression.name, names[name.lower()]


def _selected(select: Sequence[str]) -> dict[str, str]:
    """The columns that a projection passes on as they are, in lower case, with the names that it gives them."""
    if not select:
        return {}
    from penstock.job.sql_text import read_select  # noqa: PLC0415 - imports sqlglot

    names: dict[str, str] = {}
    for entry in select:
        with suppress(RefusedError):
            item = read_select(entry)
            if item.path is not None and len(item.path) == 1:
                names[item.path[0].lower()] = item.name
    return names
