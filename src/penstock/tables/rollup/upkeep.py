"""Cleaning and compaction of partials (RULES W3).

Partials of windows that are closed for good leave their table; their points stay counted. A compaction merges the files
of one day and epoch, so it changes no row for a close: rows of the same series and window become one.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.names import compacted_name
from penstock.lake.compaction import Effort, Merged
from penstock.lake.delta.compact import FileGroup, compact_groups, group_files
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.lake.reports import CompactReport
from penstock.tables.rollup.aggregate import merge_partials
from penstock.tables.rollup.decide import Clean
from penstock.tables.rollup.events import PartialsCleaned
from penstock.tables.rollup.files import scan, stage_files, with_partition_columns, write_options
from penstock.tables.rollup.numbers import CLEANED, CLOSE, LEAST_MS, POINTS_REMOVED, number_key, number_of
from penstock.tables.rollup.schema import PARTIALS_GROUP_ROWS_MAX, SORTED_BY, partials_schema, read_schema
from penstock.tables.rollup.spec import RollupSpec

FILE_BYTES_MIN = 4 * 1024**2
"""Of compacted partials, a few hundred thousand rows: a group is merged in memory."""
_COUNT = pa.schema([("count", pa.int64())])


def clean(partials: Table, chore: Clean) -> None:
    """Remove the files in one commit, unless they changed meanwhile."""
    storage = partials.storage()
    points = sum(int(rows["count"].sum()) for file in chore.files for rows in scan(storage, file.path, _COUNT))

    def decide() -> Change | None:
        active = {file.path: file for file in partials.active_files()}
        # A close that was begun may need them.
        if number_of(partials, CLOSE) != chore.closed or not all(file.path in active for file in chore.files):
            return None
        before = partials.transaction(number_key(partials.job, CLEANED))
        return Change(
            actions=[partials.remove_action(active[file.path]) for file in chore.files],
            transactions={
                number_key(partials.job, CLEANED): max(LEAST_MS if before is None else before, chore.cleaned_ms),
                number_key(partials.job, POINTS_REMOVED): number_of(partials, POINTS_REMOVED) + points,
            },
            metadata=Provenance(kind="clean", job=partials.job, files_removed=len(chore.files)).metadata,
        )

    landed = partials.swap(decide)
    partials.environment.at_step("cleaned")
    if landed:
        partials.environment.listener.event(PartialsCleaned(len(chore.files), points))


def compact_partials(partials: Table, spec: RollupSpec, effort: Effort) -> CompactReport:
    """Merge small files of the same day and epoch; points, positions and totals stay."""
    if effort.alike_min is not None:
        # An epoch gets few files, and none once the next close is begun.
        effort = replace(effort, alike_min=2)
    partials.refresh()
    groups = group_files(partials.active_files(), FILE_BYTES_MIN, effort)
    return compact_groups(partials, groups, partial(_merge, partials, spec), effort=effort)


def _merge(
    partials: Table, spec: RollupSpec, group: FileGroup, schema: pa.Schema, version_max: int
) -> Merged[ActiveFile]:
    """One sorted file with the rows of the group, so that a range of buckets is a range of row groups again."""
    inside = read_schema(spec.aggregates)
    rows = pl.concat(rows for file in group.files for rows in scan(partials.storage(), file.path, inside))
    merged = merge_partials(rows.lazy(), spec.finest.millis, spec.aggregates).sort(*SORTED_BY).collect()
    if merged["count"].sum() != rows["count"].sum():
        raise InvariantError(f"a compaction in {partials.spec.path} does not have the points of its files")
    values, partition_by = group.files[0].scalars, partials.spec.partition_by
    columns = partials_schema(spec.aggregates)
    batches = (
        fit_columns(with_partition_columns(batch, partition_by, values, columns), schema)
        for batch in merged.select(inside.names).to_arrow().cast(inside).to_batches()
    )
    options = write_options(partials, PARTIALS_GROUP_ROWS_MAX)
    return Merged(group, stage_files(options, lambda: compacted_name(version_max, uuid.uuid4().hex), batches))
