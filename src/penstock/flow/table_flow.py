"""What the tasks of a job with one table are told: from the job file and the columns that the table has now."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock.flow.columns.fitting import folded, grown
from penstock.flow.compile import visible_schema
from penstock.flow.stage import NamedSlice
from penstock.flow.task import Flow
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch


def decoded_schema(job: JobSpec, target: pa.Schema) -> pa.Schema:
    """What is decoded: the job's fields, and those of the table's columns that a JSON record may have."""
    if job.decode.format != "json" or (job.sql is not None and job.sql.select):
        return job.schema
    computed = {folded(name) for name in job.columns}
    # Records have fields under the names of the job; what others added, under the table's.
    return grown(job.schema, [each for each in target if folded(each.name) not in computed])


def flow_of(job: JobSpec, batch: Batch, target: pa.Schema, partition_by: tuple[str, ...]) -> Flow:
    """What the tasks of a batch must know to write rows of the columns `target`."""
    decoded = decoded_schema(job, target)
    return Flow(
        job=job.name,
        batch_id=batch.id,
        decode=job.decode,
        decoded=decoded,
        visible=visible_schema(job, decoded),
        columns=job.columns,
        sql=job.sql,
        on=job.on,
        table=write_options(job, target, partition_by),
        quarantine=replace(
            write_options(job, QUARANTINE_SCHEMA), table_url=job.table.quarantine_path, open_writers_max=1
        ),
        slices={
            (each.partition.topic, each.partition.number): NamedSlice(each.partition.topic_id, each.start, each.end)
            for each in batch.slices
        },
        stated=job.schema,
    )


def write_options(job: JobSpec, schema: pa.Schema, partition_by: tuple[str, ...] = ()) -> WriteOptions:
    return WriteOptions(
        table_url=job.table.path,
        storage_options=dict(job.table.storage_options),
        schema=schema,
        partition_by=partition_by,
        open_writers_max=job.limits.open_writers_max,
        row_group_bytes_max=job.limits.row_group_bytes_max,
        row_group_rows_max=job.flush.max_messages_per_batch,
    )
