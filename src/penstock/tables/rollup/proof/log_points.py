"""Points of the log against partials: records are decoded and aggregated once more, and the values compared."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.decoder import points_decoder
from penstock.flow.points.series import BUCKETS
from penstock.flow.rows import in_parts
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Bounds, Log, Partition
from penstock.proof.findings import Check, Unproven, conclude
from penstock.proof.subject import Depth, Subject
from penstock.tables.rollup.closing.portion.scan import Wanted, scan
from penstock.tables.rollup.closing.portion.task import Merging
from penstock.tables.rollup.closing.standing import LEAST_MS
from penstock.tables.rollup.partials.aggregate import SERIES, aggregate_points
from penstock.tables.rollup.partials.schema import written_schema
from penstock.tables.rollup.proof.closed_rows import ROWS_PER_PASS_MAX, Inputs
from penstock.tables.rollup.proof.values import beyond, differs
from penstock.tables.rollup.spec import Aggregates

_KEY = [*SERIES, "window_start"]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Partials and what the records of the log come to, for the series of some buckets at a time."""

    inputs: Inputs
    log: Log
    bounds: Mapping[Partition, Bounds]
    quarantined: Mapping[Partition, list[int]]
    aggregates: Aggregates
    columns: pa.Schema

    def both(self, wanted: Wanted) -> pl.DataFrame:
        """The windows of the log, with those of partials in columns `<name>_partials`."""
        counted, there = (Merging(self.inputs.job.table.finest, self.aggregates) for _ in range(2))
        for partition in sorted(self.bounds):
            for rows in self._counted(partition):
                counted.add(wanted.of(rows))
        for file in self.inputs.files:
            for rows in scan(self.inputs.facts.table.storage(), file.path, self.columns, wanted):
                there.add(rows)
        ours, theirs = (merging.merged().select(self.columns.names) for merging in (counted, there))
        return ours.join(theirs, on=_KEY, how="full", suffix="_partials", coalesce=True)

    def _counted(self, partition: Partition) -> Iterator[pl.DataFrame]:
        job, state = self.inputs.job, self.inputs.facts.states[partition]
        decoder = points_decoder(job.decode, job.on)
        start = max(state.origin or 0, self.bounds[partition].first)
        instant = (pl.col("window_ms") * 1000).cast(pl.Datetime("us", "UTC")).alias("window_start")
        for batch in self.log.records(partition, start, state.position or 0):
            for part in in_parts(decoder.decode, self._without_bad(partition, batch)):
                points = aggregate_points(part.points, job.table.finest.millis, self.aggregates)
                rows = points.join(decoder.series.frame(), on="series").with_columns(instant)
                yield rows.select(self.columns.names)

    def _without_bad(self, partition: Partition, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is in quarantine is not in partials, whether it would be bad today or not."""
        offsets, bad = pl.Series(batch.column("offset")), self.quarantined[partition]
        return batch.filter((~offsets.is_in(bad)).to_arrow()) if bad else batch


def check_log_points(
    inputs: Inputs, subject: Subject, log: Log, bounds: Mapping[Partition, Bounds], depth: Depth
) -> Check:
    """Compare the points that both still have; without `--all` of as many series as one pass over the log can hold."""
    facts, cleaned_ms = inputs.facts, inputs.standing.cleaned_ms
    unproven = []
    if facts.pending or facts.replay_unfinished:
        what = "the points of records that go into quarantine or out of it"
        unproven.append(Unproven(what, "start the job: it finishes that"))
    if any(state.totals.given_up for state in facts.states.values()):
        what = "the points of slices that were given up"
        unproven.append(Unproven(what, "use another delivery than at_most_once"))
    if unproven:
        return conclude("values", "not compared", False, unproven=unproven, partitions=bounds)
    gone = frozenset(
        partition
        for partition, state in facts.states.items()
        if partition not in bounds or bounds[partition].first > (state.origin or 0)
    )
    passes = min(BUCKETS, max(1, -(-sum(file.rows for file in inputs.files) // ROWS_PER_PASS_MAX)))
    numbers: Sequence[int] = range(passes)
    if depth.values is not None and depth.values.records is not None:
        numbers = [random.Random(depth.values.seed).randrange(passes)]
    aggregates = replace(inputs.aggregates, quantiles=())
    columns = pa.schema([column for column in written_schema(aggregates) if column.name != "day"])
    quarantined = subject.quarantine.places(bounds)
    comparison = _Comparison(inputs, log, bounds, quarantined, aggregates, columns)
    # Where records are gone, the log may have fewer points of a window, and else the same.
    part = pl.col("count").fill_null(0) < pl.col("count_partials") if gone else pl.lit(False)
    different = pl.col("count").ne_missing(pl.col("count_partials")) | differs(aggregates, "_partials")
    wrong = pl.when(part).then(beyond("", "_partials").fill_null(False)).otherwise(different)
    points, fewer, faults = 0, 0, []
    try:
        for done, number in enumerate(numbers, 1):
            buckets = range(BUCKETS * number // passes, BUCKETS * (number + 1) // passes)
            both = comparison.both(Wanted(buckets, cleaned_ms, -LEAST_MS))
            points += int(both["count"].sum())
            fewer += both.filter(part).height
            faults.append(both.filter(wrong).select(_KEY))
            depth.tell("values", done, len(numbers))
    except (NotFoundError, InvariantError) as error:
        return conclude("values", error.primary, True, partitions=bounds)
    if fewer:
        what = f"the values of {fewer} windows of series: the log no longer has all records of {len(gone)} partitions"
        unproven.append(Unproven(what, "compare values within the topic's retention", gone))
    detail, violations = f"{points} points of the log are what partials hold", pl.concat(faults)
    if violations.height:
        first = violations.sort("window_start", *SERIES).row(0, named=True)
        at = f"{first['metric']}{first['tags']} at {first['window_start']}"
        detail = f"{violations.height} windows of series in partials differ from the log, the first is {at}"
    warnings = ["windows whose partials were removed as designed are not compared"] if cleaned_ms > LEAST_MS else []
    return conclude("values", detail, bool(violations.height), unproven=unproven, warnings=warnings, partitions=bounds)
