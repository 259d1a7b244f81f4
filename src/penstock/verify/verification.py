"""`verify`: proves that a table and its log agree, offset by offset as far as the table keeps them (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log
(bounds, records). Nothing is written. A job may run meanwhile: one version of the table is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.job.spec import ExportSpec, JobSpec, Secret, job_of
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.tables.export.proof.verification import prove_export
from penstock.verify.facts import TableFacts, read_log, read_table, with_epochs
from penstock.verify.files.table import TableFiles
from penstock.verify.findings import NO_TABLE, Proof, VerifyReport
from penstock.verify.invariants import (
    LogFacts,
    check_log,
    check_rows,
    check_slices,
    check_totals,
    partition_facts,
    spans,
)
from penstock.verify.offsets.reconcile import Sweep
from penstock.verify.offsets.scan_passes import OFFSETS_PER_PASS_MAX
from penstock.verify.offsets.table import GoneError
from penstock.verify.offsets.verdicts import Leave
from penstock.verify.sources import Depth, Progress, Sample, Sources, Subject, TypeFiles
from penstock.verify.values.table import check_table_values

ATTEMPTS_MAX = 5
"""How often a verification begins anew because files were compacted and vacuumed meanwhile."""


def verify(
    job: JobSpec,
    deep: bool = True,
    progress: Progress | None = None,
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX,
    values: Sample | None = None,
    open_log: OpenLog = open_log_of,
    every_entry: bool = False,
) -> VerifyReport:
    """Check a job's table against itself and its log.

    `deep` also reads the log's records for their offsets; with `values` records are decoded again and compared. Entries
    of a ledger that were proved before are read again only with `every_entry`.
    """
    depth = Depth(deep, progress, offsets_per_pass_max, values, every_entry)
    path = "******" if isinstance(job.table.path, Secret) else job.table.path
    proof = _with_attempts(lambda: _prove(job, depth, open_log))
    return VerifyReport(job.name, path, proof.version, depth.deep, proof.checks, proof.partitions)


def _prove(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    if isinstance(job.table, ExportSpec):
        return prove_export(job_of(job, ExportSpec), depth, open_log)
    return _prove_table(job, depth, open_log)


def _with_attempts(prove: Callable[[], Proof]) -> Proof:
    for attempt in range(ATTEMPTS_MAX):
        try:
            return prove()
        except GoneError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    files = TableFiles.of(job, facts)
    with closing(open_log(job)) as log:
        log_facts = with_epochs(read_log(log, facts.incarnations), facts.states, log)
        subject = _subject(facts)
        sweep = Sweep(job, subject, _sources(files, log, log_facts, depth.deep), depth.progress)
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
