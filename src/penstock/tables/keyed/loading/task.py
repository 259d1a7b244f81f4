"""What a task of a load does: reads files and leaves their rows as sorted runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import REPORT_SCHEMA
from penstock.tables.keyed.layout import SEQUENCE, deletions, key_faults
from penstock.tables.keyed.loading.sources import SourceFile, read_batches
from penstock.tables.keyed.merging.plan import Naming
from penstock.tables.keyed.merging.runs import DELETE, RunTarget, RunWriter

LOADED = -1
"""The sequence of rows of a load: older than every record of a log."""


class LoadTaskReport(msgspec.Struct, frozen=True):
    """What became of a file."""

    runs: tuple[StagedFile, ...] = ()
    rows: int = 0
    bad: int = 0
    first_fault: str = ""


_DECODER = msgspec.msgpack.Decoder(tuple[Literal[1], LoadTaskReport])


def decode_load_report(data: bytes) -> LoadTaskReport:
    return _DECODER.decode(data)[1]


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Each task gets the number of a file."""

    files: tuple[SourceFile, ...]
    columns: pa.Schema
    """Of the table, without those that it keeps for itself."""
    target: RunTarget
    naming: Naming

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                data = msgspec.msgpack.encode((1, self._load(number)))
                yield pa.RecordBatch.from_arrays([pa.array([data])], schema=REPORT_SCHEMA)

    def _load(self, number: int) -> LoadTaskReport:
        file = self.files[number]
        writer = RunWriter(self.target, (file.name, number), self.naming.fresh)
        rows = bad = 0
        first = ""
        for batch in read_batches(file, self.columns):
            fitted = self._fitted(file, batch)
            faults = key_faults(self.target.layout, fitted)
            if faults and not first:
                row, fault = min(faults.items())
                first = f"{file.name} row {rows + row + 1}: {fault}"
            bad += len(faults)
            rows += fitted.num_rows
            order = pa.repeat(pa.scalar(LOADED, pa.int64()), fitted.num_rows)
            gone = deletions(self.target.layout, fitted, pa.RecordBatch.from_pydict({}))
            if not faults:
                writer.write(fitted.append_column(SEQUENCE, order).append_column(DELETE, gone))
        return LoadTaskReport(writer.finish(), rows, bad, first)

    def _fitted(self, file: SourceFile, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the columns of the table; others are left out, which the driver has seen to."""
        known = {folded(name): self.columns.field(name) for name in self.columns.names}
        names = [name for name in batch.schema.names if folded(name) in known]
        try:
            arrays = [batch.column(name).cast(known[folded(name)].type) for name in names]
        except pa.ArrowException as error:
            raise ValueError(f"{file.name}: {error}") from error
        return fit_columns(pa.RecordBatch.from_arrays(arrays, names=names), self.columns)
