"""The files of a Delta table: those that a version consists of, and staged ones before a commit names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.errors import TransientError, UserError
from penstock.flow.columns.partition_values import Values, partition_value
from penstock.flow.write.manifest import StagedFile, Vector
from penstock.lake.delta.vectors import VECTORS_FEATURE
from penstock.storage import Storage

if TYPE_CHECKING:
    # Spark tasks import this module and must not load the Delta library.
    from deltalake import DeltaTable

_STATISTICS = ("min", "max", "null_count")


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
    rows: int | None = field(default=None, compare=False)
    """None if the statistics lack it; so for spans and nulls."""
    spans: Mapping[str, tuple[Any, Any] | None] = field(default_factory=dict, compare=False)
    """The least and the greatest value of the columns that were asked for."""
    nulls: Mapping[str, int | None] = field(default_factory=dict, compare=False)
    vector: Vector | None = None
    """The rows that are deleted; `rows` counts them too."""

    @property
    def deleted(self) -> int:
        return 0 if self.vector is None else self.vector.rows

    @property
    def rows_left(self) -> int:
        """Without deleted ones; 0 if the statistics lack the rows."""
        return (self.rows or 0) - self.deleted

    @property
    def paths(self) -> tuple[str, ...]:
        """The data, and the vector if there is one."""
        return (self.path,) if self.vector is None else (self.path, self.vector.path)


def active_files(handle: DeltaTable, spans_of: Sequence[str] = ()) -> tuple[ActiveFile, ...]:
    """Every file of the loaded version, with the statistics of some columns."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    values = [_distinct(actions[f"partition.{name}"]) for name in handle.metadata().partition_columns]
    sizes, times = actions["size_bytes"].to_pylist(), actions["modification_time"].to_pylist()
    rows = _statistic(actions, "num_records")
    least, most, nulls = ({name: _statistic(actions, f"{what}.{name}") for name in spans_of} for what in _STATISTICS)
    return tuple(
        ActiveFile(
            # The library gives paths as the log spells them, percent-encoded once more than on disk.
            unquote(path),
            sizes[row],
            times[row],
            tuple(column[row][0] for column in values),
            tuple(column[row][1] for column in values),
            rows[row],
            {
                name: None if None in (least[name][row], most[name][row]) else (least[name][row], most[name][row])
                for name in spans_of
            },
            {name: nulls[name][row] for name in spans_of},
        )
        for row, path in enumerate(actions["path"].to_pylist())
    )


def _distinct(column: pa.ChunkedArray) -> list[tuple[str | None, pa.Scalar]]:
    """Text and value of each row; rows with the same value share them."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    distinct = [(partition_value(value), value) for value in encoded.dictionary]
    return [distinct[index] for index in encoded.indices.to_pylist()]


def refuse_deletion_vectors(handle: DeltaTable, path: str) -> None:
    """Refuse files with deletion vectors, where rows are copied without them: a copy would restore deleted rows."""
    if VECTORS_FEATURE not in (handle.protocol().reader_features or ()):
        return
    if any(batch.num_rows for batch in handle.deletion_vectors()):
        raise UserError(
            f"the table at {path} has files with deletion vectors",
            detail="another writer deleted single rows; Penstock neither counts nor rewrites such files",
            hint="run `REORG TABLE ... APPLY (PURGE)` with Spark, then try again",
        )


def _statistic(actions: pa.Table, name: str) -> list[Any]:
    return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows


class StagedFileGoneError(TransientError):
    """A staged file is missing or incomplete before its commit: the batch has to be written again."""


def check_staged(storage: Storage, files: Iterable[StagedFile]) -> None:
    """Raise `StagedFileGoneError` unless every file is there in its whole size (RULES C7)."""
    files = list(files)
    expected = {file.path: file.size_bytes for file in files}
    vectors = {file.vector.path: file.vector for file in files if file.vector is not None}
    sizes = storage.sizes([*expected, *vectors]) if expected else {}
    expected |= {path: sizes.get(path, 0) for path in vectors}
    for path, size_bytes in expected.items():
        if sizes.get(path) == size_bytes:
            continue
        fault = f"it has {sizes[path]} of {size_bytes} bytes" if path in sizes else "it does not exist"
        raise StagedFileGoneError(
            f"a staged file is not as its task wrote it: {storage.url.rstrip('/')}/{path}",
            detail=f"{fault}; nothing was committed",
            hint="does every executor write to the same storage? A local path must be a folder that all of them share",
        )
