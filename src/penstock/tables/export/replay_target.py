"""Replay of an export: each record once, into its type and day, by an entry of the ledger (RULES Q2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.manifest import Counts, PartitionKey
from penstock.flow.write.offset_ranges import Ranges, offsets_of
from penstock.flow.write.report import Share
from penstock.lake.delta.table import Table
from penstock.logs.log import Batch, Slice
from penstock.tables.export.events import RecordsAreInQuarantineTwice, TypeCannotBeWritten
from penstock.tables.export.export import Export
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.replays import LedgerRuns, Shares, land_replay, left_to_log, raise_run
from penstock.tables.export.writer import ExportWriter
from penstock.tables.quarantine.chunks import Choice, Chunk
from penstock.tables.quarantine.replay_target import StagedRun, Target, check_run, chunk_records, offsets_by_partition
from penstock.tables.quarantine.replayed import ReplayRun, run_number
from penstock.tables.quarantine.rows import repeated_rows, without_places


class ExportTarget(Target[Shares]):
    def __init__(self, export: Export, batches: ExportWriter, spark: SparkSession) -> None:
        super().__init__(export.job, export.environment, export.quarantine)
        self._export = export
        self._batches = batches
        self._spark = spark
        self._table = export.files

    @property
    def runs(self) -> LedgerRuns:
        return LedgerRuns(self._table)

    def refresh(self) -> None:
        self._table.complete()
        quarantine = self.quarantine()
        raise_run(self._table, max(self._table.runs_taken(), run_number(quarantine) if quarantine is not None else 0))

    def choice(self, quarantine: Table) -> Choice:
        """All but those that are there twice: a type that began at the beginning read them again, and they were bad."""
        repeated = repeated_rows(quarantine)
        if not repeated:
            return lambda rows: rows
        self.listener.event(RecordsAreInQuarantineTwice(records=sum(len(each) for each in repeated.values())))
        return lambda rows: without_places(rows, repeated)

    def _staged(self, chunk: Chunk, batch: Batch, number: int) -> StagedRun[Shares] | None:
        state = self._table.state()
        slices = {_key(each): self._slice(each, state) for each in chunk.slices}
        found = self._batches.replay(batch, slices, number, chunk_records(self._spark, chunk))
        return None if found is None else self._writable(chunk, ReplayRun(number, batch.id, {}), found)

    def _slice(self, piece: Slice, state: LedgerState) -> RoutedSlice:
        names = self._export.spec.all_types
        left = {name: ranges for name in names if (ranges := left_to_log(state, piece.partition, name))}
        takes = dict.fromkeys(names, piece.start)
        return RoutedSlice(piece.partition.topic_id, piece.start, piece.end, (piece.start,), takes, left=left)

    def _writable(
        self, chunk: Chunk, run: ReplayRun, found: Mapping[PartitionKey, Mapping[str, Share]]
    ) -> StagedRun[Shares]:
        """What can be committed: a type that cannot be written now leaves its records where they are."""
        stuck = dict(self._stuck(found, run.number))
        for name, reason in stuck.items():
            self.listener.event(TypeCannotBeWritten(type=name, reason=reason))
        total, waiting = Counts(), 0
        kept: dict[PartitionKey, dict[str, Share]] = {}
        for key, named in found.items():
            for name, share in named.items():
                bad = name in stuck
                total += Counts(read=share.counts.read, quarantined=share.counts.read) if bad else share.counts
                waiting += share.counts.read if bad else 0
                if share.files and not bad:
                    kept.setdefault(key, {})[name] = share
        offsets = {key: _offsets(each.replayed for each in named.values()) for key, named in kept.items()}
        run = replace(run, offsets=offsets_by_partition(chunk, offsets))
        check_run(chunk, run, total)
        shares = {each.partition: kept[_key(each)] for each in chunk.slices if _key(each) in kept}
        return StagedRun(run, total, shares, waiting)

    def _stuck(self, found: Mapping[PartitionKey, Mapping[str, Share]], number: int) -> Iterator[tuple[str, str]]:
        days: dict[str, set[str]] = {}
        for named in found.values():
            for name, share in named.items():
                if share.failed:
                    yield name, share.failed
                elif share.files:
                    days.setdefault(name, set()).update(share.days)
        for name, wanted in days.items():
            if (reason := self._table.replay_refusal(name, sorted(wanted), number)) is not None:
                yield name, reason

    def _land(self, staged: StagedRun[Shares]) -> bool:
        landed = land_replay(self._table, staged.run, staged.files)
        self._export.telling.days()
        return landed


def _key(piece: Slice) -> PartitionKey:
    return piece.partition.topic, piece.partition.number


def _offsets(found: Iterable[Ranges]) -> list[int]:
    return [offset for ranges in found for offset in offsets_of(ranges)]
