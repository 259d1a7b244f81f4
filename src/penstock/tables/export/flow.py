"""What the tasks of an export are given, and the columns that records bring to its types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.flow.columns.read_fields import with_read_fields
from penstock.flow.columns.seen_types import NewFields, addable, column_types
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice, TypeFlow
from penstock.flow.write.pool import PoolLimits
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.logs.log import Batch, Partition
from penstock.tables.export.logs import ExportLogs


def fanout_flow(
    logs: ExportLogs, batch_id: str, slices: Mapping[Partition, RoutedSlice], quarantine_url: str
) -> FanoutFlow:
    """The flow that the tasks of a batch run."""
    job, environment = logs.job, logs.environment
    return FanoutFlow(
        job=job.name,
        batch_id=batch_id,
        decode=job.decode,
        on=job.on,
        route=job.table.route,
        types={
            name: TypeFlow(
                name=name,
                values=spec.values,
                # The descriptor states the fields of a message; a JSON record may have fields for every column.
                decoded=logs.decoded_of(name) if job.decode.format == "json" else spec.schema,
                target=logs.columns_of(name),
                event_time=spec.event_time,
                message=spec.message,
            )
            for name, spec in job.table.types.items()
        },
        columns=job.columns,
        days=job.table.days,
        now_ms=int(environment.now() * 1000),
        root_url=job.table.path,
        staged_folder=logs.staged if logs.is_plain else "",
        quarantine_url=quarantine_url,
        slices={(partition.topic, partition.number): routed for partition, routed in slices.items()},
        failpoint=environment.failpoint,
        storage_options=dict(job.table.storage_options),
        compression=job.table.compression,
        statistics=not logs.is_plain,
        limits=PoolLimits(
            open_writers_max=job.limits.open_writers_max, row_group_bytes_max=job.limits.row_group_bytes_max
        ),
    )


def local_flow(logs: ExportLogs, batch: Batch, types: Iterable[str], rows_url: str, quarantine_url: str) -> FanoutFlow:
    """The flow of all records of a batch for these types, into local folders."""
    names = tuple(types)
    slices = {
        piece.partition: RoutedSlice(
            piece.partition.topic_id, piece.start, piece.end, 1, dict.fromkeys(names, piece.start)
        )
        for piece in batch.slices
    }
    flow = fanout_flow(logs, batch.id, slices, quarantine_url)
    return replace(flow, root_url=rows_url, staged_folder="", storage_options={})


def new_columns(job: JobSpec, spec: TypeFlow, fields: NewFields) -> pa.Schema:
    """The columns that new fields of a type's records bring; a type without columns gets its first."""
    before = spec.decoded if spec.decoded is not None else pa.schema([])
    types = column_types(fields)
    if spec.decoded is None:
        types = with_read_fields(types, spec.event_time, job.columns.values())
    return addable(types, [*before.names, *job.columns, DAY_FOLDER], before.names)
