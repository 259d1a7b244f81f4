"""Verifies a rollup: every record and every point is accounted for, and closed windows are right.

Rows of partials have no offsets, so points are counted: those that were read are in partials, or were removed after
their windows were closed; and for each interval every point is in a closed window, in an open one, or counted as late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.points.decoder import PointsDecoder
from penstock.flow.rows import in_parts
from penstock.job.spec import JobSpec
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.table import DeltaLog
from penstock.logs.log import Bounds, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven
from penstock.proof.frame import prove, shown
from penstock.proof.numbers import LogFacts
from penstock.proof.subject import Depth, Subject
from penstock.publish.formats import ENCODERS
from penstock.publish.spec import PublishSpec
from penstock.storage import NotFoundError
from penstock.tables.rollup.aggregate import SERIES, Merging, aggregate_points
from penstock.tables.rollup.files import (
    ValueBounds,
    partials_files,
    scan,
    starting_in,
    whole_rows,
    window_bounds,
    within,
    write_options,
)
from penstock.tables.rollup.numbers import LEAST_MS, POINTS_REMOVED, PUBLISHED, close_state, number_of
from penstock.tables.rollup.proof.windows import Inputs, bucket_ranges, check_windows, differs
from penstock.tables.rollup.schema import POINTS_SCHEMA, read_schema
from penstock.tables.rollup.spec import RollupSpec, Window, partials_job
from penstock.tables.single.facts import read_table

PUBLISHED_ROWS_PER_PASS_MAX = 4_000_000
_KEY = [*SERIES, "window_start"]
_RECORD = {"key": pl.Binary, "value": pl.Binary}
_HASHES = {"record": pl.UInt64, "series": pl.UInt64}
_ROWS = {**_HASHES, "revision": pl.Int32, "due": pl.Boolean, "old": pl.Boolean}
Chosen = Callable[[pl.Series], pl.Series]
"""Whether the series with these names belong to a pass."""


def prove_rollup(job: JobSpec[RollupSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check both tables against themselves and against the log."""
    of_partials = partials_job(job)
    # Windows first: their closes were begun in partials before.
    windows = find_table(job.table.windows_place, job.name)
    facts = read_table(of_partials)
    if facts is None or windows is None:
        return NO_TABLE
    closes = close_state(job.name, facts.table.transactions(), windows.transactions())
    inputs = Inputs(job, facts, windows, partials_files(facts.table), closes, job.table.aggregates)
    subject = facts.subject(of_partials)

    def log_checks(log: Log, log_facts: LogFacts) -> Iterator[Check]:
        if depth.values is not None:
            yield check_log_points(inputs, subject, log, log_facts.bounds, depth)
        if depth.published and job.table.publish is not None:
            yield check_published(job, job.table.publish, windows, open_log)

    rows, faults = subject.quarantine.rows, shown(subject.quarantine_faults)
    quarantine = Check("quarantine", faults or f"{rows} records", bool(faults), facts={"quarantined": rows})
    return prove(subject, depth, open_log, [quarantine, *_check_points(inputs)], log_checks)


def _check_points(inputs: Inputs) -> Iterator[Check]:
    """Check that partials, and the windows of each interval, have as many points as were counted."""
    facts, closes = inputs.facts, inputs.closes
    counted = sum(state.numbers.get("points", 0) for state in facts.states.values())
    removed = number_of(facts.table, POINTS_REMOVED)
    still_open: Counter[Window] = Counter()
    in_partials, faults = 0, []
    for file in inputs.files:
        rows_count = 0
        try:
            for rows in scan(facts.table.storage(), file.path, POINTS_SCHEMA):
                rows_count += rows.height
                points = int(rows["count"].sum())
                in_partials += points
                for window in inputs.job.table.windows:
                    until_ms = window.start_of(closes.closed_until_ms) if file.epoch < closes.closed else LEAST_MS
                    still_open[window] += points - int(starting_in(rows, LEAST_MS, until_ms)["count"].sum())
        except (NotFoundError, InvariantError) as error:
            faults.append(f"partials: {error.primary}")
            continue
        if rows_count != file.rows:
            faults.append(f"partials: {file.path} has {rows_count} rows, the log of the table states {file.rows}")
    if in_partials + removed != counted:
        faults.append(f"{in_partials} points in partials and {removed} removed, {counted} counted")
    detail = shown(faults) or f"{counted} points, each in partials or removed"
    yield Check("points", detail, bool(faults), facts={"points": counted, "points_removed": removed})
    yield check_windows(inputs, counted, still_open)


def check_log_points(
    inputs: Inputs, subject: Subject, log: Log, bounds: Mapping[Partition, Bounds], depth: Depth
) -> Check:
    """Compare the points that log and partials still have; without `--all` only the series of one pass over the log."""
    facts, cleaned_ms = inputs.facts, inputs.closes.cleaned_ms
    if facts.pending or facts.replay_unfinished:
        unfinished = Unproven("the points of records that go into quarantine or out of it", "run the job")
        return Check("values", "not compared", False, unproven=[unfinished])
    aggregates, quarantined = inputs.aggregates, subject.quarantined_offsets()
    columns = read_schema(aggregates)

    def both(chosen: ValueBounds) -> pl.DataFrame:
        """Windows computed from the log, joined with those of partials (`<name>_partials`), of some buckets."""
        of_log, of_partials = (Merging(inputs.job.table.finest, aggregates) for _ in range(2))
        for rows in _points_of_log(inputs, log, bounds, quarantined):
            of_log.add(within(rows.select(columns.names), chosen))
        for file in inputs.files:
            for rows in scan(facts.table.storage(), file.path, columns, chosen):
                of_partials.add(rows)
        logged, stored = (merging.merged().select(columns.names) for merging in (of_log, of_partials))
        return logged.join(stored, on=_KEY, how="full", suffix="_partials", coalesce=True)

    trimmed = sum(
        partition not in bounds or bounds[partition].first > (state.origin or 0)
        for partition, state in facts.states.items()
    )
    passes = bucket_ranges(sum(file.rows for file in inputs.files))
    if depth.values is not None and depth.values.records is not None:
        passes = [random.Random(depth.values.seed).choice(passes)]
    # If the log lost records, it may have fewer points of a window; otherwise it has the same.
    part = pl.col("count").fill_null(0) < pl.col("count_partials") if trimmed else pl.lit(False)
    different = pl.col("count").ne_missing(pl.col("count_partials")) | differs(aggregates)
    beyond = (pl.col("min") < pl.col("min_partials")) | (pl.col("max") > pl.col("max_partials"))
    wrong = pl.when(part).then(beyond.fill_null(False)).otherwise(different)
    points, fewer, faults = 0, 0, []
    try:
        for done, buckets in enumerate(passes, 1):
            windows = both(window_bounds(buckets, cleaned_ms, -LEAST_MS))
            points += int(windows["count"].sum())
            fewer += windows.filter(part).height
            faults.append(windows.filter(wrong).select(_KEY))
            depth.report("values", done, len(passes))
    except (NotFoundError, InvariantError) as error:
        return Check("values", error.primary, True)
    what = f"the values of {fewer} windows of series: the log no longer has all records of {trimmed} partitions"
    unproven = [Unproven(what, "compare values within the topic's retention")] if fewer else []
    detail, violations = f"{points} points of the log are what partials hold", pl.concat(faults)
    if violations.height:
        first = violations.sort("window_start", *SERIES).row(0, named=True)
        at = f"{first['metric']}{first['tags']} at {first['window_start']}"
        detail = f"{violations.height} windows of series in partials differ from the log, the first is {at}"
    warnings = ["windows whose partials were removed as designed are not compared"] if cleaned_ms > LEAST_MS else []
    return Check("values", detail, bool(violations.height), unproven=unproven, warnings=warnings)


def _points_of_log(
    inputs: Inputs, log: Log, bounds: Mapping[Partition, Bounds], quarantined: Mapping[Partition, list[int]]
) -> Iterator[pl.DataFrame]:
    """The points of the records that are not in quarantine."""
    job = inputs.job
    for partition, retained in sorted(bounds.items()):
        state, decoder = inputs.facts.states[partition], PointsDecoder(job.decode, job.on)
        start = max(state.origin or 0, retained.first)
        for batch in log.records(partition, start, state.position or 0):
            bad = pl.Series(batch.column("offset")).is_in(quarantined[partition])
            for part in in_parts(decoder.decode, batch.filter((~bad).to_arrow())):
                points = aggregate_points(part.points, job.table.finest.millis, inputs.aggregates)
                yield points.join(decoder.series.frame(), on="series")


def check_published(job: JobSpec[RollupSpec], spec: PublishSpec, windows: DeltaLog, open_log: OpenLog) -> Check:
    """Compare closed windows with the topic: it has each row once, and no other records of the job.

    Rows are encoded again and joined with the committed records on key and value, in passes over the series so that
    memory is bounded. The other records of a series are earlier revisions of its rows, at most as many as the rows
    state, or come from other writers.
    """
    published = {bucket: number_of(windows, PUBLISHED, bucket) for bucket in range(spec.buckets)}
    counts: Counter[str] = Counter()
    with closing(open_log(replace(job, log=replace(spec.cluster(job.log), topics=(spec.topic,))))) as topic:
        bounds = topic.bounds(topic.partitions())
        # Refreshed after the end of the topic was read, so its records are rows of this version or earlier revisions.
        windows.refresh()
        records = sum(bound.end - bound.first for bound in bounds.values())
        most = max(records, sum(file.rows or 0 for file in windows.active_files()))
        passes = max(1, -(-most // PUBLISHED_ROWS_PER_PASS_MAX))
        try:
            for number in range(passes):

                def chosen(keys: pl.Series, number: int = number) -> pl.Series:
                    return keys.hash() % passes == number

                rows = pl.concat([*_published_rows(windows, spec, published, chosen)])
                counts.update(_compared(rows, pl.concat([*_topic_records(topic, bounds, chosen)])))
        except (NotFoundError, InvariantError) as error:
            return Check("published", error.primary, True)
        trimmed = topic.compacted(spec.topic) or any(bound.first for bound in bounds.values())
    lost = counts["missing"] if trimmed else 0
    faults = {
        "published rows are not": counts["missing"] - lost,
        "rows are more than once": counts["twice"],
        "records that are not a revision of a row of their series are": counts["surplus"],
    }
    unproven = {
        ("published rows: the topic no longer has all its records", "verify within its retention"): lost,
        ("published rows: a column was added since", "verify before aggregates change"): counts["old"],
        ("records of no window in the table: whose they are", "no other writer in this topic"): counts["foreign"],
    }
    earlier = f"{counts['revisions']} records are earlier revisions of rows, which the table no longer has"
    texts = [f"{number} {what} in topic {spec.topic}" for what, number in faults.items() if number]
    return Check(
        "published",
        "; ".join(texts) or f"{counts['once']} rows are in topic {spec.topic} once",
        bool(texts),
        unproven=[Unproven(f"{number} {what}", remedy) for (what, remedy), number in unproven.items() if number],
        warnings=[earlier] if counts["revisions"] else [],
        facts={"published": counts["once"]},
    )


def _compared(rows: pl.DataFrame, records: pl.DataFrame) -> dict[str, int]:
    """Counts of rows and records by the result of their comparison."""
    both = rows.join(records.group_by("record").agg(times=pl.len()), on="record", how="left")
    missing = both.filter("due", pl.col("times").is_null())
    # An upper bound of a series' earlier revisions; those corrected before publishing are not in the topic.
    revisions = rows.group_by("series").agg(pl.col("revision").sum().cast(pl.Int64))
    old = missing.filter("old").group_by("series").agg(old=pl.len().cast(pl.Int64))
    others = records.join(rows, on="record", how="anti").group_by("series").agg(others=pl.len().cast(pl.Int64))
    others = others.join(revisions, on="series", how="left").join(old, on="series", how="left")
    own = others.drop_nulls("revision").select("revision", others=pl.col("others") - pl.col("old").fill_null(0))
    return {
        "once": both.filter(pl.col("times") == 1).height,
        "twice": both.filter(pl.col("times") > 1).height,
        "missing": missing.filter(~pl.col("old")).height,
        "old": missing.filter("old").height,
        "foreign": int(others.filter(pl.col("revision").is_null())["others"].sum()),
        "surplus": int(own.select((pl.col("others") - pl.col("revision")).clip(0).sum()).item()),
        "revisions": int(own.select(pl.min_horizontal("others", "revision").clip(0).sum()).item()),
    }


def _published_rows(
    windows: DeltaLog, spec: PublishSpec, published: Mapping[int, int], chosen: Chosen
) -> Iterator[pl.DataFrame]:
    """The rows of the table, encoded as they would be now; `published`: the last published close by bucket.

    `due`: the topic must have the row. `old`: a column may have been added after its record.
    """
    yield pl.DataFrame(schema=_ROWS)
    for file in windows.active_files():
        for batch in whole_rows(windows.storage(), file, write_options(windows)):
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(chosen(pl.Series(rows["series"]).cast(pl.Binary)).to_arrow())
            encoded = ENCODERS[spec.format](rows)
            pairs = {"key": [record.key for record in encoded], "value": [record.value for record in encoded]}
            bucket = pl.Series(rows["bucket"]) % spec.buckets
            last = bucket.replace_strict(published, default=0, return_dtype=pl.Int64)
            nulls = pl.DataFrame(pl.from_arrow(rows.drop_columns(["tags"]))).select(pl.all().is_null())
            yield _hashed(pl.DataFrame(pairs, schema=_RECORD)).with_columns(
                pl.Series(rows["revision"]).alias("revision"),
                (pl.Series(rows["close"]) <= last).alias("due"),
                nulls.max_horizontal().cast(pl.Boolean).alias("old"),
            )


def _topic_records(topic: Log, bounds: Mapping[Partition, Bounds], chosen: Chosen) -> Iterator[pl.DataFrame]:
    yield pl.DataFrame(schema=_HASHES)
    for partition, retained in sorted(bounds.items()):
        for batch in topic.records(partition, retained.first, retained.end):
            records = pl.DataFrame({name: pl.Series(batch.column(name)) for name in _RECORD}, schema=_RECORD)
            yield _hashed(records.filter(chosen(records["key"])))


def _hashed(records: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"record": records.hash_rows(), "series": records["key"].hash()})
