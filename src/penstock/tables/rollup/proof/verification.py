"""What `verify` proves of a rollup: every record and every point is accounted for, and closed windows are right.

Rows of partials have no offsets, so points are counted instead: what was read is in partials, or was removed after its
windows were closed; and of each interval every point is in a closed window, in an open one, or counted as late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import polars as pl

from penstock.errors import InvariantError
from penstock.flow.points.decoder import points_decoder
from penstock.flow.rows import in_parts
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import find_table
from penstock.logs.log import Bounds, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven
from penstock.proof.frame import prove, shown
from penstock.proof.numbers import LogFacts
from penstock.proof.subject import Depth, Subject
from penstock.storage import NotFoundError
from penstock.tables.rollup.aggregate import SERIES, Merging, aggregate_points
from penstock.tables.rollup.files import ValueBounds, partials_files, scan, starting_in, window_bounds, within
from penstock.tables.rollup.numbers import LEAST_MS, POINTS_REMOVED, close_state, number_of
from penstock.tables.rollup.proof.published import check_published
from penstock.tables.rollup.proof.windows import Inputs, bucket_ranges, check_windows, differs
from penstock.tables.rollup.schema import POINTS_SCHEMA, read_schema
from penstock.tables.rollup.spec import Aggregates, RollupSpec, Window, partials_job
from penstock.tables.single.facts import read_table

_KEY = [*SERIES, "window_start"]


def _points_of_log(
    inputs: Inputs,
    log: Log,
    bounds: Mapping[Partition, Bounds],
    quarantined: Mapping[Partition, list[int]],
    aggregates: Aggregates,
) -> Iterator[pl.DataFrame]:
    """What the records come to that are not in quarantine, whether they would be bad today or not."""
    job = inputs.job
    for partition, retained in sorted(bounds.items()):
        state, decoder = inputs.facts.states[partition], points_decoder(job.decode, job.on)
        start = max(state.origin or 0, retained.first)
        for batch in log.records(partition, start, state.position or 0):
            bad = pl.Series(batch.column("offset")).is_in(quarantined[partition])
            for part in in_parts(decoder.decode, batch.filter((~bad).to_arrow())):
                points = aggregate_points(part.points, job.table.finest.millis, aggregates)
                yield points.join(decoder.series.frame(), on="series")


def check_log_points(
    inputs: Inputs, subject: Subject, log: Log, bounds: Mapping[Partition, Bounds], depth: Depth
) -> Check:
    """Compare the points that both still have; without `--all` of as many series as one pass over the log can hold."""
    facts, cleaned_ms = inputs.facts, inputs.closes.cleaned_ms
    if facts.pending or facts.replay_unfinished:
        unfinished = Unproven("the points of records that go into quarantine or out of it", "run the job")
        return Check("values", "not compared", False, unproven=[unfinished])
    aggregates, quarantined = replace(inputs.aggregates, quantiles=()), subject.quarantined_offsets()
    columns = read_schema(aggregates)

    def both(wanted: ValueBounds) -> pl.DataFrame:
        """The windows of the log, with those of partials in columns `<name>_partials`, for series of some buckets."""
        counted, stored = (Merging(inputs.job.table.finest, aggregates) for _ in range(2))
        for rows in _points_of_log(inputs, log, bounds, quarantined, aggregates):
            counted.add(within(rows.select(columns.names), wanted))
        for file in inputs.files:
            for rows in scan(facts.table.storage(), file.path, columns, wanted):
                stored.add(rows)
        of_log, of_partials = (merging.merged().select(columns.names) for merging in (counted, stored))
        return of_log.join(of_partials, on=_KEY, how="full", suffix="_partials", coalesce=True)

    gone = sum(
        partition not in bounds or bounds[partition].first > (state.origin or 0)
        for partition, state in facts.states.items()
    )
    passes = bucket_ranges(sum(file.rows for file in inputs.files))
    if depth.values is not None and depth.values.records is not None:
        passes = [random.Random(depth.values.seed).choice(passes)]
    # Where records are gone, the log may have fewer points of a window, and else the same.
    part = pl.col("count").fill_null(0) < pl.col("count_partials") if gone else pl.lit(False)
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
    what = f"the values of {fewer} windows of series: the log no longer has all records of {gone} partitions"
    unproven = [Unproven(what, "compare values within the topic's retention")] if fewer else []
    detail, violations = f"{points} points of the log are what partials hold", pl.concat(faults)
    if violations.height:
        first = violations.sort("window_start", *SERIES).row(0, named=True)
        at = f"{first['metric']}{first['tags']} at {first['window_start']}"
        detail = f"{violations.height} windows of series in partials differ from the log, the first is {at}"
    warnings = ["windows whose partials were removed as designed are not compared"] if cleaned_ms > LEAST_MS else []
    return Check("values", detail, bool(violations.height), unproven=unproven, warnings=warnings)


def prove_rollup(job: JobSpec[RollupSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check both tables against themselves and against the log."""
    of_partials = partials_job(job)
    # Windows first: what they hold was begun in partials before.
    windows = find_table(job.table.windows_place, job.name)
    facts = read_table(of_partials)
    if facts is None or windows is None:
        return NO_TABLE
    closes = close_state(job.name, facts.table.transactions(), windows.transactions())
    files = partials_files(facts.table)
    inputs = Inputs(job, facts, windows, files, closes)
    subject = facts.subject(of_partials)

    def log_checks(log: Log, said: LogFacts) -> Iterator[Check]:
        if depth.values is not None:
            yield check_log_points(inputs, subject, log, said.bounds, depth)
        if depth.published and job.table.publish is not None:
            yield check_published(job, job.table.publish, windows, open_log)

    rows, faults = subject.quarantine.rows, shown(subject.quarantine_faults)
    quarantine = Check("quarantine", faults or f"{rows} records", bool(faults), facts={"quarantined": rows})
    return prove(subject, depth, open_log, [quarantine, *_check_points(inputs)], log_checks)


def _check_points(inputs: Inputs) -> Iterator[Check]:
    """What is in partials is what was counted; and of each interval, what is in windows."""
    facts, closes = inputs.facts, inputs.closes
    counted = sum(state.numbers.get("points", 0) for state in facts.states.values())
    removed = number_of(facts.table, POINTS_REMOVED)
    still_open: Counter[Window] = Counter()
    there, faults = 0, []
    for file in inputs.files:
        rows_found = 0
        try:
            for rows in scan(facts.table.storage(), file.path, POINTS_SCHEMA):
                rows_found += rows.height
                there += int(rows["count"].sum())
                for window in inputs.job.table.windows:
                    until_ms = closes.closed_until_ms - closes.closed_until_ms % window.millis
                    taken = starting_in(rows, LEAST_MS, until_ms if file.epoch < closes.closed else LEAST_MS)
                    still_open[window] += int(rows["count"].sum()) - int(taken["count"].sum())
        except (NotFoundError, InvariantError) as error:
            faults.append(f"partials: {error.primary}")
            continue
        if rows_found != file.rows:
            faults.append(f"partials: {file.path} has {rows_found} rows, the log of the table says {file.rows}")
    if there + removed != counted:
        faults.append(f"{there} points in partials and {removed} removed, {counted} counted")
    detail = shown(faults) or f"{counted} points, each in partials or removed"
    yield Check("points", detail, bool(faults), facts={"points": counted, "points_removed": removed})
    yield check_windows(inputs, counted, still_open)
