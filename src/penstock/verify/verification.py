"""`verify`: proves that a table and its log agree, offset by offset as far as the table keeps them (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log
(bounds, records). Nothing is written. A job may run meanwhile: one version of the table is judged.
"""

from __future__ import annotations

from contextlib import closing

from penstock.job.spec import JobSpec, Secret
from penstock.log.kafka import KafkaLog
from penstock.storage import open_storage
from penstock.tables.delta.life import life_of
from penstock.verify.export import prove_export
from penstock.verify.facts import TableFacts, life_faults, quarantine_files, read_log, read_table
from penstock.verify.findings import NO_TABLE, Proof, VerifyReport
from penstock.verify.judge import Leave
from penstock.verify.laws import (
    LogFacts,
    RowCounts,
    check_log,
    check_rows,
    check_slices,
    check_totals,
    partition_facts,
    spans,
)
from penstock.verify.owners import kept_columns
from penstock.verify.sweep import Depth, Progress, Sources, Subject, Sweep, TypeFiles
from penstock.verify.table_offsets import active_files, count_rows
from penstock.verify.windows import OFFSETS_PER_PASS_MAX


def verify(
    job: JobSpec,
    deep: bool = True,
    progress: Progress | None = None,
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX,
) -> VerifyReport:
    """Check a job's table against itself and its log; `deep` also reads the log's records for their offsets."""
    path = "******" if isinstance(job.table.path, Secret) else job.table.path
    depth = Depth(deep, progress, offsets_per_pass_max)
    proof = _prove_table(job, depth) if job.export is None else prove_export(job, job.export, depth)
    return VerifyReport(job.name, path, proof.version, deep, proof.checks, proof.partitions)


def _prove_table(job: JobSpec, depth: Depth) -> Proof:
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    with closing(KafkaLog(job.log)) as log:
        log_facts = read_log(log, facts.lives)
        sources = _sources(facts, log, log_facts, job, depth.deep)
        sweep = Sweep(job, _subject(facts), sources, depth.progress)
        sweep.run(depth.offsets_per_pass_max)
        checks = [
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            check_rows(_row_counts(facts, sources), life_faults(facts.quarantine, job.name, life_of(facts.table))),
            sweep.check_offsets(),
            check_log(facts.states, facts.lives.fingerprints, log_facts),
        ]
        if depth.deep:
            checks.append(sweep.check_records())
    return Proof(facts.version, tuple(checks), partition_facts(facts.states, log_facts))


def _subject(facts: TableFacts) -> Subject:
    return Subject(
        spans={each: spans(each, state, facts.committed.slices.get(each, ())) for each, state in facts.states.items()},
        lives=facts.lives,
        leaves=dict.fromkeys(facts.states, Leave(in_both=facts.replay_unfinished)),
    )


def _sources(facts: TableFacts, log: KafkaLog, log_facts: LogFacts, job: JobSpec, deep: bool) -> Sources:
    columns = kept_columns(job, facts.table.schema)
    return Sources(
        storage=facts.table.storage(),
        types=[TypeFiles(active_files(facts.table, columns))],
        quarantine_storage=open_storage(job.table.quarantine_path, job.table.storage_options),
        quarantine_files=[*quarantine_files(facts.quarantine), *facts.pending],
        columns=columns,
        log=log,
        log_bounds=log_facts.bounds if deep else {},
    )


def _row_counts(facts: TableFacts, sources: Sources) -> RowCounts:
    pending = sum(each.rows or 0 for each in facts.pending)
    return RowCounts(
        table=sum(count_rows(sources.storage, each.files) for each in sources.types),
        written=facts.lives.rows_written,
        quarantine=count_rows(sources.quarantine_storage, sources.quarantine_files) - pending,
        quarantined=sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values()),
        pending=pending,
        replay_unfinished=facts.replay_unfinished,
    )
