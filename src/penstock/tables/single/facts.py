"""Reads the state of a job from its table, all as of one version: for `verify`, and next to the log for `status`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import replay_key, state_of
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.provenance import Provenance, provenance_of
from penstock.lake.delta.table import DeltaLog
from penstock.lake.state import DeltaPartition
from penstock.logs.log import Partition
from penstock.logs.registry import OpenLog
from penstock.proof.numbers import Slices, TopicIncarnations, find_incarnations, read_history
from penstock.proof.subject import DataFile, Subject, quarantine_source
from penstock.quarantine.table import open_quarantine, unappended_slices
from penstock.reporting.frame import Past, job_status, read_log_view
from penstock.reporting.model import Commit, JobStatus, PartitionStatus, RecordedGap, shown_path
from penstock.reporting.verdicts import Observation, Thresholds

JobCommits = Sequence[tuple[Mapping[str, Any], Provenance]]
"""The commits of a job with their entries in the history, newest first."""
COMMITS_SHOWN = 100
SIGNS_OF_LIFE = ("batch", "start", "fence")
"""Commits that only a running job makes; compactions and replays may be those of a command."""


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
    read = ((record, provenance_of(record)) for record in facts.history)
    of_job = [(record, commit) for record, commit in read if commit is not None and commit.job == job.name]
    at, states = now(), facts.states
    shown = {place: to for place, to in log.mirrored.items() if to > (states[place].position or 0)}
    past = Past(
        at,
        next((_seconds(record) for record, commit in of_job if commit.kind in SIGNS_OF_LIFE), None),
        _positions(of_job, at - Thresholds.of(job).memory_seconds),
        _still_beyond(job, facts.table, shown),
    )
    status = job_status(job, facts.table.version, facts.incarnations, states, log, past, further)
    return replace(
        status,
        committed_at=_instant(facts.history[0]) if facts.history else None,
        gaps=tuple(_recorded_gaps(of_job)),
        commits=tuple(_commit(record, commit) for record, commit in of_job if commit.slices)[:COMMITS_SHOWN],
    )


def _positions(commits: JobCommits, since: float) -> dict[Partition, tuple[Observation, ...]]:
    """Where commits brought the partitions, oldest first: those since a time, and the last one before it."""
    seen: dict[Partition, list[Observation]] = {}
    for record, commit in commits:
        at = _seconds(record)
        moves = [(piece.place, Observation(at, piece.end, piece.log_end)) for piece in commit.slices]
        moves += [(start.place, Observation(at, start.offset)) for start in commit.starts]
        for place, observation in moves:
            newer = seen.setdefault(place, [])
            if not newer or newer[-1].at >= since:
                newer.append(observation)
    return {place: tuple(reversed(newest_first)) for place, newest_first in seen.items()}


def _still_beyond(job: JobSpec, table: DeltaLog, shown: Mapping[Partition, int]) -> dict[Partition, int]:
    """The shown offsets that are beyond the positions of now: the job may have committed since these were read."""
    newest = find_table(table.spec, table.job, table.environment) if shown else None
    if newest is None:
        return {}
    with library_errors(job.table.path):
        states = state_of(newest.version, newest.transaction, job.name, shown, newest.spec.numbers).partitions
    return {place: to for place, to in shown.items() if to > (states[place].position or 0)}


def _commit(record: Mapping[str, Any], commit: Provenance) -> Commit:
    totals = [piece.totals for piece in commit.slices]
    lags = [piece.log_end - piece.end for piece in commit.slices if piece.log_end is not None]
    return Commit(
        version=int(record["version"]),
        at=_instant(record),
        read=sum(counted.read for counted in totals),
        # The logs of an export's types count its rows; rows of a rollup are not records.
        written=sum(counted.written for counted in totals) or commit.rows or 0,
        quarantined=commit.quarantined + sum(counted.quarantined for counted in totals),
        filtered=commit.filtered + sum(counted.filtered for counted in totals),
        files=commit.files_added,
        size_bytes=commit.size_bytes,
        lag_records=sum(lags) if lags else None,
        steps=commit.steps,
    )


def _recorded_gaps(commits: JobCommits) -> Iterator[RecordedGap]:
    """The gaps that the retained commits of a job have recorded, in the order of the history."""
    for record, commit in commits:
        for piece in commit.slices:
            if piece.totals.gap:
                version = int(record["version"])
                yield RecordedGap(piece.place, piece.start, piece.start + piece.totals.gap, version, _instant(record))


def _seconds(record: Mapping[str, Any]) -> float:
    return float(record["timestamp"]) / 1000


def _instant(record: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(_seconds(record), UTC)
