"""The dry run of a job with one table of rows; of a job with `sql:`, which needs Spark, what comes before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.flow.columns.fitting import grown, new_paths
from penstock.flow.columns.seen_types import addable, column_types
from penstock.flow.compile import decoded_schema, flow_of, visible_schema
from penstock.flow.stage import Stage
from penstock.flow.task import Flow, fused_stage
from penstock.job.kafka_types import place_columns
from penstock.job.spec import JobSpec
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.schema import TablePlace, fit
from penstock.logs.log import Batch
from penstock.staging.reports import Gathered
from penstock.tables.preview import Output, local_flow, partitions_of, read_rows


class RowsPreview:
    """The table, or before the first run the job file, gives the columns; records may bring others."""

    def __init__(self, job: JobSpec, hidden: Collection[str] = ()) -> None:
        self.job = replace(job, sql=None)
        self.log = find_table(job.table, job.name)
        columns = pa.schema([field for field in visible_schema(job, job.schema) if field.name not in job.drop])
        if self.log is not None and job.sql is None:
            place = [name for _, name in place_columns(job.columns)]
            missing = fit(self.log.schema, columns, job.on.new_column, job.table.path, place)
            columns = grown([field for field in self.log.schema if field.name not in hidden], missing)
        self.columns = columns
        self.new_columns: tuple[str, ...] = ()
        # With `sql:` they may be columns that only Spark computes.
        spec = job.table if self.log is None else self.log.spec
        self.partition_by = spec.partition_by if isinstance(spec, TablePlace) and job.sql is None else ()

    def flow(self, batch: Batch, folder: str) -> Flow:
        return local_flow(flow_of(self.job, batch, self.columns, self.partition_by, ""), folder)

    def stage(self, batch: Batch, folder: str) -> Stage:
        return fused_stage(self.flow(batch, folder))

    def add_columns(self, gathered: Gathered) -> bool:
        if self.job.on.new_column != "add":
            return False
        before, fields = self.columns, gathered.new_fields()
        types = column_types({name: seen for name, seen in fields.items() if name not in self.job.drop})
        self.columns = grown(before, addable(types, before.names, decoded_schema(self.job, before).names))
        self.new_columns = tuple(new_paths(before, self.columns))
        return bool(self.new_columns)

    def outputs(self, gathered: Gathered, folder: str) -> Iterator[Output]:
        files = [file for share in gathered.all_shares() for file in share.files]
        yield Output("", read_rows(f"{folder}/rows", files, self.columns), partitions_of(files), self.new_columns)
