"""`verify`: proves that a table and its log agree, offset by offset as far as the table keeps them (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log.
Nothing is written anywhere. A job may run meanwhile: everything is judged as of one version of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer

from penstock.job.spec import JobSpec
from penstock.log.kafka import KafkaLog
from penstock.log.offsets import Partition
from penstock.verify.facts import TableFacts, read_log, read_table
from penstock.verify.findings import Check, Offence, PartitionFacts, VerifyReport, earliest
from penstock.verify.judge import Held, LogCounts, LogOffsets, count_offences, judge
from penstock.verify.laws import LogFacts, RowCounts, Span, check_log, check_rows, check_slices, check_totals, spans
from penstock.verify.log_offsets import open_consumer, record_offsets
from penstock.verify.owners import QUARANTINE_COLUMNS, OriginColumns, Owners, kept_columns
from penstock.verify.table_offsets import OffsetScan, active_files, count_rows
from penstock.verify.windows import OFFSETS_PER_PASS_MAX, Pass, Window, passes

Progress = Callable[[str, int, int], None]
"""Hears what is being read, and how many offsets of how many are done."""


def verify(
    job: JobSpec,
    deep: bool = True,
    progress: Progress | None = None,
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX,
) -> VerifyReport:
    """Check a job's table against itself and its log; `deep` also reads the log's records for their offsets."""
    facts = read_table(job)
    if facts is None:
        missing = Check("table", False, "there is no table yet: the job has not started")
        return VerifyReport(job.name, job.table.path, None, deep, (missing,))
    with closing(KafkaLog(job.log)) as log:
        log_facts = read_log(log, facts.lives)
        work = _Work(job, facts, log, log_facts, progress or _silent, offsets_per_pass_max)
        checks = (
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            check_rows(work.row_counts()),
            *work.check_offsets(deep),
            check_log(facts.states, facts.lives.fingerprints, log_facts),
        )
    return VerifyReport(job.name, job.table.path, facts.version, deep, checks, _partition_facts(facts, log_facts))


@dataclass(slots=True)
class _Tally:
    """What the windows of one partition have shown so far."""

    offences: list[Offence] = field(default_factory=list)
    absences: list[Offence] = field(default_factory=list)
    held_counts: list[int] = field(default_factory=list)
    log_counts: list[int] = field(default_factory=list)
    log_first: int | None = None


class _Work:
    """The reading part of a verification."""

    def __init__(
        self, job: JobSpec, facts: TableFacts, log: KafkaLog, log_facts: LogFacts, progress: Progress, offsets_max: int
    ) -> None:
        self._job = job
        self._facts = facts
        self._log = log
        self._log_facts = log_facts
        self._progress = progress
        self._offsets_max = offsets_max
        self._columns = kept_columns(job, facts.table.schema)
        self._files = active_files(facts.table, self._columns)
        self._quarantine_files = [
            *(active_files(facts.quarantine, QUARANTINE_COLUMNS) if facts.quarantine else ()),
            *facts.pending,
        ]
        self._exact: dict[str, bool] = {}
        self._read_offsets = 0

    def row_counts(self) -> RowCounts:
        quarantine_rows = count_rows(self._quarantine_storage, self._quarantine_files)
        pending = sum(each.rows or 0 for each in self._facts.pending)
        return RowCounts(
            table=count_rows(self._facts.table.storage(), self._files),
            written=self._facts.lives.rows_written,
            quarantine=quarantine_rows - pending,
            quarantined=self._facts.lives.rows_quarantined,
            pending=pending,
            replay_unfinished=self._facts.replay_unfinished,
        )

    @property
    def _quarantine_storage(self) -> Storage:
        return open_storage(self._job.table.quarantine_path, self._job.table.storage_options)
