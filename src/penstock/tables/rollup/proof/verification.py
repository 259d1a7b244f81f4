"""What `verify` proves of a rollup: every record and every point is accounted for, and closed windows are right.

Rows of partials tell no offsets, so points are counted instead: what was read is in partials, or was removed after its
windows were closed; and of each interval every point is in a closed window, in an open one, or counted as late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from penstock.errors import InvariantError, UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table, find_table
from penstock.lake.storage import NotFoundError
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven, conclude
from penstock.proof.footers import QuarantineFiles
from penstock.proof.invariants import check_log, check_slices, check_totals, partition_facts
from penstock.proof.sources import Depth, read_log, with_epochs
from penstock.tables.quarantine.life import life_of
from penstock.tables.rollup.closing.decide import PartialsFile
from penstock.tables.rollup.closing.files import partials_files
from penstock.tables.rollup.closing.portion.scan import scan
from penstock.tables.rollup.closing.standing import Standing, joined_key, late_key, since_key, standing_of, updated_key
from penstock.tables.rollup.partials.schema import POINTS_SCHEMA, removed_key
from penstock.tables.rollup.proof.closed_rows import ClosedRows, Inputs, compare_closed
from penstock.tables.rollup.proof.closes import Closes
from penstock.tables.rollup.proof.log_points import check_log_points
from penstock.tables.rollup.proof.published import check_published
from penstock.tables.rollup.spec import RollupSpec, Window, partials_job
from penstock.tables.single.facts import TableFacts, read_table

FAULTS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Tables:
    """One version of each table, and how far the closes are."""

    facts: TableFacts
    windows: Table
    standing: Standing
    files: tuple[PartialsFile, ...]


def prove_rollup(job: JobSpec[RollupSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check both tables against themselves and against the log."""
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    of_partials = partials_job(job)
    # Windows first: what they hold was begun in partials before.
    windows = find_table(job.table.windows_place, job.name)
    facts = read_table(of_partials)
    if facts is None or windows is None:
        return NO_TABLE
    standing = standing_of(job.name, facts.table.transactions(), windows.transactions())
    tables = Tables(facts, windows, standing, partials_files(facts.table.handle))
    with closing(open_log(of_partials)) as log:
        log_facts = with_epochs(read_log(log, facts.incarnations), facts.states, log)
        checks = [
            check_totals(facts.states),
            check_slices(facts.states, facts.slices),
            _check_quarantine(of_partials, facts),
            *_check_points(job, tables),
            check_log(facts.states, facts.incarnations.fingerprints, log_facts),
        ]
        if depth.values is not None:
            cleaned_ms = standing.cleaned_ms
            checks.append(check_log_points(job, facts, tables.files, log, log_facts.bounds, depth, cleaned_ms))
    if depth.published and job.table.publish is not None:
        checks.append(check_published(job, job.table.publish, windows, open_log))
    return Proof(facts.table.version, tuple(checks), partition_facts(facts.states, log_facts))


def _check_quarantine(job: JobSpec, facts: TableFacts) -> Check:
    """Bad records are in quarantine, as many as were counted (RULES Q1)."""
    found = QuarantineFiles.of(job, facts.quarantine, facts.pending, life_of(facts.table))
    rows = found.taken.rows + found.pending.rows
    counted = sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values())
    faults = list(found.faults)
    if rows != counted and not facts.replay_unfinished:
        faults.append(f"{rows} records in quarantine, {counted} counted")
    return conclude("quarantine", _shown(faults) or f"{rows} records", bool(faults), facts={"quarantined": rows})


def _check_points(job: JobSpec[RollupSpec], tables: Tables) -> Iterator[Check]:
    """What is in partials is what was counted; and of each interval, what is in windows."""
    facts, standing = tables.facts, tables.standing
    counted = sum(each.numbers.get("points", 0) for each in facts.states.values())
    removed = facts.table.transaction(removed_key(job.name)) or 0
    by_interval = {each: _Open(each, standing) for each in job.table.windows}
    there, faults = 0, []
    storage = facts.table.storage()
    for file in tables.files:
        rows_found = 0
        try:
            for rows in scan(storage, file.path, POINTS_SCHEMA):
                rows_found += rows.height
                there += int(rows["count"].sum())
                for each in by_interval.values():
                    each.add(file.epoch, rows)
        except (NotFoundError, InvariantError) as error:
            faults.append(f"partials: {error.primary}")
            continue
        if rows_found != file.rows:
            faults.append(f"partials: {file.path} has {rows_found} rows, the log of the table says {file.rows}")
    if there + removed != counted:
        faults.append(f"{there} points in partials and {removed} removed, {counted} counted")
    detail = _shown(faults) or f"{counted} points, each in partials or removed"
    yield conclude("points", detail, bool(faults), facts={"points": counted})
    yield _check_windows(job, tables, counted, by_interval)


class _Open:
    """The points of partials that no closed window of an interval has yet."""

    def __init__(self, window: Window, standing: Standing) -> None:
        self._closed_us = (standing.closed_until_ms - standing.closed_until_ms % window.millis) * 1000
        self._closed = standing.closed
        self.points = 0

    def add(self, epoch: int, rows: pl.DataFrame) -> None:
        if epoch < self._closed:
            rows = rows.filter(pl.col("window_start").to_physical() >= self._closed_us)
        self.points += int(rows["count"].sum())


def _check_windows(job: JobSpec[RollupSpec], tables: Tables, points: int, by_interval: Mapping[Window, _Open]) -> Check:
    """Closed windows are unique and right, and no point of an interval is missing or there twice."""
    if tables.standing.close != tables.standing.closed:
        under_way = Unproven("the points of each interval: a close is under way", "verify again after it")
        return conclude("windows", "not checked: a close is under way", False, unproven=[under_way])
    numbers = tables.windows.transactions()
    facts, head = tables.facts, joined_key(job.name, "")
    joined = {
        interval: range(numbers.get(since_key(job.name, interval), 1), last + 1)
        for interval, last in ((key.removeprefix(head), last) for key, last in numbers.items() if key.startswith(head))
    }
    closes = Closes.of(facts.history, job.name)
    found: ClosedRows = compare_closed(
        Inputs(job.table, tables.windows, facts.table, tables.files, tables.standing, closes, joined)
    )
    faults, unproven = list(found.faults), list(found.unproven)
    updated = numbers.get(updated_key(job.name), 0)
    if found.revisions != updated:
        faults.append(f"late points changed {updated} windows, the revisions of windows come to {found.revisions}")
    for window, still_open in by_interval.items():
        closed, late = found.points.get(window.name, 0), numbers.get(late_key(job.name, window.name), 0)
        surplus = closed + late + still_open.points - points
        if (numbers.get(since_key(job.name, window.name)) or 1) > 1:
            what = f"the points of {window.name}: the interval was added to the job later, or again"
            unproven.append(Unproven(what, "its windows since then are compared with their partials"))
        elif 0 < surplus <= late and updated:
            what = f"{surplus} late points of {window.name}: an update may have brought them into their windows later"
            unproven.append(Unproven(what, "the windows are compared with their partials"))
        elif surplus:
            faults.append(
                f"{window.name}: {closed} points in closed windows, {still_open.points} in open ones and {late} late, "
                f"{points} counted"
            )
    detail = _shown(faults) or f"{found.rows} closed windows, {found.compared} compared with their partials"
    return conclude(
        "windows",
        detail,
        bool(faults),
        unproven=unproven,
        warnings=found.warnings,
        facts={"windows": found.rows, "windows_without_partials": found.without_partials},
    )


def _shown(faults: list[str]) -> str:
    more = f"; and {len(faults) - FAULTS_SHOWN_MAX} more" if len(faults) > FAULTS_SHOWN_MAX else ""
    return "; ".join(faults[:FAULTS_SHOWN_MAX]) + more
