"""The columns of types as the ledger keeps them."""

from __future__ import annotations

import base64

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.fitting import conflict, grown
from penstock.tables.export.ledger.state import LedgerState


def schema_of(state: LedgerState, name: str) -> pa.Schema | None:
    """The fixed columns of a type as the decoder gives them; None while they are not inferred."""
    known = state.types.get(name)
    if known is None or not known.schema:
        return None
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known.schema)))


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def extended(known: pa.Schema, wanted: pa.Schema, name: str) -> pa.Schema:
    """The known columns and fields and those that are new; a column never changes its type nor its spelling."""
    found = conflict(known, wanted)
    if found is not None:
        raise UserError(
            f"type {name}: the column {found.path} is {found.one} in the table and {found.other} in the job",
            hint="files that are written keep their types: give the field another name",
        )
    return grown(known, wanted)
