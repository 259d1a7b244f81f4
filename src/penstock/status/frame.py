"""The frame of a status, the same for every kind of table: what the table says of a job, next to its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.job.spec import JobSpec
from penstock.lake.state import PartitionState
from penstock.logs.log import Partition
from penstock.proof.offsets.incarnations import TopicIncarnations
from penstock.status.log_lag import alerts
from penstock.status.model import CommitStatus, JobStatus, LogView, PartitionStatus, RecordedGap, shown_path


@dataclass(frozen=True, slots=True)
class TableView:
    """What a table says of its job, all as of one version."""

    version: int
    incarnations: TopicIncarnations
    states: Mapping[Partition, PartitionState]
    """Also of topics that were recreated since."""
    commits: tuple[CommitStatus, ...]
    gaps: tuple[RecordedGap, ...] = ()
    given_up: tuple[RecordedGap, ...] = ()

    @property
    def positions(self) -> dict[Partition, int | None]:
        return {each: state.position for each, state in self.states.items()}


def job_status(
    job: JobSpec, table: TableView, log: LogView, further: Callable[[PartitionStatus], PartitionStatus] = lambda it: it
) -> JobStatus:
    """How the job stands; `further` adds to a partition what only this kind of table tells."""
    totals = [state.totals for state in table.states.values()]
    partitions = tuple(further(_partition_status(each, table.states[each], log)) for each in table.incarnations.current)
    quarantine_rows = sum(each.quarantined - each.replayed for each in totals)
    return JobStatus(
        job=job.name,
        table=shown_path(job),
        version=table.version,
        partitions=partitions,
        commits=table.commits,
        quarantine_rows=quarantine_rows,
        gap_offsets=sum(each.gap for each in totals),
        gaps=table.gaps,
        given_up_offsets=sum(each.given_up for each in totals),
        given_up=table.given_up,
        alerts=tuple(alerts(partitions, table.incarnations.fingerprints, log, quarantine_rows)),
        log_error=log.error.primary if log.error else None,
        exit_code=log.error.exit_code if log.error else 0,
    )


def _partition_status(partition: Partition, state: PartitionState, log: LogView) -> PartitionStatus:
    bounds = log.facts.bounds.get(partition) if log.facts else None
    return PartitionStatus(
        partition=partition,
        position=state.position,
        token=state.token,
        totals=state.totals,
        first=bounds.first if bounds else None,
        end=bounds.end if bounds else None,
        lag_seconds=log.ages.get(partition),
        mirrored=log.mirrored.get(partition),
        owner=log.owners.get(partition),
        needed_position=state.position,
        shown_position=state.position,
    )
