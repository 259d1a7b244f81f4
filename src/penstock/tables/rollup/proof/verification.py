"""What `verify` proves of a rollup: every record and every point is accounted for, and closed windows are right.

Rows of partials tell no offsets, so points are counted instead: what was read is in partials, or was removed after its
windows were closed; and of each interval every point is in a closed window, in an open one, or counted as late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from penstock.errors import InvariantError, UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import find_table
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven, conclude
from penstock.proof.frame import prove
from penstock.proof.log import LogFacts
from penstock.proof.subject import Depth, Subject
from penstock.tables.rollup.closing.files import partials_files
from penstock.tables.rollup.closing.portion.scan import scan, starts_in
from penstock.tables.rollup.closing.standing import LEAST_MS, late_key, since_key, standing_of, updated_key
from penstock.tables.rollup.partials.schema import POINTS_SCHEMA, removed_key
from penstock.tables.rollup.proof.closed_rows import Inputs, compare_closed
from penstock.tables.rollup.proof.log_points import check_log_points
from penstock.tables.rollup.proof.published import check_published
from penstock.tables.rollup.spec import RollupSpec, Window, partials_job
from penstock.tables.single.facts import read_table

FAULTS_SHOWN_MAX = 5


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
    files = partials_files(facts.table.handle)
    inputs = Inputs(job, facts, windows, files, standing)
    subject = facts.subject(of_partials)

    def log_checks(log: Log, said: LogFacts) -> Iterator[Check]:
        if depth.values is not None:
            yield check_log_points(inputs, subject, log, said.bounds, depth)
        if depth.published and job.table.publish is not None:
            yield check_published(job, job.table.publish, windows, open_log)

    return prove(subject, depth, open_log, [_check_quarantine(subject), *_check_points(inputs)], log_checks)


def _check_quarantine(subject: Subject) -> Check:
    """Bad records are in quarantine, as many as were counted (RULES Q1)."""
    rows, faults = subject.quarantine.rows + subject.quarantine.pending, list(subject.quarantine.faults)
    if rows != subject.quarantined and not subject.replay_unfinished:
        faults.append(f"{rows} records in quarantine, {subject.quarantined} counted")
    return conclude("quarantine", _shown(faults) or f"{rows} records", bool(faults), facts={"quarantined": rows})


def _check_points(inputs: Inputs) -> Iterator[Check]:
    """What is in partials is what was counted; and of each interval, what is in windows."""
    facts, standing, name = inputs.facts, inputs.standing, inputs.job.name
    counted = sum(state.numbers.get("points", 0) for state in facts.states.values())
    removed = facts.table.transaction(removed_key(name)) or 0
    still_open: Counter[Window] = Counter()
    there, faults = 0, []
    for file in inputs.files:
        rows_found = 0
        try:
            for rows in scan(facts.table.storage(), file.path, POINTS_SCHEMA):
                rows_found += rows.height
                there += int(rows["count"].sum())
                for window in inputs.job.table.windows:
                    until_ms = standing.closed_until_ms - standing.closed_until_ms % window.millis
                    taken = rows.filter(starts_in(LEAST_MS, until_ms) & (file.epoch < standing.closed))
                    still_open[window] += int(rows["count"].sum()) - int(taken["count"].sum())
        except (NotFoundError, InvariantError) as error:
            faults.append(f"partials: {error.primary}")
            continue
        if rows_found != file.rows:
            faults.append(f"partials: {file.path} has {rows_found} rows, the log of the table says {file.rows}")
    if there + removed != counted:
        faults.append(f"{there} points in partials and {removed} removed, {counted} counted")
    detail = _shown(faults) or f"{counted} points, each in partials or removed"
    yield conclude("points", detail, bool(faults), facts={"points": counted, "points_removed": removed})
    yield _check_windows(inputs, counted, still_open)


def _check_windows(inputs: Inputs, points: int, still_open: Mapping[Window, int]) -> Check:
    """Closed windows are unique and right, and no point of an interval is missing or there twice."""
    if inputs.standing.close != inputs.standing.closed:
        under_way = Unproven("the points of each interval: a close is under way", "verify again after it")
        return conclude("windows", "not checked: a close is under way", False, unproven=[under_way])
    name, numbers = inputs.job.name, inputs.windows.transactions()
    found = compare_closed(inputs)
    faults, unproven = list(found.faults), list(found.unproven)
    updated = numbers.get(updated_key(name), 0)
    if found.revisions != updated:
        faults.append(f"late points changed {updated} windows, the revisions of windows come to {found.revisions}")
    for window in inputs.job.table.windows:
        closed, late = found.points[window.name], numbers.get(late_key(name, window.name), 0)
        surplus = closed + late + still_open[window] - points
        if (numbers.get(since_key(name, window.name)) or 1) > 1:
            what = f"the points of {window.name}: the interval was added to the job later, or again"
            unproven.append(Unproven(what, "its windows since then are compared with their partials"))
        elif 0 < surplus <= late and updated:
            what = f"{surplus} late points of {window.name}: an update may have brought them into their windows later"
            unproven.append(Unproven(what, "the windows are compared with their partials"))
        elif surplus:
            faults.append(
                f"{window.name}: {closed} points in closed windows, {still_open[window]} in open ones and {late} late, "
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
