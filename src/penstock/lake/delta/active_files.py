"""The files that a version of a Delta table consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from penstock.errors import UserError
from penstock.flow.columns.partition_values import Values, partition_value

_DELETION_VECTORS = "deletionVectors"


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """One file of the loaded version; `path` is its name on disk."""

    path: str
    size_bytes: int
    modified_at_ms: int
    values: Values
    """The texts of its partition values, in the order of the table's partition columns."""
    scalars: tuple[pa.Scalar, ...] = field(default=(), compare=False)
    """The same values as the columns have them."""


def active_files(handle: DeltaTable) -> tuple[ActiveFile, ...]:
    """Every file of the loaded version."""
    actions = pa.table(handle.get_add_actions())
    names = handle.metadata().partition_columns
    columns = [_partition_column(actions, name) for name in names]
    texts: dict[pa.Scalar, str | None] = {}
    found = []
    for row, path in enumerate(raw_paths(actions)):
        scalars = tuple(column[row] for column in columns)
        for each in scalars:
            if each not in texts:
                texts[each] = partition_value(each)
        found.append(
            ActiveFile(
                path,
                actions["size_bytes"][row].as_py(),
                actions["modification_time"][row].as_py(),
                tuple(texts[each] for each in scalars),
                scalars,
            )
        )
    return tuple(found)


def active_paths(handle: DeltaTable) -> frozenset[str]:
    """The names on disk of the files of the loaded version."""
    return frozenset(raw_paths(pa.table(handle.get_add_actions())))


def raw_paths(actions: pa.Table) -> list[str]:
    # The library shows the paths as the log spells them, which is percent-encoded once more than on disk.
    return [unquote(path) for path in actions["path"].to_pylist()]


def refuse_deletion_vectors(handle: DeltaTable, path: str) -> None:
    """Refuse to rewrite files of which only some rows count: a copy would bring the others back."""
    if _DELETION_VECTORS not in (handle.protocol().reader_features or ()):
        return
    if any(batch.num_rows for batch in handle.deletion_vectors()):
        raise UserError(
            f"the table at {path} has files with deletion vectors",
            detail="another writer deleted single rows; Penstock does not rewrite such files",
            hint="run `REORG TABLE ... APPLY (PURGE)` with Spark, then compact again",
        )


def _partition_column(actions: pa.Table, name: str) -> pa.ChunkedArray:
    struct = actions["partition"].combine_chunks()
    return struct.field(struct.type.get_field_index(name))
