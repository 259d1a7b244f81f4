"""Replay of an export: each record once, into its type and day (RULES Q2).

A run of number N begins with a commit to the job log, refused if another run has that number. Then every type with rows
of it commits them with N and their offsets; then they are removed from quarantine, which takes the number N too. A run
that was not finished is finished by the next process: first every type's log takes N, so that the former process cannot
land more of it, then what the types did land is removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from penstock.errors import PenstockError, TransientError
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.manifest import Counts, PartitionKey, Ranges, offsets_of, ranges_of
from penstock.flow.write.report import Share
from penstock.lake.delta.files import check_staged
from penstock.lake.delta.keys import field_key, replay_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.logs.log import Batch, Partition, Slice
from penstock.quarantine.replay import (
    Chunk,
    OvertakenError,
    ReplayRun,
    StagedRun,
    TableRuns,
    Target,
    run_change,
    run_number,
)
from penstock.staging.batch_job import Records
from penstock.staging.reports import Shares
from penstock.tables.export.commits import committed_file
from penstock.tables.export.export import Export
from penstock.tables.export.logs import REPLAYED_END, ExportLogs
from penstock.tables.export.monitoring import TypeCannotBeWritten
from penstock.tables.export.names import output_name
from penstock.tables.export.state import ExportState

RunShares = Mapping[Partition, Mapping[str, Share]]
"""What a run staged of every type."""
RunJob = Callable[[Batch, Mapping[PartitionKey, RoutedSlice], int, Records], Shares | None]

_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExportRuns:
    """The replay runs of an export: only the last one can still have rows in quarantine."""

    logs: ExportLogs

    def last(self) -> int:
        log = self.logs.job_log
        log.refresh()
        return run_number(log)

    def owed(self, removed: int) -> tuple[int, ...]:
        last = self.last()
        return (last,) if last > removed else ()

    def find(self, number: int) -> ReplayRun | None:
        """What the types landed of a run, after which none lands more of it."""
        offsets: dict[Partition, Ranges] = {}
        for _, log in self.logs.type_logs():
            log.swap(lambda log=log: _fence(log, number))  # type: ignore[misc]
            run = TableRuns(log).find(number)
            for partition, ranges in (run.offsets if run is not None else {}).items():
                offsets[partition] = ranges_of([*offsets_of(offsets.get(partition, ())), *offsets_of(ranges)])
        for name, reason in sorted(self.logs.unreadable.items()):
            # It may hold rows of the run: they would stay in quarantine, and another run would write them again.
            raise TransientError(
                f"replay run {number} cannot be finished: type {name} cannot be read",
                detail=reason,
                hint="make its log readable and replay again",
            )
        begun = TableRuns(self.logs.job_log).find(number)
        return None if begun is None else ReplayRun(number, begun.batch_id, offsets)


def _fence(log: Table, number: int) -> Change | None:
    if run_number(log) >= number:
        return None
    return Change([], {replay_key(log.job): number}, Provenance(kind="fence", job=log.job).metadata)


class ExportTarget(Target[RunShares]):
    """Stages and commits the runs of an export."""

    def __init__(self, export: Export, spark: SparkSession, run_job: RunJob) -> None:
        super().__init__(export.job, export.environment, export.quarantine)
        self._export = export
        self._logs = export.logs
        self._spark = spark
        self._run_job = run_job

    @property
    def runs(self) -> ExportRuns:
        return ExportRuns(self._logs)

    def refresh(self) -> None:
        self._logs.refresh_types()
        self._export.finish_renames()

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[RunShares] | None:
        state = self._logs.state()
        slices = {(piece.partition.topic, piece.partition.number): self._slice(piece, state) for piece in chunk.slices}
        shares = self._run_job(batch, slices, number, chunk.records(self._spark))
        return None if shares is None else self._writable(chunk, batch.id, number, shares)

    def _slice(self, piece: Slice, state: ExportState) -> RoutedSlice:
        names = self._logs.export.types
        left = {name: ranges for name in names if (ranges := left_to_log(state, piece.partition, name))}
        takes = {name: piece.start for name in names if name not in self._logs.unreadable}
        after = self._logs.files_ends(takes, piece.partition)
        return RoutedSlice(
            piece.partition.topic_id, piece.start, piece.end, (piece.start,), takes, left=left, after=after
        )

    def _writable(self, chunk: Chunk, batch_id: str, number: int, shares: Shares) -> StagedRun[RunShares]:
        """What can be committed: a type that cannot be written now leaves its records where they are."""
        stuck = dict(self._stuck(shares))
        for name, reason in stuck.items():
            self.listener.event(TypeCannotBeWritten(type=name, reason=reason))
        total, waiting = Counts(), 0
        kept: dict[PartitionKey, dict[str, Share]] = {}
        for key, named in shares.items():
            for name, share in named.items():
                bad = name in stuck
                total += Counts(read=share.counts.read, quarantined=share.counts.read) if bad else share.counts
                waiting += share.counts.read if bad else 0
                if share.files and not bad:
                    kept.setdefault(key, {})[name] = share
        offsets = {
            key: [offset for share in named.values() for offset in offsets_of(share.replayed)]
            for key, named in kept.items()
        }
        run = chunk.run(number, batch_id, offsets, total)
        keys = {(piece.partition.topic, piece.partition.number): piece.partition for piece in chunk.slices}
        return StagedRun(run, total, {keys[key]: named for key, named in kept.items()}, waiting)

    def _stuck(self, shares: Shares) -> Iterator[tuple[str, str]]:
        """The types that cannot be written now, with the reason."""
        for named in shares.values():
            for name, share in named.items():
                try:
                    self._logs.find_type_log(name)
                    reason = share.failed or self._export.finishing.probe(name, share.days)
                except PenstockError as error:
                    reason = error.primary
                if reason:
                    yield name, reason

    def commit(self, staged: StagedRun[RunShares]) -> None:
        if not self._land(staged):
            raise OvertakenError(f"another replay committed run {staged.run.number} first")

    def _land(self, staged: StagedRun[RunShares]) -> bool:
        """Begin the run in the job log, then land every type. If one fails, the next process finishes the run."""
        run, log = staged.run, self._logs.job_log

        def begin() -> Change | None:
            return run_change(log, replace(run, offsets={}), ()) if run_number(log) == run.number - 1 else None

        if not log.swap(begin) and not _has_run(log, run):
            return False
        self.environment.at_step("replay_begun")
        for name in sorted({name for named in staged.files.values() for name in named}):
            self._land_type(
                name, run, {partition: named[name] for partition, named in staged.files.items() if name in named}
            )
        return True

    def _land_type(self, name: str, run: ReplayRun, shares: Mapping[Partition, Share]) -> None:
        log = self._logs.find_type_log(name)
        assert log is not None, f"type {name} has files and no log"
        days, markers = {day for share in shares.values() for day in share.days}, self._export.markers
        staged = [file for share in shares.values() for file in share.files]
        finals = [output_name("replayed", self.job.name, run.number, uuid.uuid4().hex) for _ in staged]
        files = [committed_file(self._logs, name, file, final) for file, final in zip(staged, finals, strict=True)]
        landed = replace(run, offsets={partition: share.replayed for partition, share in shares.items()})
        before = self._logs.days_of(name)

        def decide() -> Change | None:
            if run_number(log) >= run.number:
                return None
            markers.hide(name, days)
            check_staged(self._logs.storage, staged)
            ends = {field_key(log.job, place, REPLAYED_END): ranges[-1][1] for place, ranges in landed.offsets.items()}
            ends = {key: max(end, log.transaction(key) or 0) for key, end in ends.items()}
            change = run_change(log, landed, files)
            return replace(change, transactions={**change.transactions, **markers.late_numbers(name, days), **ends})

        if not log.swap(decide) and not _has_run(log, run):
            raise OvertakenError(f"another process finished replay run {run.number} before type {name} was written")
        self.environment.at_step("type_committed")
        markers.report_late(name, before)
        self._export.finishing.finish(self._export.finishing.renames_of(name, files))


def _has_run(log: Table, run: ReplayRun) -> bool:
    """Whether a log has this very run: the answer to a commit may have been lost."""
    known = TableRuns(log).find(run.number)
    return known is not None and known.batch_id == run.batch_id


def left_to_log(state: ExportState, partition: Partition, name: str) -> Ranges:
    """Offsets of a partition whose records the log itself gives to a type: what is in quarantine there stays there.

    A type that lags may be yet to read them. So may all types if the job log was restored and starts over.
    """
    here = state.of(partition)
    start = 0 if here.position is None else here.position_of(name)
    return ((start or 0, _NO_END),)
