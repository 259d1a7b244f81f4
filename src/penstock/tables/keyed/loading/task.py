"""What a task of a load does: reads rows and leaves them as sorted runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import report_batch
from penstock.tables.keyed.layout import SEQUENCE, deletions, key_faults
from penstock.tables.keyed.loading.sources import SourceFile, read_batches
from penstock.tables.keyed.merging.plan import Naming
from penstock.tables.keyed.merging.runs import DELETE, RunTarget, RunWriter

LOADED = -1
"""The sequence of rows of a load: older than every record of a log."""


class LoadTaskReport(msgspec.Struct, frozen=True):
    """What became of the rows of a task."""

    runs: tuple[StagedFile, ...] = ()
    rows: int = 0
    bad: int = 0
    first_fault: str = ""
    unreadable: str = ""
    """Why the rows are not those that the table takes."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """What every task of a load needs to know."""

    columns: pa.Schema
    """Of the table, without those that it keeps for itself."""
    runs: RunTarget
    naming: Naming

    def take_file(self, numbered: tuple[int, SourceFile]) -> LoadTaskReport:
        number, file = numbered
        return self.take(file.name, number, read_batches(file, self.columns))

    def take(self, name: str, number: int, batches: Iterable[pa.RecordBatch]) -> LoadTaskReport:
        """Leave rows as runs. Of loads with equal keys the greater number wins."""
        try:
            return self._written(name, number, batches)
        except pa.ArrowException as error:
            return LoadTaskReport(unreadable=f"{name}: {error}")

    def _written(self, name: str, number: int, batches: Iterable[pa.RecordBatch]) -> LoadTaskReport:
        writer = RunWriter(self.runs, (name, number), self.naming.fresh)
        rows = bad = 0
        first = ""
        for batch in batches:
            fitted = self._fitted(batch)
            faults = key_faults(self.runs.layout, fitted)
            if faults and not first:
                row, fault = min(faults.items())
                first = f"{name} row {rows + row + 1}: {fault}"
            bad += len(faults)
            rows += fitted.num_rows
            order = pa.repeat(pa.scalar(LOADED, pa.int64()), fitted.num_rows)
            gone = deletions(self.runs.layout, fitted, pa.RecordBatch.from_pydict({}))
            if not faults:
                writer.write(fitted.append_column(SEQUENCE, order).append_column(DELETE, gone))
        return LoadTaskReport(writer.finish(), rows, bad, first)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the columns of the table; others are left out, which the driver has seen to."""
        known = {folded(name): self.columns.field(name) for name in self.columns.names}
        names = [each for each in batch.schema.names if folded(each) in known]
        arrays = [batch.column(each).cast(known[folded(each)].type) for each in names]
        return fit_columns(pa.RecordBatch.from_arrays(arrays, names=names), self.columns)


@dataclass(frozen=True, slots=True)
class FrameStage:
    """Each task gets rows that Spark has read."""

    name: str
    target: LoadTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield report_batch(self.target.take(self.name, context.partitionId(), batches))
