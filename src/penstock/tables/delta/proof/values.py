"""The values of a single table: its rows, and how the job's flow writes them once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.flow.columns.partition_values import partition_value
from penstock.flow.table_flow import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Slice
from penstock.proof import unproven
from penstock.proof.findings import Unproven
from penstock.proof.offsets.table import DataFile
from penstock.proof.values.compare import RowValues
from penstock.proof.values.files import ValueFile
from penstock.proof.values.rewriting import BATCH_ID, data_file


@dataclass(frozen=True, slots=True)
class TableRewriter:
    """The flow of a job with one table, without `sql:`, which needs Spark."""

    job: JobSpec
    target: pa.Schema
    partition_by: tuple[str, ...]

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        flow = flow_of(self.job, Batch(BATCH_ID, (piece,)), self.target, self.partition_by)
        table, bad = folder / "table", folder / "quarantine"
        flow = replace(
            flow,
            table=replace(flow.table, table_url=str(table), storage_options={}),
            quarantine=replace(flow.quarantine, table_url=str(bad), storage_options={}),
        )
        storage = open_storage(str(table), {})
        schema = _body_schema(self.target, self.partition_by)
        for report in fused_stage(flow)(records):
            shares = decode_report(report.column(0)[0].as_py()).shares
            for file in (file for named in shares.values() for share in named.values() for file in share.files):
                yield ValueFile(storage, data_file(file), schema, file.partition_values)


def row_values(job: JobSpec, table: Table, files: Sequence[DataFile]) -> RowValues | Unproven:
    """The rows of these files of the table, to be compared with the log."""
    if job.sql is not None:
        return unproven.values_of_sql()
    schema, partition_by, storage = table.schema, table.spec.partition_by, table.storage()
    body = _body_schema(schema, partition_by)
    return RowValues(
        files=[ValueFile(storage, each, body, _texts(each, schema, partition_by)) for each in files],
        rewriter=TableRewriter(job, schema, partition_by),
    )


def _body_schema(schema: pa.Schema, partition_by: Iterable[str]) -> pa.Schema:
    """The columns of the files themselves."""
    apart = set(partition_by)
    return pa.schema([each for each in schema if each.name not in apart])


def _texts(file: DataFile, schema: pa.Schema, partition_by: tuple[str, ...]) -> dict[str, str | None]:
    """The partition values of a file as the log of the table spells them."""
    return {
        name: partition_value(pa.scalar(file.partition_values.get(name), schema.field(name).type))
        for name in partition_by
    }
