"""Conditions over single records whose types are not known: what cannot be compared is unknown, as null is."""

from __future__ import annotations

import operator
from typing import Any, assert_never

from penstock.flow.columns.times import timestamp_micros
from penstock.job.conditions import AllOf, AnyField, AnyOf, Comparison, Condition, IsNull, Not
from penstock.job.expressions import Constant, Field, KafkaField
from penstock.peek.fields import value_at
from penstock.peek.formats import content_of
from penstock.peek.profile import shown
from penstock.peek.sample import Record

_COMPARE = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


_TIME = KafkaField("timestamp")


def matches(condition: Condition, topic: str, record: Record) -> bool:
    """Whether the condition is true for a record; its fields are those of a JSON object."""
    return _truth(condition, topic, record, content_of(record.value).data) is True


def _truth(condition: Condition, topic: str, record: Record, data: Any) -> bool | None:
    match condition:
        case Comparison(left=left, operator=compared, right=right):
            values = [_value(side, topic, record, data) for side in (left, right)]
            if _TIME in (left, right):
                values = [_micros(value) for value in values]
            one, other = map(_kind, values)
            return bool(_COMPARE[compared](*values)) if one == other is not None else None
        case IsNull(field=field):
            return _value(field, topic, record, data) is None
        case Not(condition=inner):
            truth = _truth(inner, topic, record, data)
            return None if truth is None else not truth
        case AllOf(conditions=inners):
            truths = [_truth(inner, topic, record, data) for inner in inners]
            return False if False in truths else None if None in truths else True
        case AnyOf(conditions=inners):
            truths = [_truth(inner, topic, record, data) for inner in inners]
            return True if True in truths else None if None in truths else False
        case _:
            value = _value(condition, topic, record, data)
            return value if isinstance(value, bool) else None


def _value(side: AnyField | Constant, topic: str, record: Record, data: Any) -> Any:
    match side:
        case Constant(value=value):
            return value
        case Field(path=path):
            return value_at(data, path)
    match side.name:
        case "topic":
            return topic
        case "partition":
            return record.partition
        case "offset":
            return record.offset
        case "key":
            return None if record.key is None else shown(record.key)
        case "timestamp":
            return None if record.at_ms is None else record.at_ms * 1000
        case "headers":
            return None
        case _:
            assert_never(side.name)


def _kind(value: object) -> str | None:
    """Values of one kind can be compared; None: with nothing."""
    if isinstance(value, bool) or value is None:
        return None if value is None else "flag"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else None


def _micros(value: object) -> object:
    """A time as microseconds since 1970; None for a text that is none."""
    try:
        return timestamp_micros(value) if isinstance(value, str) else value
    except (ValueError, OverflowError):
        return None
