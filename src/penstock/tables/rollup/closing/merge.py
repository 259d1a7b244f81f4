"""Many small files of partials become few: rows of the same series and window are merged on the way.

Only files that no close takes as late any more: so the result may have the greatest of their epochs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
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
from penstock.flow.write.files import StagedWriter, WriteOptions
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import compacted_name
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.staged import check_staged
from penstock.lake.storage import open_storage
from penstock.staging.dealing import run_each
from penstock.tables.rollup.closing.clean import unchanged
from penstock.tables.rollup.closing.decide import Merge
from penstock.tables.rollup.closing.portion.closing_job import cores_of, shares_of
from penstock.tables.rollup.closing.portion.scan import Wanted, scan
from penstock.tables.rollup.closing.portion.task import Merging
from penstock.tables.rollup.closing.standing import LEAST_MS
from penstock.tables.rollup.partials.schema import EPOCH, ROW_GROUP_ROWS_MAX, SORTED_BY, written_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window


@dataclass(frozen=True, slots=True)
class MergeFlow:
    """Everything that the tasks of a merge need to know."""

    partials: WriteOptions
    aggregates: Aggregates
    finest: Window
    paths: tuple[str, ...]
    day: date
    epoch: int
    version_max: int
    shares: tuple[tuple[range, ...], ...]


class MergeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task tells the driver."""

    files: tuple[StagedFile, ...] = ()
    read: int = 0
    """Points in the rows that were read."""
    written: int = 0


def merge(partials: Table, spark: SparkSession, spec: RollupSpec, chore: Merge) -> int | None:
    """Swap the files for their merged rows; how many files there are then, or None if others changed them meanwhile."""
    flow = _flow(partials, spark, spec, chore)
    reports = run_each(spark, partial(_merged, flow), flow.shares, MergeReport)
    read, written = sum(each.read for each in reports), sum(each.written for each in reports)
    if read != written:
        raise InvariantError(f"a merge in {partials.spec.path} read {read} points and wrote {written}")
    outputs = [file for each in reports for file in each.files]

    def decide() -> Change | None:
        found = unchanged(partials, chore.closed, list(flow.paths))
        if found is None or partials.version >= flow.version_max:
            return None
        partials.check_schema(flow.partials.schema)
        check_staged(partials.storage(), outputs)
        added = [partials.add_action(each, data_change=False) for each in outputs]
        return Change(
            actions=[*(partials.remove_action(each, data_change=False) for each in found), *added],
            transactions={},
            metadata=Provenance(
                kind="merge", job=partials.job, files_removed=len(found), files_added=len(added)
            ).metadata,
        )

    return len(outputs) if partials.swap(decide) else None


def _flow(partials: Table, spark: SparkSession, spec: RollupSpec, chore: Merge) -> MergeFlow:
    place = partials.spec
    options = WriteOptions(
        place.path,
        partials.schema,
        dict(place.storage_options),
        place.partition_by,
        row_group_rows_max=ROW_GROUP_ROWS_MAX,
    )
    return MergeFlow(
        partials=options,
        aggregates=spec.aggregates,
        finest=spec.finest,
        paths=tuple(each.path for each in chore.files),
        day=date.fromisoformat(chore.files[0].day),
        epoch=chore.epoch,
        version_max=partials.version + VERSIONS_TO_LAND_MAX,
        shares=shares_of(range(BUCKETS), sum(each.rows for each in chore.files), cores_of(spark)),
    )


def _merged(flow: MergeFlow, share: tuple[range, ...]) -> MergeReport:
    writer = StagedWriter(flow.partials, lambda: compacted_name(flow.version_max, uuid.uuid4().hex), "", 0)
    read = written = 0
    try:
        for buckets in share:
            merging = Merging(flow.finest, flow.aggregates)
            for rows in _rows(flow, buckets):
                read += int(rows["count"].sum())
                merging.add(rows)
            merged = merging.merged()
            written += int(merged["count"].sum())
            for batch in _batches(flow, merged):
                writer.write(batch)
        return MergeReport(writer.finish(), read, written)
    except BaseException:
        writer.abandon()
        raise


def _rows(flow: MergeFlow, buckets: range) -> Iterator[pl.DataFrame]:
    storage = open_storage(flow.partials.table_url, flow.partials.storage_options)
    schema = pa.schema([each for each in written_schema(flow.aggregates) if each.name != "day"])
    for path in flow.paths:
        yield from scan(storage, path, schema, Wanted(buckets, LEAST_MS, -LEAST_MS))


def _batches(flow: MergeFlow, merged: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([*written_schema(flow.aggregates), pa.field(EPOCH, pa.int64())])
    day, epoch = pl.lit(flow.day, pl.Date).alias("day"), pl.lit(flow.epoch, pl.Int64).alias(EPOCH)
    rows = merged.sort(*SORTED_BY).with_columns(day, epoch).select(schema.names).to_arrow().cast(schema)
    for batch in rows.to_batches(ROW_GROUP_ROWS_MAX):
        yield fit_columns(batch, flow.partials.schema)
