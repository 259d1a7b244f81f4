"""Cleaning and merging of partials (RULES W3).

Partials of windows that are closed for good leave their table; their points stay counted. Many small files become few,
and rows of the same series and window one: only files that no close takes as late any more, so the result may have the
greatest of their epochs. Neither changes a file while a close is under way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.points.series import BUCKETS
from penstock.flow.write.files import WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.staged import check_staged
from penstock.lake.storage import Storage
from penstock.staging.dealing import run_each
from penstock.tables.rollup.aggregate import merge_partials
from penstock.tables.rollup.close_portion import shares_of
from penstock.tables.rollup.decide import Clean, Merge, PartialsFile
from penstock.tables.rollup.files import scan, stage_files, window_bounds, write_options
from penstock.tables.rollup.numbers import CLEANED, CLOSE, LEAST_MS, POINTS_REMOVED, number_key, number_of
from penstock.tables.rollup.schema import EPOCH, PARTIALS_GROUP_ROWS_MAX, SORTED_BY, partials_schema, read_schema
from penstock.tables.rollup.spec import RollupSpec

_COUNT = pa.schema([("count", pa.int64())])


def clean(partials: Table, chore: Clean) -> int | None:
    """Remove the files in one commit; the points in them, or None if there was nothing to remove any more."""
    storage = partials.storage()
    points = sum(int(rows["count"].sum()) for file in chore.files for rows in scan(storage, file.path, _COUNT))

    def decide() -> Change | None:
        files = _unchanged(partials, chore.closed, chore.files)
        if files is None:
            return None
        before = partials.transaction(number_key(partials.job, CLEANED))
        return Change(
            actions=[partials.remove_action(file) for file in files],
            transactions={
                number_key(partials.job, CLEANED): max(LEAST_MS if before is None else before, chore.cleaned_ms),
                number_key(partials.job, POINTS_REMOVED): number_of(partials, POINTS_REMOVED) + points,
            },
            metadata=Provenance(kind="clean", job=partials.job, files_removed=len(files)).metadata,
        )

    return points if partials.swap(decide) else None


def _unchanged(partials: Table, closed: int, files: Iterable[PartialsFile]) -> list[ActiveFile] | None:
    """The files as they are now; None if one is gone, or if a close was begun, which may need them."""
    if number_of(partials, CLOSE) != closed:
        return None
    active = {file.path: file for file in partials.active_files()}
    return [active[file.path] for file in files] if all(file.path in active for file in files) else None


@dataclass(frozen=True, slots=True)
class _MergeFlow:
    """Everything that the tasks of a merge need to know."""

    storage: Storage
    options: WriteOptions
    spec: RollupSpec
    chore: Merge
    version_max: int


class _MergeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task tells the driver."""

    files: tuple[StagedFile, ...] = ()
    read: int = 0
    """Points in the rows that were read."""
    written: int = 0


def merge(partials: Table, spark: SparkSession, spec: RollupSpec, chore: Merge) -> int | None:
    """Swap the files for their merged rows; how many files there are then, or None if others changed them meanwhile."""
    options = write_options(partials, PARTIALS_GROUP_ROWS_MAX)
    flow = _MergeFlow(partials.storage(), options, spec, chore, partials.version + VERSIONS_TO_LAND_MAX)
    shares = shares_of(range(BUCKETS), sum(file.rows for file in chore.files), spark)
    reports = run_each(spark, partial(_merge_share, flow), shares, _MergeReport)
    read, written = sum(report.read for report in reports), sum(report.written for report in reports)
    if read != written:
        raise InvariantError(f"a merge in {options.table_url} read {read} points and wrote {written}")
    outputs = [file for report in reports for file in report.files]

    def decide() -> Change | None:
        files = _unchanged(partials, chore.closed, chore.files)
        if files is None or partials.version >= flow.version_max:
            return None
        partials.check_schema(options.schema)
        check_staged(partials.storage(), outputs)
        removes = [partials.remove_action(file, data_change=False) for file in files]
        adds = [partials.add_action(file, data_change=False) for file in outputs]
        about = Provenance(kind="merge", job=partials.job, files_removed=len(removes), files_added=len(adds))
        return Change([*removes, *adds], {}, about.metadata)

    return len(outputs) if partials.swap(decide) else None


def _merge_share(flow: _MergeFlow, share: tuple[range, ...]) -> _MergeReport:
    read = written = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read, written
        for buckets in share:
            rows = _rows(flow, buckets)
            merged = merge_partials(rows.lazy(), flow.spec.finest.millis, flow.spec.aggregates).collect()
            read, written = read + int(rows["count"].sum()), written + int(merged["count"].sum())
            yield from _batches(flow, merged)

    files = stage_files(flow.options, lambda: compacted_name(flow.version_max, uuid.uuid4().hex), batches())
    return _MergeReport(files, read, written)


def _rows(flow: _MergeFlow, buckets: range) -> pl.DataFrame:
    schema, bounds = read_schema(flow.spec.aggregates), window_bounds(buckets, LEAST_MS, -LEAST_MS)
    frames = (rows for file in flow.chore.files for rows in scan(flow.storage, file.path, schema, bounds))
    return pl.concat([pl.DataFrame(schema.empty_table()), *frames])


def _batches(flow: _MergeFlow, merged: pl.DataFrame) -> Iterable[pa.RecordBatch]:
    schema = partials_schema(flow.spec.aggregates)
    day = pl.lit(date.fromisoformat(flow.chore.files[0].day), pl.Date).alias("day")
    rows = merged.sort(*SORTED_BY).with_columns(day, pl.lit(flow.chore.epoch, pl.Int64).alias(EPOCH))
    for batch in rows.select(schema.names).to_arrow().cast(schema).to_batches(PARTIALS_GROUP_ROWS_MAX):
        yield fit_columns(batch, flow.options.schema)
