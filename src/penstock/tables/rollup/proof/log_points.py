"""Points of the log against partials: records are decoded and aggregated once more, and the sums compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.decoder import points_decoder
from penstock.flow.rows import in_parts
from penstock.job.spec import JobSpec
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Bounds, Log, Partition
from penstock.proof.findings import Check, Unproven, conclude
from penstock.proof.sources import Depth
from penstock.tables.quarantine.rows import own_files, read_file
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.portion.scan import as_frame, empty_frame, scan
from penstock.tables.rollup.partials.schema import INSTANT, removed_key
from penstock.tables.rollup.proof.sums import added_at_most, same_sum
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.single.facts import TableFacts

_ROWS = pa.schema(
    [
        ("bucket", pa.int16()),
        ("window_start", INSTANT),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
    ]
)
_KEY = ["bucket", "window_start"]
_PLACE = ("topic_id", "partition", "offset")


@dataclass(frozen=True, slots=True)
class _Recount:
    """What the records of the log come to, by bucket of series and finest window: few rows, however many series."""

    job: JobSpec[RollupSpec]
    log: Log
    quarantined: pl.DataFrame

    def of(self, partition: Partition, start: int, end: int) -> Iterator[pl.DataFrame]:
        decoder = points_decoder(self.job.decode, self.job.on)
        finest = self.job.table.finest.millis
        for batch in self.log.records(partition, start, end):
            for part in in_parts(decoder.decode, self._without_bad(partition, batch)):
                points = part.points.join(decoder.series.frame().select("series", "bucket"), on="series")
                window = ((pl.col("at_ms") - pl.col("at_ms") % finest) * 1000).cast(pl.Datetime("us", "UTC"))
                yield points.group_by("bucket", window.alias("window_start")).agg(_sums("value"))

    def _without_bad(self, partition: Partition, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is in quarantine is not in partials, whether it would be bad today or not."""
        mine = self.quarantined.filter(
            (pl.col("topic_id") == partition.topic_id) & (pl.col("partition") == partition.number)
        )
        offsets = pl.Series(batch.column("offset"))
        return batch.filter((~offsets.is_in(mine["offset"].implode())).to_arrow()) if mine.height else batch


def check_log_points(
    job: JobSpec[RollupSpec],
    facts: TableFacts,
    files: Sequence[PartialsFile],
    log: Log,
    bounds: Mapping[Partition, Bounds],
    depth: Depth,
) -> Check:
    """Compare all points that the log still has; windows that may have lost partials or records are left out."""
    unproven = [*_unproven(facts, bounds, job)]
    if unproven:
        return conclude("values", "not compared", False, unproven=unproven, partitions=bounds)
    recount = _Recount(job, log, _quarantined(facts))
    try:
        counted = _merged(_recounted(recount, facts, bounds, depth))
        there = _merged(row for each in files for row in scan(facts.table.storage(), each.path, _ROWS))
    except (NotFoundError, InvariantError) as error:
        return conclude("values", error.primary, True, partitions=bounds)
    both = counted.join(there, on=_KEY, how="full", suffix="_there", coalesce=True)
    wrong = both.filter(_differs())
    detail = f"{int(counted['count'].sum())} points of the log are what partials hold"
    if wrong.height:
        at = wrong["window_start"].min()
        detail = f"{wrong.height} sums over a bucket of series and a window differ from the log, the first at {at!s}"
    return conclude("values", detail, bool(wrong.height), partitions=bounds)


def _recounted(
    recount: _Recount, facts: TableFacts, bounds: Mapping[Partition, Bounds], depth: Depth
) -> Iterator[pl.DataFrame]:
    for number, partition in enumerate(sorted(bounds), 1):
        state = facts.states[partition]
        yield from recount.of(partition, state.origin or 0, state.position or 0)
        if depth.progress is not None:
            depth.progress("values", number, len(bounds))


def _unproven(facts: TableFacts, bounds: Mapping[Partition, Bounds], job: JobSpec[RollupSpec]) -> Iterator[Unproven]:
    if facts.table.transaction(removed_key(job.name)):
        yield Unproven(
            "the points of windows whose partials were removed",
            "compare values before the longest window closes, or raise update_grace",
        )
    if facts.pending or facts.replay_unfinished:
        yield Unproven("the points of records that go into quarantine or out of it", "start the job: it finishes that")
    gone = [
        each for each, state in facts.states.items() if each not in bounds or bounds[each].first > (state.origin or 0)
    ]
    if gone:
        yield Unproven(
            f"the points of {len(gone)} partitions: the log no longer has all their records",
            "compare values within the topic's retention",
            frozenset(gone),
        )
    if any(each.totals.given_up for each in facts.states.values()):
        yield Unproven("the points of slices that were given up", "use another delivery than at_most_once")


def _quarantined(facts: TableFacts) -> pl.DataFrame:
    schema = {"topic_id": pl.String, "partition": pl.Int32, "offset": pl.Int64}
    quarantine = facts.quarantine
    if quarantine is None:
        return pl.DataFrame(schema=schema)
    rows = (
        as_frame(each).select(pl.col(name).cast(kind) for name, kind in schema.items())
        for file in own_files(quarantine)
        for each in read_file(quarantine, file, _PLACE)
    )
    return pl.concat([pl.DataFrame(schema=schema), *rows])


def _merged(frames: Iterator[pl.DataFrame]) -> pl.DataFrame:
    whole = empty_frame(_ROWS)
    for frame in frames:
        rows = pl.concat([whole, frame.select(_ROWS.names).cast(whole.schema)])
        whole = rows.group_by(_KEY).agg(pl.col("count", "sum").sum(), pl.col("min").min(), pl.col("max").max())
    return whole


def _sums(value: str) -> list[pl.Expr]:
    column = pl.col(value)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        column.sum().alias("sum"),
        column.min().alias("min"),
        column.max().alias("max"),
    ]


def _differs() -> pl.Expr:
    apart = ~same_sum(pl.col("sum"), pl.col("sum_there"), added_at_most())
    exact = [pl.col(name).ne_missing(pl.col(f"{name}_there")) for name in ("count", "min", "max")]
    return pl.any_horizontal(apart.fill_null(True), *exact)
