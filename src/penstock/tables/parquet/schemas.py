"""The columns of types as the ledger keeps them."""

from __future__ import annotations

import base64

import pyarrow as pa

from penstock.errors import UserError
from penstock.tables.parquet.state import LedgerState


def schema_of(state: LedgerState, name: str) -> pa.Schema | None:
    """The fixed columns of a type as the decoder gives them; None while they are not inferred."""
    known = state.types.get(name)
    if known is None or not known.schema:
        return None
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known.schema)))


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def extended(known: pa.Schema, wanted: pa.Schema, name: str) -> pa.Schema:
    """The known columns and those that are new; a column never changes its type."""
    there = {each.name.lower(): each for each in known}
    for each in wanted:
        old = there.get(each.name.lower())
        if old is not None and old.type != each.type:
            raise UserError(
                f"type {name}: the column {old.name} is {old.type} in the table and {each.type} in the job",
                hint="files that are written keep their types: give the field another name",
            )
    return with_new_fields(known, wanted)


def with_new_fields(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The known columns, and of those found the ones that are new; a record that does not fit a known one is bad."""
    there = {each.name.lower() for each in known}
    return pa.schema([*known, *(each for each in found if each.name.lower() not in there)])
