"""Which buckets can hold rows with these values of key columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from math import prod
from typing import Any

import pyarrow as pa

from penstock.errors import UserError, did_you_mean
from penstock.tables.keyed.layout import KeyPart, Layout, bucket_hash, buckets_of, key_frame

KEYS_MAX = 10_000
"""Combinations of values beyond which looking every bucket up is not worth while."""

Values = Mapping[str, Sequence[Any]]
"""By column, the values that a row may have, as the table types them."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets to look into; `modulo`: those whose number has one of these remainders."""

    numbers: tuple[int, ...]
    modulo: int | None = None


def wanted_values(layout: Layout, kinds: pa.Schema, keys: Mapping[str, object]) -> dict[str, list[Any]]:
    """What a reader asks for: of each key column one value or several. Raises `UserError` if that makes no sense."""
    columns = list(dict.fromkeys(each.column for each in layout.parts))
    found = {}
    for name, asked in keys.items():
        if name not in columns:
            raise UserError(
                f"{name} is no column of the key",
                detail=f"the key: {', '.join(columns)}",
                hint=did_you_mean(name, columns) or "filter the data frame by other columns with where",
            )
        several = isinstance(asked, Iterable) and not isinstance(asked, str | bytes)
        found[name] = [_typed(name, each, kinds.field(name).type) for each in (list(asked) if several else [asked])]  # type: ignore[call-overload]
    return found


def buckets_with(layout: Layout, kinds: pa.Schema, values: Values) -> Buckets | None:
    """Where rows with these values lie; None: anywhere, because the values do not tell."""
    told = _hashed_only(layout)
    own = layout.log_partition
    own_part = None if own is None else KeyPart(own)
    needed = list(dict.fromkeys(each.column for each in told.parts if each != own_part))
    if any(name not in values for name in needed):
        return None
    if own is not None and own in values and own not in needed:
        needed.append(own)
    if prod(len(values[name]) for name in needed) > KEYS_MAX:
        return None
    rows = list(product(*(values[name] for name in needed)))
    columns = {name: pa.array([row[at] for row in rows], kinds.field(name).type) for at, name in enumerate(needed)}
    if own is not None and own not in values:
        columns[own] = pa.array([0] * len(rows), kinds.field(own).type)
    keys = key_frame(told, pa.table(columns)).drop_nulls()
    if own is None or own in values:
        return Buckets(tuple(sorted(set(buckets_of(told, keys).to_list()))))
    return Buckets(tuple(sorted(set(bucket_hash(told, keys).tolist()))), modulo=layout.buckets)


def _hashed_only(layout: Layout) -> Layout:
    """The layout without the parts that say nothing about the bucket."""
    row_keys_count = sum(name in layout.key_names[len(layout.partition_keys) :] for name in layout.hashed_names)
    return layout if row_keys_count else replace(layout, row_keys=())


def _typed(name: str, value: object, kind: pa.DataType) -> Any:
    """The value as the column has it; a time without a zone is one of UTC, as everywhere."""
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    if isinstance(value, bool) and not pa.types.is_boolean(kind):
        raise UserError(f"{value!r} is no value of {name}, which is {kind}")
    try:
        scalar = pa.scalar(value)
        return (scalar if scalar.type.equals(kind) else scalar.cast(kind)).as_py()
    except pa.ArrowException as error:
        raise UserError(f"{value!r} is no value of {name}, which is {kind}", detail=str(error)) from error
