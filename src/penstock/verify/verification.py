"""`verify`: proves that a table and its log agree, offset by offset as far as the table keeps them (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log
(bounds, records). Nothing is written. A job may run meanwhile: one version of the table is judged.
"""

from __future__ import annotations

from contextlib import closing

from penstock.job.spec import JobSpec, Secret
from penstock.log.kafka import KafkaLog
from penstock.storage import open_storage
from penstock.verify.facts import TableFacts, read_log, read_table
from penstock.verify.findings import Check, PartitionFacts, VerifyReport
from penstock.verify.laws import LogFacts, RowCounts, check_log, check_rows, check_slices, check_totals
from penstock.verify.owners import QUARANTINE_COLUMNS, kept_columns
from penstock.verify.sweep import Progress, Sources, Sweep
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
    facts = read_table(job)
    if facts is None:
        missing = Check("table", False, "there is no table yet: the job has not started")
        return VerifyReport(job.name, path, None, deep, (missing,))
    with closing(KafkaLog(job.log)) as log:
        log_facts = read_log(log, facts.lives)
        sources = _sources(facts, log, log_facts, job, deep)
        sweep = Sweep(job, facts, sources, progress or _silent)
        sweep.run(offsets_per_pass_max)
        checks = [
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            check_rows(_row_counts(job, facts, sources)),
            sweep.check_offsets(),
            check_log(facts.states, facts.lives.fingerprints, log_facts),
        ]
        if deep:
            checks.append(sweep.check_records())
    return VerifyReport(job.name, path, facts.version, deep, tuple(checks), _partitions(facts, log_facts))


def _sources(facts: TableFacts, log: KafkaLog, log_facts: LogFacts, job: JobSpec, deep: bool) -> Sources:
    columns = kept_columns(job, facts.table.schema)
    quarantined = active_files(facts.quarantine, QUARANTINE_COLUMNS) if facts.quarantine else []
    return Sources(
        files=active_files(facts.table, columns),
        quarantine_files=[*quarantined, *facts.pending],
        columns=columns,
        log=log,
        log_bounds=log_facts.bounds if deep else {},
    )


def _row_counts(job: JobSpec, facts: TableFacts, sources: Sources) -> RowCounts:
    quarantine = open_storage(job.table.quarantine_path, job.table.storage_options)
    pending = sum(each.rows or 0 for each in facts.pending)
    return RowCounts(
        table=count_rows(facts.table.storage(), sources.files),
        written=facts.lives.rows_written,
        quarantine=count_rows(quarantine, sources.quarantine_files) - pending,
        quarantined=facts.lives.rows_quarantined,
        pending=pending,
        replay_unfinished=facts.replay_unfinished,
    )


def _partitions(facts: TableFacts, log: LogFacts) -> tuple[PartitionFacts, ...]:
    found = []
    for partition, state in sorted(facts.states.items()):
        bounds = log.bounds.get(partition)
        first, end = (bounds.first, bounds.end) if bounds else (None, None)
        found.append(PartitionFacts(partition, state.origin or 0, state.position or 0, state.totals, first, end))
    return tuple(found)


def _silent(step: str, done: int, total: int) -> None:
    """Nobody listens."""
