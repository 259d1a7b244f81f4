"""The frame of a verification, the same for every kind of table (I2, I3).

The order: what the table says of itself (totals, slices, rows), then which places its rows have (offsets), then the log
(bounds, records), then values. Nothing is written. A job may run meanwhile: one version of the table is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Proof
from penstock.proof.invariants import RowCounts, check_rows, check_slices, check_totals
from penstock.proof.log import LogFacts, check_log, partition_facts, read_log
from penstock.proof.offsets import OffsetJoin
from penstock.proof.subject import Depth, Subject
from penstock.proof.values import check_values

LogChecks = Callable[[Log, LogFacts], Iterable[Check]]


def prove(
    subject: Subject,
    depth: Depth,
    open_log: OpenLog,
    table_checks: Iterable[Check] = (),
    log_checks: LogChecks = lambda log, facts: (),
) -> Proof:
    """Check a table against itself and its log; a kind whose rows are not records adds checks of its own."""
    with closing(open_log(subject.job)) as log:
        facts = read_log(log, subject.incarnations, subject.states)
        checks = (
            check_totals(subject.states),
            check_slices(subject.states, subject.slices),
            *table_checks,
            *_checks(subject, depth, log, facts),
            *log_checks(log, facts),
        )
    return Proof(subject.version, checks, partition_facts(subject.states, facts))


def _checks(subject: Subject, depth: Depth, log: Log, facts: LogFacts) -> Iterator[Check]:
    within_log = check_log(subject.states, subject.incarnations.fingerprints, facts)
    if not subject.sources:
        yield within_log
        return
    join = OffsetJoin(subject, depth, log, facts)
    yield _check_rows(subject, join)
    yield join.check_offsets()
    yield within_log
    if depth.deep:
        yield join.check_records()
    if depth.values is not None:
        yield check_values(subject, depth, log, facts.bounds)


def _check_rows(subject: Subject, join: OffsetJoin) -> Check:
    """As many rows as were written are in files that are as they were committed."""
    ahead = [
        f"{rows} rows{f' of {name}' if name else ''} are beyond the position: a batch is half landed, run the job"
        for name, rows in sorted(join.ahead.items())
        if rows
    ]
    counts = RowCounts(
        table=sum(source.rows for source in subject.sources) - sum(join.ahead.values()),
        written=subject.rows_written,
        quarantine=subject.quarantine.rows,
        quarantined=subject.quarantined,
        pending=subject.quarantine.pending,
        replay_unfinished=subject.replay_unfinished,
    )
    faults = [fault for source in subject.sources for fault in source.faults]
    return check_rows(
        counts,
        (*faults, *subject.quarantine.faults, *subject.faults),
        (*subject.warnings, *ahead),
        subject.violations,
    )
