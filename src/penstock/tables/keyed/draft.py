"""Drafts `table.keyed`: a row per key, also from the envelopes of Debezium."""

from __future__ import annotations

import json
import re

import pyarrow as pa

from penstock.errors import UserError
from penstock.job.expressions import Expression, Field, KafkaField, to_text
from penstock.job.schema import type_at
from penstock.peek.candidates import keys
from penstock.peek.draft import (
    OTHER_KIND,
    Sections,
    bad_records,
    commented,
    decode_spec,
    decode_text,
    expression_text,
    free_name,
    quoted,
    refuse_names,
    row_schema,
    schema_lines,
    table_path,
    type_text,
)
from penstock.peek.fields import Path, value_at
from penstock.peek.profile import SHARE_OF_ALL, Profile
from penstock.tables.keyed.layout import RESERVED, is_key_type

_DELETED = re.compile(r"(is_?)?(deleted|removed)", re.IGNORECASE)
_OPERATIONS = [*"crudtm"]
_POSITION = "lsn"
"""PostgreSQL's position in `source`: a late record of a snapshot loses to a newer update."""


def suits(profile: Profile) -> bool:
    """Whether the records are the changes of a database table."""
    return _envelope(profile) is not None


def draft(profile: Profile) -> Sections:
    envelope = _envelope(profile)
    return _of_records(profile) if envelope is None else _of_changes(profile, envelope)


def _can_be_key(expression: Expression, schema: pa.Schema, is_json: bool) -> bool:
    if not isinstance(expression, Field):
        return True
    kind = type_at(schema, expression.path)
    return is_json and kind is not None and is_key_type(kind)


def _of_records(profile: Profile) -> Sections:
    decode = decode_spec(profile)
    schema = row_schema(profile, decode)
    refuse_names(profile, schema.names, RESERVED)
    candidates = [item for item in keys(profile) if _can_be_key(item.expression, schema, decode.format == "json")]
    if profile.formats["tombstone"]:
        # A tombstone deletes its row only if the key comes from Kafka.
        candidates.sort(key=lambda item: item.expression != KafkaField("key"))
    if not candidates:
        hint = f"give records a Kafka key, or {OTHER_KIND}"
        raise UserError(f"no field of {profile.sample.topic} looks like a key, and there is no Kafka key", hint=hint)
    key, others = candidates[0], ", ".join(item.text for item in candidates[1:])
    expression, columns = key.expression, []
    match expression:
        case Field(path=[name]):
            pass
        case Field(path=path):
            name = free_name((path[-1], "_".join(path)), schema.names)
            columns = ["columns:", f"  {quoted(name)}: {expression_text(to_text(expression))}"]
        case _:
            name = free_name(("key", "kafka_key"), schema.names)
            columns = ["columns:", f"  {name}: {to_text(expression)}"]
    doubt = "" if "Kafka key" in key.reason or expression == KafkaField("key") else "? "
    why = f"{doubt}{key.reason}" + (f"; or {others}" if others else "")
    table = ["  keyed:", f"    path: {table_path(profile)}", commented(f"    row_keys: [{quoted(name)}]", why)]
    if doubt and len(profile.sample.bounds) > 1:
        table.append(
            "    # ? the key is not the Kafka key: if records of a key are in several partitions, name a `sequence`"
        )
    flags = [field.name for field in schema if pa.types.is_boolean(field.type) and _DELETED.fullmatch(field.name)]
    table += [f"    delete: {flag}" for flag in flags[:1]]
    rows = [*schema_lines(profile, decode), *columns]
    return Sections(decode_text(decode), table, rows, bad=bad_records(profile.sample.records, decode, schema))


# Debezium


def _envelope(profile: Profile) -> Path | None:
    """Where the envelope is in each record: at the top, or in `payload`; None if the records have none."""
    for path in ((), ("payload",)):
        count = sum(_is_change(value_at(value, path)) for _, value in profile.objects)
        if count and count >= SHARE_OF_ALL * len(profile.objects):
            return path
    return None


def _is_change(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.get("op") in _OPERATIONS
        and isinstance(value.get("source"), dict)
        and bool({"before", "after"} & value.keys())
    )


def _of_changes(profile: Profile, at: Path) -> Sections:
    decode = decode_spec(profile)
    row = type_at(profile.schema, (*at, "after"))
    if row is None:
        raise UserError(f"no change of {profile.sample.topic} has a row", hint="read more: -n 10000")
    names = [field.name for field in row]
    position = type_at(profile.schema, (*at, "source", _POSITION))
    refuse_names(profile, names, {*RESERVED, "op", _POSITION} if position is not None else {*RESERVED, "op"})
    key_names, why = _key_names(profile, names)
    before = pa.struct([field for field in row if field.name in key_names])
    fields = [("before", before), ("after", row), ("op", pa.string())]
    columns = [f"  {quoted(name)}: {expression_text(_column(at, name, name in key_names))}" for name in names]
    row_keys = commented(f"    row_keys: [{', '.join(map(quoted, key_names))}]", why)
    table = ["  keyed:", f"    path: {table_path(profile)}", row_keys]
    if position is not None:
        fields.append(("source", pa.struct([(_POSITION, position)])))
        columns.append(f"  {_POSITION}: {_text(at, 'source', _POSITION)}")
        table.append(f"    sequence: {_POSITION}")
    schema, dropped = pa.schema(fields), [name for name, _ in fields if name != "op"]
    if at:
        schema, dropped = pa.schema([(at[0], pa.struct(fields))]), [*at]
        columns.append(f"  op: {_text(at, 'op')}")
    rows = ["schema:", *(f"  {quoted(field.name)}: {type_text(field.type)}" for field in schema), "columns:", *columns]
    return Sections(
        decode_text(decode),
        [*table, "    delete: op = 'd'"],
        [*rows, f"drop: [{', '.join(dropped)}]  # columns are computed from them"],
        {"new_column": "ignore", "tombstone": "filter"},
        bad_records(profile.sample.records, decode, schema),
    )


def _key_names(profile: Profile, names: list[str]) -> tuple[list[str], str]:
    """The columns of the primary key, and why: those of the Kafka key, otherwise `id` or the first column."""
    for record in profile.sample.records:
        try:
            key = json.loads(record.key or b"")
        except ValueError:
            continue
        key = key.get("payload", key) if isinstance(key, dict) else {}
        if isinstance(key, dict) and key and {*key} <= {*names}:
            return [*key], "the Kafka key"
    return [*(name for name in names if name.lower() == "id"), *names][:1], "? there is no Kafka key with its columns"


def _column(at: Path, name: str, is_key: bool) -> str:
    # A delete has no `after`.
    after, before = _text(at, "after", name), _text(at, "before", name)
    return f"coalesce({after}, {before})" if is_key else after


def _text(at: Path, *names: str) -> str:
    return to_text(Field((*at, *names)))
