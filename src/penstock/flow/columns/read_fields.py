"""Fields that the job file itself reads: a type whose columns are inferred has them, whatever its first records show.

Otherwise one unusual record could fix column types from which the event time or a computed column cannot be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from penstock.flow.columns.computed import FUNCTIONS, casts, is_time
from penstock.job.expressions import Call, Constant, Expression, Field, KafkaField
from penstock.job.schema import type_at

Shown = Mapping[str, pa.DataType]
"""Fields by name, with the types that records show."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What an expression can read, and the type that a field gets which is missing or something else."""

    fits: Callable[[pa.DataType], bool]
    otherwise: pa.DataType


_ANY = _Need(lambda kind: True, pa.string())
_TIME = _Need(is_time, pa.string())


def with_read_fields(
    shown: Shown, event_time: Expression | None, columns: Iterable[Expression]
) -> dict[str, pa.DataType]:
    """The fields, those that the expressions read among them and of types that they can read."""
    result = dict(shown)
    needs = [] if event_time is None else [*_needs(event_time, _TIME, shown)]
    needs += [*(item for column in columns for item in _needs(column, _ANY, shown))]
    for path, need in needs:
        result = _placed(result, path, need)
    return result


def _needs(expression: Expression, need: _Need, shown: Shown) -> Iterator[tuple[tuple[str, ...], _Need]]:
    match expression:
        case Field(path=path):
            yield path, need
        case Call(function="coalesce", args=args):
            common = _common(args, need, shown)
            for arg in args:
                yield from _needs(arg, common, shown)
        case Call(function=function, args=args):
            takes = FUNCTIONS[function].takes
            inner = _Need(takes, pa.string() if takes(pa.string()) else pa.int64())
            for arg in args:
                yield from _needs(arg, inner, shown)
        case KafkaField() | Constant():
            return
        case _:
            assert_never(expression)


def _common(args: Iterable[Expression], need: _Need, shown: Shown) -> _Need:
    """One type for all fields of a coalesce: the first that they show and that its constants can have."""
    constants = [pa.scalar(arg.value) for arg in args if isinstance(arg, Constant)]
    fields = pa.schema(list(shown.items()))
    kinds = [kind for arg in args if isinstance(arg, Field) and (kind := type_at(fields, arg.path)) is not None]
    kinds += [constant.type for constant in constants if constant.is_valid]
    fitting = (kind for kind in kinds if need.fits(kind) and all(casts(item, kind) for item in constants))
    chosen = next(fitting, need.otherwise)
    return _Need(lambda kind: kind == chosen, chosen)


def _placed(fields: Shown, path: tuple[str, ...], need: _Need) -> dict[str, pa.DataType]:
    """The fields with one at the path; another whose name differs in case only would take its place in a table."""
    name, below = path[0], path[1:]
    others = {key: kind for key, kind in fields.items() if key == name or key.lower() != name.lower()}
    current = others.get(name)
    if below:
        inner = _placed({} if current is None else _children(current), below, need)
        return others | {name: pa.struct(list(inner.items()))}
    return others if current is not None and need.fits(current) else others | {name: need.otherwise}


def _children(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {item.name: item.type for item in kind} if pa.types.is_struct(kind) else {}
