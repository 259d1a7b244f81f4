"""What `verify` proves of a single Delta table: its rows, their places, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.files import RowSource, data_file, place_of, table_source
from penstock.proof.findings import NO_TABLE, VALUES_OF_SQL, Proof
from penstock.proof.frame import prove
from penstock.proof.subject import Depth, Rewrite
from penstock.tables.delta.misfiled import find_misfiled
from penstock.tables.single.facts import read_table


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    source = table_source(facts.table, place_of(job, facts.table.schema))
    subject = replace(
        facts.subject(job),
        sources=(source,),
        rows_written=facts.incarnations.rows_written,
        rewrite=VALUES_OF_SQL if job.sql is not None else rewrite_of(job, facts.table, source),
    )
    misfiled = find_misfiled(subject, facts.table)
    violations = tuple(rows.first for rows in misfiled if rows.first is not None)
    return prove(replace(subject, faults=tuple(map(str, misfiled)), violations=violations), depth, open_log)


def rewrite_of(job: JobSpec, table: Table, source: RowSource) -> Rewrite:
    """The flow of a job with one table, without `sql:`, which needs Spark."""
    schema, partition_by = table.schema, table.spec.partition_by
    # Columns that the next run adds have no values yet.
    there = {folded(name) for name in schema.names}
    job = replace(job, columns={name: column for name, column in job.columns.items() if folded(name) in there})

    def rewrite(piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[RowSource]:
        flow = flow_of(job, Batch("verify", (piece,)), schema, partition_by)
        rows, bad = str(folder / "table"), str(folder / "quarantine")
        flow = replace(
            flow,
            table=replace(flow.table, table_url=rows, storage_options={}),
            quarantine=replace(flow.quarantine, table_url=bad, storage_options={}),
        )
        for report in fused_stage(flow)(records):
            for shares in decode_report(report.column(0)[0].as_py()).shares.values():
                staged = [file for share in shares.values() for file in share.files]
                files = [data_file(file.path, file.rows, values=file.partition_values) for file in staged]
                yield replace(source, storage=open_storage(rows, {}), files=files)

    return rewrite
