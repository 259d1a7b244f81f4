"""The place of a row: topic, partition and offset of its record, as columns that every row carries (`place`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from penstock.job.expressions import Expression, KafkaField, KafkaName
from penstock.job.faults import RefusedError, kind_of, nearest, shown
from penstock.job.values import text

PLACE: tuple[KafkaName, ...] = ("partition", "offset", "topic")
"""Always with the topic: rows that are there already could not say theirs once a second one is added."""
DEFAULT_PLACE: Mapping[KafkaName, str] = {part: f"kafka_{part}" for part in PLACE}
NO_PLACE = "none"

_NAME = r"(?:`(?P<{0}_quoted>(?:[^`]|``)+)`|(?P<{0}>\w+))"
_SELECTED = re.compile(rf"{_NAME.format('column')}(?:\s+(?:as\s+)?{_NAME.format('alias')})?", re.IGNORECASE)


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
    selected = _selected(columns, select)
    for name, expression in columns.items():
        if isinstance(expression, KafkaField) and expression.name in PLACE and name.lower() in selected:
            yield expression.name, selected[name.lower()]


def unselected_place(columns: Mapping[str, Expression], added: Sequence[str], select: Sequence[str]) -> list[str]:
    """Those of the `added` columns that a projection has to pass on besides what it states."""
    passed = {part for part, _ in place_columns(columns, select)}
    parts = {name: part for part, name in place_columns(columns)}
    return [name for name in added if select and parts[name] not in passed]


def quoted_name(name: str) -> str:
    """A column in the text of a projection."""
    return "`" + name.replace("`", "``") + "`"


def _selected(columns: Mapping[str, Expression], select: Sequence[str]) -> dict[str, str]:
    """Computed columns that reach the table as they are, in lower case, with the names that they have there."""
    own = {name.lower(): name for name in columns}
    if not select:
        return own
    selected: dict[str, str] = {}
    for entry in select:
        found = _SELECTED.fullmatch(entry.strip())
        if entry.strip() == "*":
            selected = {**own, **selected}
        elif found is not None:
            column, alias = (
                found[role] or (found[f"{role}_quoted"] or "").replace("``", "`") for role in ("column", "alias")
            )
            selected[column.lower()] = alias or column
    return selected
