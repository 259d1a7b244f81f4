"""Cleaning and merging of partials (RULES W3).

Partials of windows that are closed for good leave their table; their points stay counted. Many small files become few,
and rows of the same series and window one: only files that no close takes as late any more, so the result may have the
greatest of their epochs. Neither changes a file while a close is under way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import date

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.points.series import BUCKETS
from penstock.flow.write.names import compacted_name
from penstock.lake.delta.compact import VERSIONS_TO_LAND_MAX
from penstock.lake.delta.files import ActiveFile, check_staged
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.tables.rollup.aggregate import MERGE_ROWS_MIN, merge_partials
from penstock.tables.rollup.decide import Clean, Merge, PartialsFile
from penstock.tables.rollup.events import PartialsCleaned, PartialsMerged
from penstock.tables.rollup.files import cut, scan, stage_files, window_bounds, write_options
from penstock.tables.rollup.numbers import CLEANED, CLOSE, LEAST_MS, POINTS_REMOVED, number_key, number_of
from penstock.tables.rollup.schema import EPOCH, PARTIALS_GROUP_ROWS_MAX, SORTED_BY, partials_schema, read_schema
from penstock.tables.rollup.spec import RollupSpec

_COUNT = pa.schema([("count", pa.int64())])


def clean(partials: Table, chore: Clean) -> None:
    """Remove the files in one commit, unless they changed meanwhile."""
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

    landed = partials.swap(decide)
    partials.environment.reach("cleaned")
    if landed:
        partials.environment.listener.event(PartialsCleaned(len(chore.files), points))


def merge(partials: Table, spec: RollupSpec, chore: Merge) -> None:
    """Swap the files for their merged rows, unless they changed meanwhile."""
    options = write_options(partials, PARTIALS_GROUP_ROWS_MAX)
    version_max = partials.version + VERSIONS_TO_LAND_MAX
    read = written = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read, written
        for buckets in cut(range(BUCKETS), -(-sum(file.rows for file in chore.files) // MERGE_ROWS_MIN)):
            rows = _rows(partials, spec, chore, buckets)
            merged = merge_partials(rows.lazy(), spec.finest.millis, spec.aggregates).collect()
            read, written = read + int(rows["count"].sum()), written + int(merged["count"].sum())
            for batch in _with_partition_columns(merged, chore, partials_schema(spec.aggregates)).to_batches():
                yield fit_columns(batch, options.schema)

    outputs = stage_files(options, lambda: compacted_name(version_max, uuid.uuid4().hex), batches())
    if read != written:
        raise InvariantError(f"a merge in {options.table_url} read {read} points and wrote {written}")

    def decide() -> Change | None:
        files = _unchanged(partials, chore.closed, chore.files)
        if files is None or partials.version >= version_max:
            return None
        partials.check_schema(options.schema)
        check_staged(partials.storage(), outputs)
        removes = [partials.remove_action(file, data_change=False) for file in files]
        adds = [partials.add_action(file, data_change=False) for file in outputs]
        about = Provenance(kind="merge", job=partials.job, files_removed=len(removes), files_added=len(adds))
        return Change([*removes, *adds], {}, about.metadata)

    landed = partials.swap(decide)
    partials.environment.reach("merged")
    if landed:
        partials.environment.listener.event(PartialsMerged(len(chore.files), len(outputs)))


def _unchanged(partials: Table, closed: int, files: Iterable[PartialsFile]) -> list[ActiveFile] | None:
    """The files as they are now; None if one is gone, or if a close was begun, which may need them."""
    if number_of(partials, CLOSE) != closed:
        return None
    active = {file.path: file for file in partials.active_files()}
    return [active[file.path] for file in files] if all(file.path in active for file in files) else None


def _rows(partials: Table, spec: RollupSpec, chore: Merge, buckets: range) -> pl.DataFrame:
    schema, bounds = read_schema(spec.aggregates), window_bounds(buckets, LEAST_MS, -LEAST_MS)
    storage = partials.storage()
    frames = (rows for file in chore.files for rows in scan(storage, file.path, schema, bounds))
    return pl.concat([pl.DataFrame(schema.empty_table()), *frames])


def _with_partition_columns(merged: pl.DataFrame, chore: Merge, schema: pa.Schema) -> pa.Table:
    day = pl.lit(date.fromisoformat(chore.files[0].day), pl.Date).alias("day")
    rows = merged.sort(*SORTED_BY).with_columns(day, pl.lit(chore.epoch, pl.Int64).alias(EPOCH))
    return rows.select(schema.names).to_arrow().cast(schema)
