"""The interface of a dry run: a kind of table runs its task code in this process, on files in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.stage import Stage
from penstock.flow.task import TableFlow
from penstock.flow.write.manifest import StagedFile
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Batch
from penstock.staging.reports import Gathered

FlowT = TypeVar("FlowT", bound=TableFlow)


@dataclass(frozen=True, slots=True)
class Output:
    """What a table, or a type of an export, would get of a batch."""

    name: str
    """Of the type; empty for the only table of a job."""
    rows: pa.Table
    partitions: Mapping[str, tuple[int, int]]
    """Rows and files by partition, as in `day=2026-03-01`."""
    new_columns: tuple[str, ...] = ()
    """Fields of records, as dotted paths, that the table or the job file does not have yet."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """What gives the values of columns that are neither fields of a record nor in the job file."""
    notes: tuple[str, ...] = ()


class Preview(Protocol):
    """A job's table as a dry run sees it: read, and never changed."""

    @property
    def log(self) -> DeltaLog | None:
        """The Delta log with the positions; None before the first run."""

    def stage(self, batch: Batch, folder: str) -> Stage:
        """What a task does with the batch; it writes rows below `rows/` of the folder, and bad records below `bad/`."""

    def add_columns(self, gathered: Gathered) -> bool:
        """Take in the columns that records brought; returns whether the batch has to be staged again."""

    def outputs(self, gathered: Gathered, folder: str) -> Iterator[Output]:
        """What was staged."""


def local_flow(flow: FlowT, folder: str) -> FlowT:
    """The flow with its files below a local folder."""
    table = replace(flow.table, table_url=f"{folder}/rows", storage_options={})
    return replace(
        flow, table=table, quarantine=replace(flow.quarantine, table_url=f"{folder}/bad", storage_options={})
    )


def read_rows(folder: str, files: Iterable[StagedFile], schema: pa.Schema) -> pa.Table:
    """The rows of staged Parquet files, with their partition values as columns."""
    batches = []
    for file in files:
        table = pq.ParquetFile(f"{folder}/{file.path}").read()
        for name, value in file.partition_values.items():
            values = pa.repeat(pa.scalar(value, pa.string()), table.num_rows)
            table = table.append_column(name, values.cast(schema.field(name).type))
        batches += [fit_columns(batch, schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def partitions_of(files: Iterable[StagedFile]) -> dict[str, tuple[int, int]]:
    """Rows and files by partition."""
    partitions: dict[str, tuple[int, int]] = {}
    for file in files:
        name = "/".join(f"{column}={value}" for column, value in file.partition_values.items())
        rows, count = partitions.get(name, (0, 0))
        partitions[name] = rows + file.rows, count + 1
    return dict(sorted(partitions.items()))
