"""A dry run: the next records of a job go through its task code in this process, and nothing is committed or created.

They are read from the positions in the table, or where the job would start, and decoded, routed, computed and divided
into files as tasks do it. Files go to a temporary folder; the table and the log are only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.engine.ownership import first_offsets
from penstock.environment import Environment
from penstock.errors import UserError
from penstock.flow.write.manifest import Counts, Reason
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.report import TaskReport, decode_report
from penstock.job.spec import JobSpec
from penstock.lake.state import DeltaState
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.plan import PartitionInput, PlanTerms, plan
from penstock.staging.read_checks import ReadChecks
from penstock.staging.reports import Gathered, gather
from penstock.tables.inference import with_seen_fields
from penstock.tables.preview import Output, Preview, read_rows
from penstock.tables.registry import preview_of

if TYPE_CHECKING:
    from penstock.quarantine.replay import Chunk


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the next batch of a job, or a replay of quarantined records, would do."""

    slices: tuple[Slice, ...] = ()
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Where the log ends."""
    counts: Counts = field(default_factory=Counts)
    outputs: tuple[Output, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """Why records would be quarantined, the most frequent first."""
    quarantine: pa.Table = field(default_factory=QUARANTINE_SCHEMA.empty_table)
    stop: UserError | None = None
    """Why a run would stop before it commits this batch."""


Read = Callable[[], Iterable[pa.RecordBatch]]


def dry_run(job: JobSpec, records_max: int, open_log: OpenLog = open_log_of) -> DryRun:
    """Stage the next records, of at most so many offsets."""
    with closing(open_log(job)) as log, _folder() as folder:
        job = with_seen_fields(job, log, Environment())
        preview = preview_of(job)
        batch, ends = _next_batch(job, log, preview, records_max)
        if not batch.slices:
            return DryRun(ends=ends)

        def read() -> Iterator[pa.RecordBatch]:
            slices = (log.records(piece.partition, piece.read_from, piece.end) for piece in batch.slices)
            return chain.from_iterable(slices)

        gathered = _staged(preview, batch, read, folder)
        types = {name for named in gathered.shares.values() for name in named}
        if job.on.new_column == "add" and (rare := gathered.rare_fields(types, job.on.new_column_share)):
            job = replace(job, on=replace(job.on, rare_fields=rare))
            preview = preview_of(job)
            gathered = _staged(preview, batch, read, folder)
        gathered = _with_columns(preview, batch, read, folder, gathered)
        result = _result(preview, batch, folder, gathered)
        return replace(result, ends=ends, stop=_why_stopped(job, log, batch, gathered))


def dry_replay(job: JobSpec, chunk: Chunk) -> DryRun:
    """Stage quarantined records as a replay with the job file as it is now would; the log is not asked."""
    with _folder() as folder:
        preview, batch = preview_of(job), Batch("dry-run", chunk.slices)
        read: Read = chunk.rows.to_batches
        gathered = _with_columns(preview, batch, read, folder, _staged(preview, batch, read, folder))
        return _result(preview, batch, folder, gathered)


def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="penstock-dry-run-", ignore_cleanup_errors=True)


def _next_batch(job: JobSpec, log: Log, preview: Preview, records_max: int) -> tuple[Batch, Mapping[Partition, int]]:
    """The next batch, of at most so many offsets, and where the log ends; without slices if no record waits."""
    partitions = log.partitions()
    bounds = log.bounds(partitions)
    state = DeltaState(0, {}, {}) if preview.log is None else preview.log.state(partitions)
    positions = {partition: state.of(partition).position for partition in partitions}
    new = [partition for partition in partitions if positions[partition] is None]
    positions |= first_offsets(job, log, new, state, bounds)
    lanes = tuple(
        PartitionInput(partition, position, bounds[partition], None)
        for partition, position in positions.items()
        if position is not None
    )
    # Counted in records of one byte, so that both bounds of a batch are the number of records.
    flush = replace(job.flush, max_messages_per_batch=records_max, min_bytes_per_file=1, max_bytes_per_batch=1)
    terms = PlanTerms(flush, job.on.gap, record_bytes=1.0, now=time.time(), flush_now=True)
    planned = plan(lanes, terms, "dry-run")
    ends = {partition: bounds[partition].end for partition in partitions}
    return planned if isinstance(planned, Batch) else Batch("dry-run", ()), ends


def _staged(preview: Preview, batch: Batch, read: Read, folder: str) -> Gathered:
    reports = preview.stage(batch, folder)(iter(read()))
    return gather([decode_report(report.column(0)[0].as_py(), TaskReport) for report in reports])


def _with_columns(preview: Preview, batch: Batch, read: Read, folder: str, gathered: Gathered) -> Gathered:
    """The same staged again, if the records brought columns."""
    return _staged(preview, batch, read, folder) if preview.add_columns(gathered) else gathered


def _result(preview: Preview, batch: Batch, folder: str, gathered: Gathered) -> DryRun:
    bad = [file for share in gathered.all_shares() for file in share.quarantine_files]
    return DryRun(
        batch.slices,
        counts=gathered.total,
        outputs=tuple(preview.outputs(gathered, folder)),
        reasons=gathered.reasons,
        quarantine=read_rows(f"{folder}/bad", bad, QUARANTINE_SCHEMA),
    )


def _why_stopped(job: JobSpec, log: Log, batch: Batch, gathered: Gathered) -> UserError | None:
    try:
        ReadChecks(job, log).check(batch, gathered)
    except UserError as error:
        return error
    return None
