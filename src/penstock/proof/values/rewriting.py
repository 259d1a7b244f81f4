"""Writes records of the log once more, with the job's own flow, into a folder that is thrown away."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.flow.table_flow import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Partition, Slice
from penstock.proof.offsets.table import DataFile
from penstock.proof.values.files import ValueFile

BATCH_ID = "verify"


class Rewriter(Protocol):
    """Gives the files that the job would write for records of one partition."""

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        """The files of `records`, which are of this slice, below an empty folder."""


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
        schema = body_schema(self.target, self.partition_by)
        for report in fused_stage(flow)(records):
            shares = decode_report(report.column(0)[0].as_py()).shares
            for file in (file for named in shares.values() for share in named.values() for file in share.files):
                yield ValueFile(storage, data_file(file), schema, file.partition_values)


def data_file(file: StagedFile) -> DataFile:
    return DataFile(file.path, file.rows, file.size_bytes)


def body_schema(schema: pa.Schema, partition_by: Iterable[str]) -> pa.Schema:
    """The columns of the files themselves."""
    apart = set(partition_by)
    return pa.schema([each for each in schema if each.name not in apart])


def slice_of(partition: Partition, lo: int, hi: int) -> Slice:
    return Slice(partition, lo, hi, lo)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one chunk of records, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
