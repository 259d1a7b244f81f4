"""Drafts `table.delta`: a row per record, by day of event time."""

from __future__ import annotations

from penstock.peek.draft import (
    Sections,
    bad_records,
    day_column,
    decode_spec,
    decode_text,
    place_lines,
    row_schema,
    schema_lines,
    table_path,
)
from penstock.peek.profile import Profile


def suits(profile: Profile) -> bool:
    """Any topic can be written to such a table."""
    return True


def draft(profile: Profile) -> Sections:
    decode = decode_spec(profile)
    schema = row_schema(profile, decode)
    name, line = day_column(profile, schema)
    return Sections(
        decode_text(decode),
        [f"  delta: {{path: {table_path(profile)}, partition_by: [{name}]}}"],
        [*schema_lines(profile, decode), "columns:", *place_lines(schema.names), line],
        bad=bad_records(profile.sample.records, decode, schema),
    )
