"""What `verify` is given of an export: the rows of all types next to the positions of the job log.

A type's log holds its rows up to its own position: that is lower than the job's while the type lags, and higher after a
crash between its commit and the job's. The job log counts the records that were read and those that belong to no type;
what became of the others is counted by the logs of their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from penstock.environment import Environment
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.report import decode_report
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.lake.state import DeltaPartition, Totals
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.files import Quarantine, RowSource, data_file, examined, files_now, place_of
from penstock.proof.findings import NO_TABLE, Proof
from penstock.proof.frame import prove
from penstock.proof.log import find_incarnations
from penstock.proof.subject import Depth, Rewrite, Subject
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.status.status import type_totals
from penstock.tables.export.writer import fanout_flow
from penstock.tables.single.facts import pending_files, read_facts


def prove_export(job: JobSpec[ExportSpec], depth: Depth, open_log: OpenLog) -> Proof:
    table = ExportTable(ExportLogs(job, Environment()))
    if table.logs.find_job_log() is None:
        return NO_TABLE
    return prove(subject_of(table), depth, open_log)


def subject_of(table: ExportTable) -> Subject:
    """The export as of the newest versions of its logs; those of types are read last, so they may be ahead."""
    logs = table.logs
    facts = read_facts(logs.job, logs.job_log)
    logs.refresh_types()
    types = dict(logs.type_logs())
    places = facts.incarnations.partitions
    deleted = DeletedDays()
    sources = tuple(_source(table, name, log, places, deleted) for name, log in types.items())
    known = {name: find_incarnations(log.transactions(), logs.job.name) for name, log in types.items()}
    others = {job: ids for of_type in known.values() for job, ids in of_type.others.items()}
    pending = list(facts.pending)
    for name, log in types.items():
        pending += pending_files(log, facts.quarantine, name)
    reasons = [f"type {name} cannot be read: {reason}" for name, reason in sorted(logs.unreadable.items())]
    return Subject(
        logs.job,
        facts.table.version,
        {partition: _combined(logs, partition, state, deleted) for partition, state in facts.states.items()},
        {},
        replace(facts.incarnations, others=others),
        Quarantine.of(logs.job, facts.table.quarantine_url, facts.quarantine, pending),
        facts.replay_unfinished,
        sources,
        rows_written=sum(of_type.rows_written for of_type in known.values()) - deleted.rows,
        rows_unplaced=deleted.unplaced,
        faults=tuple(reasons),
        warnings=tuple(deleted.warnings()),
        rewrite=_rewrite(table, sources),
        every_record_has_a_row=False,
        job_slices=(
            {partition: _job_only(state) for partition, state in facts.states.items()},
            {
                partition: [replace(piece, totals=_read_only(piece.totals)) for piece in pieces]
                for partition, pieces in facts.slices.items()
            },
        ),
    )


@dataclass(slots=True)
class DeletedDays:
    """Complete days of plain types that a person deleted with their folders: their rows are not checked."""

    days: list[str] = field(default_factory=list)
    rows: int = 0
    unplaced: int = 0
    """Of these, rows of files that held several partitions."""
    by_partition: dict[Partition, int] = field(default_factory=dict)

    def add(self, name: str, day: str, files: Iterable[ActiveFile], places: Iterable[Partition], column: str) -> None:
        self.days.append(f"{name} {day}")
        for file in files:
            rows, span = file.rows or 0, file.spans.get(column)
            self.rows += rows
            owners = [place for place in places if span == (place.number, place.number)]
            if len(owners) == 1:
                self.by_partition[owners[0]] = self.by_partition.get(owners[0], 0) + rows
            else:
                self.unplaced += rows

    def warnings(self) -> Iterator[str]:
        if self.days:
            yield (
                f"{self.rows} rows of {len(self.days)} complete days were deleted with their folders and are not "
                f"checked: {', '.join(sorted(self.days))}"
            )


def _source(
    table: ExportTable, name: str, log: Table, places: tuple[Partition, ...], deleted: DeletedDays
) -> RowSource:
    """The rows of a type; a plain file that is not renamed yet is read under its staged name."""
    logs, state = table.logs, table.logs.known_state()
    place = place_of(logs.job, log.schema)
    column = "" if place is None else place.partition
    staged = {rename.target: rename.source for rename in table.finishing.pending([name])}
    by_day: dict[str, list[ActiveFile]] = {}
    for file in log.active_files((column,) if column else ()):
        by_day.setdefault(str(file.values[0]), []).append(file)
    files = []
    for day, found in by_day.items():
        complete = logs.is_plain and table.markers.is_complete(state, name, day)
        if complete and not log.file_storage().sizes(staged.get(file.path, file.path) for file in found):
            deleted.add(name, day, found, places, column)
            continue
        values = {DAY_FOLDER: day}
        files += [data_file(staged.get(file.path, file.path), file.rows, file.size_bytes, values) for file in found]
    ends = {
        partition: max(logs.position(name, partition) or 0, state.of(partition).position_of(name) or 0)
        for partition in places
    }
    columns = logs.columns_of(name) or log.schema
    return examined(
        RowSource(log.file_storage(), files, place, columns, name, ends), None if staged else files_now(log)
    )


def _combined(logs: ExportLogs, partition: Partition, state: DeltaPartition, deleted: DeletedDays) -> DeltaPartition:
    """The totals of all logs. Of a type that is ahead, rows beyond the position are not among them."""
    totals = state.totals + type_totals(logs, partition)
    ahead = any((logs.position(name, partition) or 0) > (state.position or 0) for name in logs.export.all_types)
    left = totals.quarantined + totals.filtered + totals.deferred + totals.vanished
    gone = deleted.by_partition.get(partition, 0)
    written = totals.read + totals.backfilled - left if ahead else totals.written
    values = {name: getattr(totals, name) for name in totals.__struct_fields__}
    return replace(state, totals=Totals(**{**values, "written": written - gone, "filtered": totals.filtered + gone}))


def _job_only(state: DeltaPartition) -> DeltaPartition:
    return replace(state, totals=_read_only(state.totals))


def _read_only(totals: Totals) -> Totals:
    """The offsets that the job log counts, whatever types made of their records."""
    return Totals(read=totals.read, written=totals.read, holes=totals.holes, gap=totals.gap, given_up=totals.given_up)


def _rewrite(table: ExportTable, sources: tuple[RowSource, ...]) -> Rewrite:
    """Writes records again, routed and filed as the job does now."""
    logs = table.logs

    def rewrite(piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[RowSource]:
        takes = {source.name: piece.start for source in sources}
        routed = RoutedSlice(piece.partition.topic_id, piece.start, piece.end, (piece.start,), takes)
        slices = {(piece.partition.topic, piece.partition.number): routed}
        flow = fanout_flow(logs, "verify", slices, str(folder / "quarantine"))
        flow = replace(flow, root_url=str(folder / "root"), staged_folder="", storage_options={})
        for report in fanout_stage(flow)(records):
            for shares in decode_report(report.column(0)[0].as_py()).shares.values():
                for source in sources:
                    share = shares.get(source.name)
                    files = [] if share is None else share.files
                    again = [data_file(file.path, file.rows, values=file.partition_values) for file in files]
                    yield replace(source, storage=open_storage(str(folder / "root"), {}), files=again)

    return rewrite
