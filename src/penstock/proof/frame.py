"""The frame of a verification, the same for every kind of table (I2, I3).

The order: what the table says of itself (totals, slices, rows), then which places its rows have (offsets), then the log
(bounds, records), then values. Nothing is written. A job may run meanwhile: one version of the table is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Proof
from penstock.proof.numbers import LogFacts, check_log, check_slices, check_totals, partition_facts, read_log
from penstock.proof.offsets import OffsetJoin
from penstock.proof.subject import Depth, Subject
from penstock.proof.values import check_values

FAULTS_SHOWN_MAX = 5

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
            check_slices(*(subject.job_slices or (subject.states, subject.slices))),
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
    """As many rows as were written are there, in files that are as they were committed."""
    faults = [*(fault for source in subject.sources for fault in source.faults), *subject.faults]
    table = sum(source.rows for source in subject.sources)
    for source in subject.sources:
        written = subject.rows_written.get(source.name, 0)
        if surplus := source.rows - written:
            more, act = ("more", "appended") if surplus > 0 else ("less", "deleted")
            whose = f"type {source.name}" if source.name else "the table"
            faults.append(
                f"{whose} has {abs(surplus)} rows {more} than the {written} written: {act} by another writer?"
            )
    ahead = [
        f"{rows} rows{f' of {name}' if name else ''} are beyond the position: a batch is half landed, run the job"
        for name, rows in sorted(join.ahead.items())
        if rows
    ]
    return rows_check(subject, table, faults, f"{table} rows in the table", ahead)


def rows_check(subject: Subject, rows: int, faults: Sequence[str], detail: str, warnings: Sequence[str] = ()) -> Check:
    """The check `rows` of any kind: what is wrong with rows and quarantine."""
    held, wrong = subject.quarantine.rows, shown([*faults, *subject.quarantine_faults])
    warned = [*subject.warnings, *warnings]
    if subject.pending:
        warned.append(f"{subject.pending} quarantined rows wait to be appended by the next run")
    if subject.replay_unfinished:
        warned.append("a replay of the quarantine is unfinished: the next run finishes it")
    return Check(
        "rows",
        wrong or f"{detail}, {held} in quarantine, as counted",
        bool(wrong),
        violations=subject.violations,
        warnings=warned,
        facts={"rows": rows, "quarantine": held},
    )


def shown(faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - FAULTS_SHOWN_MAX} more" if len(faults) > FAULTS_SHOWN_MAX else ""
    return "; ".join(faults[:FAULTS_SHOWN_MAX]) + more
