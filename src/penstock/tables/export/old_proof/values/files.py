"""Reads files for the values of their rows: digests, batch by batch, with the places of rows where they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.offset_ranges import Ranges
from penstock.lake.maintenance.merge import batch_rows
from penstock.lake.storage import Storage
from penstock.logs.log import Slice
from penstock.tables.export.old_proof.offsets.owners import OriginColumns
from penstock.tables.export.old_proof.offsets.table import DataFile, by_place, column_statistics, open_file, place_frame
from penstock.tables.export.old_proof.values.digests import Digests, column_digests, row_digests, text_digest

BATCH_ID = "verify"
"""Of what is written once more."""

Offsets = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]


def held_by(ranges: Ranges, offsets: Offsets) -> npt.NDArray[np.bool_]:
    """Which of the offsets lie in the ranges."""
    lows, highs = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    at = np.searchsorted(lows, offsets, side="right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (offsets < highs[np.maximum(at, 0)])
    return found


@dataclass(frozen=True, slots=True)
class ValueFile:
    """A file with the columns that its rows have in the table, and what all of them have in common."""

    storage: Storage
    file: DataFile
    schema: pa.Schema
    """Of the table or type, without what `constants` tells."""
    constants: Mapping[str, str | None] = field(default_factory=dict)
    """Partition values as text; of an export also the type."""

    @property
    def constant(self) -> np.uint64:
        texts = [f"{name}={value!r}" for name, value in sorted(self.constants.items())]
        return text_digest("\n".join(texts)) if texts else np.uint64(0)


@dataclass(frozen=True, slots=True)
class ValueBatch:
    """Rows of one file: digests by column, and a frame of their places where the file tells them."""

    columns: Mapping[str, Digests]
    constant: np.uint64
    places: pl.DataFrame | None = None

    def digests(self, names: Sequence[str]) -> Digests:
        """Of whole rows, as far as these columns go."""
        return row_digests(self.columns, names, self.constant)

    def groups(self) -> Iterator[tuple[Mapping[str, Any], Rows, Offsets]]:
        """The rows by topic and partition: what they have in common, their numbers in the batch, their offsets."""
        if self.places is None or not len(self.places):
            return
        for values, part in by_place(self.places.with_row_index("row")):
            known = part.drop_nulls("offset") if values["partition"] is not None else part.clear()
            yield values, known["row"].to_numpy(), known["offset"].to_numpy()


def columns_of(file: ValueFile, origin: OriginColumns | None = None) -> tuple[str, ...]:
    """The columns that the file has: later ones are younger than its rows.

    So is a topic that only some of its rows name, as compaction leaves it where the column was added to a table.
    """
    parquet = open_file(file.storage, file.file)
    groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
    topic = origin.topic if origin is not None else None
    topics = [column_statistics(group, topic) for group in groups if topic is not None]
    partly = any(each is None or each.null_count != 0 for each in topics)
    there = set(parquet.schema_arrow.names) - ({topic} if partly else set())
    return tuple(name for name in file.schema.names if name in there)


def read_values(file: ValueFile, origin: OriginColumns | None, wanted: Ranges | None = None) -> Iterator[ValueBatch]:
    """All rows, or those of row groups that may hold wanted offsets."""
    parquet = open_file(file.storage, file.file)
    there = set(parquet.schema_arrow.names)
    schema = pa.schema([each for each in file.schema if each.name in there])
    constant = file.constant
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        if origin is not None and wanted is not None and not _may_hold(group, origin.offset, wanted):
            continue
        for batch in parquet.iter_batches(batch_rows(group), row_groups=[number], columns=schema.names):
            fitted = fit_columns(batch, schema)
            digests = {each.name: column_digests(fitted.column(each.name)) for each in schema}
            places = None if origin is None else place_frame(fitted, origin, file.file.partition_values)
            yield ValueBatch(digests, constant, places)


def _may_hold(group: pq.RowGroupMetaData, column: str, wanted: Ranges) -> bool:
    statistics = column_statistics(group, column)
    return statistics is None or any(lo <= int(statistics.max) and int(statistics.min) < hi for lo, hi in wanted)


class Rewriter(Protocol):
    """Gives the files that the job would write for records of one partition."""

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        """The files of `records`, which are of this slice, below an empty folder."""


def data_file(file: StagedFile) -> DataFile:
    return DataFile(file.path, file.rows, file.size_bytes)
