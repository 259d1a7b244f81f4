"""Reads the state of a job from its table, all as of one version: for `verify`, and next to the log for `status`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import replay_key, state_of
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.provenance import provenance_of
from penstock.lake.delta.table import DeltaLog, find_table
from penstock.lake.state import DeltaPartition
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.numbers import Slices, TopicIncarnations, find_incarnations, read_history
from penstock.proof.subject import DataFile, Subject, quarantine_source
from penstock.quarantine.table import open_quarantine, unappended_slices
from penstock.reporting.frame import job_status, read_log_view
from penstock.reporting.model import JobStatus, PartitionStatus, RecordedGap, shown_path


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A job's table and quarantine, with the state of the job in them."""

    table: DeltaLog
    quarantine: DeltaLog | None
    incarnations: TopicIncarnations
    states: Mapping[Partition, DeltaPartition]
    slices: Slices
    history: tuple[Mapping[str, Any], ...]
    """Commit metadata, newest first."""
    pending: tuple[DataFile, ...]
    """Quarantine files that a commit listed and that are not yet in the quarantine table (RULES Q1)."""
    replay_unfinished: bool

    def subject(self, job: JobSpec, pending: Sequence[DataFile] = ()) -> Subject:
        """What `verify` checks of any kind; `pending` are further files that wait to be appended to the quarantine."""
        pending = (*self.pending, *pending)
        quarantine = quarantine_source(job, self.table.quarantine_url, self.quarantine, pending)
        warnings = []
        if rows := sum(file.rows or 0 for file in pending):
            warnings.append(f"{rows} quarantined rows wait to be appended by the next run")
        if self.replay_unfinished:
            warnings.append("a replay of the quarantine is unfinished: the next run finishes it")
        return Subject(
            job,
            self.table.version,
            self.states,
            self.slices,
            self.incarnations,
            quarantine,
            self.replay_unfinished,
            warnings=tuple(warnings),
        )


def read_table(job: JobSpec) -> TableFacts | None:
    """The facts of the job's table; None while the job has not created one."""
    table = find_table(job.table, job.name)
    return None if table is None else read_facts(job, table)


def read_facts(job: JobSpec, table: DeltaLog) -> TableFacts:
    """The facts of a table with the positions of a job, as of its newest version.

    The quarantine is loaded before the version of the data that counts: it can only lag, and by how much is known.
    """
    quarantine = open_quarantine(job, table.quarantine_url)
    table.refresh()
    with library_errors(job.table.path):
        history = tuple(record for record in table.handle.history() if int(record["version"]) <= table.version)
        slices = read_history(history, job.name)
        incarnations = find_incarnations(table.transactions(), job.name, slices)
        partitions = incarnations.partitions
        states = state_of(table.version, table.transaction, job.name, partitions, table.spec.numbers).partitions
    key = replay_key(job.name)
    replayed = (quarantine.transaction(key) if quarantine else None) or 0
    return TableFacts(
        table=table,
        quarantine=quarantine,
        incarnations=incarnations,
        states=states,
        slices=slices,
        history=history,
        pending=pending_files(table, quarantine),
        replay_unfinished=(table.transaction(key) or 0) > replayed,
    )


def pending_files(table: DeltaLog, quarantine: DeltaLog | None, log: str = "") -> tuple[DataFile, ...]:
    """Quarantine files that commits to a log of the job list beyond the quarantine's own positions (RULES Q1)."""
    slices = unappended_slices(table, quarantine, log)
    return tuple(DataFile(file.path, file.rows, file.size_bytes) for piece in slices for file in piece.files)


def table_status(job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
    """The status of a job by its table and log; if the log does not answer, by its table."""
    facts = read_table(job)
    return JobStatus(job.name, shown_path(job), None) if facts is None else facts_status(job, facts, open_log, now)


def facts_status(
    job: JobSpec,
    facts: TableFacts,
    open_log: OpenLog,
    now: Callable[[], float],
    further: Callable[[PartitionStatus], PartitionStatus] = lambda partition: partition,
) -> JobStatus:
    """The same for a table that was read already; `further` adds what only this kind of table reports."""
    log = read_log_view(job, open_log, facts.incarnations, facts.states, now)
    status = job_status(job, facts.table.version, facts.incarnations, facts.states, log, further)
    committed_at = _instant(facts.history[0]) if facts.history else None
    return replace(status, committed_at=committed_at, gaps=tuple(_recorded_gaps(facts.history, job.name)))


def _recorded_gaps(history: Iterable[Mapping[str, Any]], job: str) -> Iterator[RecordedGap]:
    """The gaps that the retained commits of a job have recorded, in the order of the history."""
    for record in history:
        commit = provenance_of(record)
        for piece in commit.slices if commit is not None and commit.job == job else ():
            if piece.totals.gap:
                version = int(record["version"])
                yield RecordedGap(piece.place, piece.start, piece.start + piece.totals.gap, version, _instant(record))


def _instant(record: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(record["timestamp"] / 1000, UTC)
