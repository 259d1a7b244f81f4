"""What `verify` proves of a single Delta table (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log
(bounds, records). Nothing is written. A job may run meanwhile: one version of the table is checked.
"""

from __future__ import annotations

from contextlib import closing

from penstock.job.spec import JobSpec
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.facts import TableFacts, read_log, read_table, with_epochs
from penstock.proof.files.table import TableFiles
from penstock.proof.findings import NO_TABLE, Proof
from penstock.proof.invariants import (
    LogFacts,
    check_log,
    check_rows,
    check_slices,
    check_totals,
    partition_facts,
    spans,
)
from penstock.proof.offsets.reconcile import Reconciliation
from penstock.proof.offsets.verdicts import Leave
from penstock.proof.sources import Depth, Sources, Subject, TypeFiles
from penstock.proof.values.table import check_table_values


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    files = TableFiles.of(job, facts)
    with closing(open_log(job)) as log:
        log_facts = with_epochs(read_log(log, facts.incarnations), facts.states, log)
        subject = _subject(facts)
        sweep = Reconciliation(job, subject, _sources(files, log, log_facts, depth.deep), depth.progress)
        sweep.run(depth.offsets_per_pass_max)
        asked = depth.asked(subject, log, log_facts.bounds)
        values = [] if asked is None else [check_table_values(job, facts, files, asked)]
        by_values = files.columns is None and depth.values is not None and depth.values.records is None
        checks = [
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            check_rows(files.counts(facts), files.faults(facts)),
            sweep.check_offsets(by_values and all(each.ok for each in values)),
            check_log(facts.states, facts.incarnations.fingerprints, log_facts),
            *([sweep.check_records()] if depth.deep else []),
            *values,
        ]
    return Proof(facts.version, tuple(checks), partition_facts(facts.states, log_facts))


def _subject(facts: TableFacts) -> Subject:
    return Subject(
        spans={each: spans(each, state, facts.committed.slices.get(each, ())) for each, state in facts.states.items()},
        incarnations=facts.incarnations,
        leaves=dict.fromkeys(facts.states, Leave(in_both=facts.replay_unfinished)),
        replayed=frozenset(each for each, state in facts.states.items() if state.totals.replayed),
    )


def _sources(files: TableFiles, log: Log, log_facts: LogFacts, deep: bool) -> Sources:
    return Sources(
        storage=files.storage,
        types=[TypeFiles(files.data.files)],
        quarantine_storage=files.quarantine_storage,
        quarantine_files=[*files.quarantine.files, *files.pending.files],
        columns=files.columns,
        log=log,
        log_bounds=log_facts.bounds if deep else {},
    )
