"""What `verify` is given of an export: the rows of all types next to the positions of the job log.

A type's log holds its rows up to its own position: that is lower than the job's while the type lags, and higher after a
crash between its commit and the job's. The job log counts the records that were read and those that belong to no type;
what became of the others is counted by the logs of their types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from penstock.environment import Environment
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.stage import Stage
from penstock.flow.write.names import parse_compacted_name, parse_staged_name
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table, open_table
from penstock.lake.state import DeltaPartition, Totals
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven
from penstock.proof.frame import prove
from penstock.proof.numbers import (
    Slices,
    TopicIncarnations,
    check_slices,
    check_totals,
    find_incarnations,
    read_history,
)
from penstock.proof.subject import (
    Depth,
    Rewrite,
    RowSource,
    Subject,
    data_file,
    examined,
    files_now,
    named_paths,
    place_of,
    quarantine_source,
)
from penstock.tables.export.export import ExportTable
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.known_files import visible_files
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.writer import fanout_flow
from penstock.tables.single.facts import pending_files, read_facts

BEHIND = Check(
    "restored",
    "the job log was restored, and the job has not read again what its types have",
    False,
    unproven=[Unproven("which records the types lack", "run the job up to the end of the log, then verify")],
)


def prove_export(job: JobSpec[ExportSpec], depth: Depth, open_log: OpenLog) -> Proof:
    table = ExportTable(ExportLogs(job, Environment()))
    if table.logs.find_job_log() is None:
        return NO_TABLE
    subject = subject_of(table)
    for place, state in subject.states.items():
        positions = [log.known_state([place]).of(place).position or 0 for _, log in table.logs.type_logs()]
        if state.totals.restored and max(positions, default=0) > (state.position or 0):
            # Up to where the types counted their records is unknown.
            return Proof(subject.version, (BEHIND,))
    return prove(subject, depth, open_log)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """What the log of a type says, as of the version that is loaded."""

    name: str
    log: Table
    states: Mapping[Partition, DeltaPartition]
    slices: Slices
    known: TopicIncarnations
    due: Mapping[Partition, int]
    """Up to where the type is complete by the job log."""

    @classmethod
    def read(cls, logs: ExportLogs, name: str, log: Table, places: Iterable[Partition]) -> TypeFacts:
        job, states = logs.job.name, {partition: logs.known_state().of(partition) for partition in places}
        with library_errors(log.spec.path):
            history = [record for record in log.handle.history() if int(record["version"]) <= log.version]
        return cls(
            name,
            log,
            log.known_state(states).partitions,
            read_history(history, job),
            find_incarnations(log.transactions(), job),
            {partition: state.position_of(name) or 0 for partition, state in states.items()},
        )

    @property
    def ends(self) -> dict[Partition, int]:
        """No row is at or beyond them."""
        return {partition: max(self.states[partition].position or 0, due) for partition, due in self.due.items()}

    def ahead(self, partition: Partition) -> Totals:
        """What those slices count that end beyond what the job log knows of: a batch is half landed."""
        due = self.due[partition]
        return sum((piece.totals for piece in self.slices.get(partition, ()) if piece.end > due), Totals())


@dataclass(slots=True)
class DeletedDays:
    """Complete days of plain types that a person deleted with their folders: their rows are not checked."""

    days: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    """By type."""
    by_partition: Counter[Partition | None] = field(default_factory=Counter)
    """None: rows of files whose names do not tell one partition."""

    def add(self, of_type: TypeFacts, day: str, files: Iterable[ActiveFile]) -> None:
        self.days.append(f"{of_type.name} {day}")
        places = {(partition.topic_id, partition.number): partition for partition in of_type.states}
        for file in files:
            rows, name = file.rows or 0, parse_staged_name(str(file.values[-1]))
            self.rows[of_type.name] += rows
            self.by_partition[None if name is None else places.get((name.topic_id, name.partition))] += rows

    def warnings(self) -> Iterator[str]:
        if self.days:
            yield (
                f"{self.rows.total()} rows of {len(self.days)} complete days were deleted with their folders and are "
                f"not checked: {', '.join(sorted(self.days))}"
            )


def subject_of(table: ExportTable) -> Subject:
    """The export as of the newest versions of its logs; those of types are read last, so they may be ahead."""
    logs = table.logs
    facts = read_facts(logs.job, logs.job_log)
    logs.refresh_types()
    places = facts.incarnations.partitions
    types = [TypeFacts.read(logs, name, log, places) for name, log in logs.type_logs()]
    deleted = DeletedDays()
    sources = tuple(_type_source(table, of_type, deleted) for of_type in types)
    others: dict[str, frozenset[str]] = {}
    for job, ids in (entry for of_type in types for entry in of_type.known.others.items()):
        others[job] = others.get(job, frozenset()) | ids
    # Also a type that is ahead may have had its quarantined records appended.
    listed = [file for of_type in types for file in pending_files(of_type.log, facts.quarantine, of_type.name)]
    pending = [*facts.pending, *listed]
    quarantine = quarantine_source(logs.job, facts.table.quarantine_url, facts.quarantine, pending)
    ends = {
        partition: max([state.position or 0, *(of_type.ends[partition] for of_type in types)])
        for partition, state in facts.states.items()
    }
    return Subject(
        logs.job,
        facts.table.version,
        {
            partition: replace(state, totals=_combined(logs, types, partition, state.totals, deleted))
            for partition, state in facts.states.items()
        },
        {},
        replace(facts.incarnations, others=others),
        replace(quarantine, ends=ends),
        sum(file.rows or 0 for file in pending),
        facts.replay_unfinished,
        sources,
        rows_written={of_type.name: of_type.known.rows_written - deleted.rows[of_type.name] for of_type in types},
        rows_unplaced=deleted.by_partition[None],
        faults=(*_job_faults(logs), *(fault for of_type in types for fault in _type_faults(table, of_type))),
        warnings=tuple(deleted.warnings()),
        rewrite=_rewrite(logs),
        every_record_has_a_row=False,
        quarantined_ahead=sum(of_type.ahead(partition).quarantined for of_type in types for partition in places),
        job_slices=(
            {partition: replace(state, totals=_read_only(state.totals)) for partition, state in facts.states.items()},
            {
                partition: [replace(piece, totals=_read_only(piece.totals)) for piece in pieces]
                for partition, pieces in facts.slices.items()
            },
        ),
    )


def _read_only(totals: Totals) -> Totals:
    """The offsets that the job log counts, whatever types made of their records."""
    return Totals(read=totals.read, written=totals.read, holes=totals.holes, gap=totals.gap, given_up=totals.given_up)


def _combined(
    logs: ExportLogs, types: Sequence[TypeFacts], partition: Partition, totals: Totals, deleted: DeletedDays
) -> Totals:
    """The totals of all logs up to the position of the job, without rows that a person deleted.

    If the job log was restored, what it had counted before is unknown: it counts records of before only if it reads
    them again, its holes may have been records, and bad records of before are not in the new quarantine.

    A slice of a type that ends beyond the position may hold records below it: the job was started again, with smaller
    batches. Which of them were dropped cannot be told: they may be rows or not, as deferred ones.
    """
    ahead = sum((of_type.ahead(partition) for of_type in types), Totals())
    for own in (of_type.states[partition].totals for of_type in types):
        totals += Totals(written=own.written, quarantined=own.quarantined, filtered=own.filtered, replayed=own.replayed)
    totals += Totals(written=-ahead.written, quarantined=-ahead.quarantined, filtered=-ahead.filtered)
    below = totals.unaccounted
    if 0 < below <= ahead.read:
        maybe = min(below, ahead.filtered)
        totals += Totals(written=below - maybe, deferred=maybe)
    if totals.restored:
        former = logs.known_state().of(partition).former_quarantined
        read_again = min(max(totals.unaccounted, 0), totals.restored)
        totals += Totals(quarantined=-former, filtered=former, restored=-read_again)
        totals += Totals(holes=-totals.holes, given_up=totals.holes)
    rows = deleted.by_partition[partition]
    return totals + Totals(written=-rows, filtered=rows)


def _type_source(table: ExportTable, of_type: TypeFacts, deleted: DeletedDays) -> RowSource:
    """The rows of a type; a plain file that is not renamed yet is read under its staged name."""
    logs, name, log = table.logs, of_type.name, of_type.log
    # Listed after its log was read: a file that the log names is staged now, or has been renamed before.
    staged = {entry.path for entry in logs.storage.list(f"{logs.places.staged}/{name}")} if logs.is_plain else set()
    by_day: dict[str, list[ActiveFile]] = {}
    for file in log.active_files():
        by_day.setdefault(str(file.values[0]), []).append(file)
    files = []
    for day, of_day in by_day.items():
        paths = {file.path: source for file in of_day if (source := table.finishing.source_of(name, file)) in staged}
        complete = logs.is_plain and table.markers.is_complete(logs.known_state(), name, day)
        if complete and not log.file_storage().sizes(paths.get(file.path, file.path) for file in of_day):
            deleted.add(of_type, day, of_day)
            continue
        for file in of_day:
            staged_as = str(file.values[-1]) if logs.is_plain else None
            path = paths.get(file.path, file.path)
            files.append(data_file(path, file.rows, file.size_bytes, {DAY_FOLDER: day}, staged_as))
    schema = logs.columns_of(name) or log.schema
    rows = RowSource(log.file_storage(), files, place_of(logs.job, log.schema), schema, name, of_type.ends)
    return examined(rows, files_now(log))


def _job_faults(logs: ExportLogs) -> Iterator[str]:
    """What is wrong with the job log: with the types that it names, and with what it says is left to them."""
    state = logs.known_state()
    for name, reason in sorted(logs.unreadable.items()):
        yield f"type {name} cannot be read: {reason}"
    for name in logs.replaced_logs(state):
        yield f"the log of type {name} is not the one that the job wrote: it was deleted or replaced"
    if unnamed := sorted(state.types.keys() - logs.export.all_types.keys()):
        yield f"the job file does not name the types {', '.join(unnamed)}: their rows are not looked at"
    for key, counted in sorted(state.partitions.items()):
        partition, deferred = state.partition_of(key), sum(lag.deferred for lag in counted.lags.values())
        if deferred != counted.totals.deferred:
            yield f"{partition}: {counted.totals.deferred} records are deferred, types lag by {deferred}"
        for name, lag in counted.lags.items():
            if name not in state.types or lag.position > (counted.position or 0):
                yield f"{partition}: type {name} lags at {lag.position} without a reason"


def _type_faults(table: ExportTable, of_type: TypeFacts) -> Iterator[str]:
    """What is wrong with positions, totals and slices of a type, and with the files that readers see.

    What it replayed, other logs may have quarantined.
    """
    states = {
        partition: replace(state, totals=structs.replace(state.totals, replayed=0))
        for partition, state in of_type.states.items()
        if state.position is not None or structs.replace(state.totals, replayed=0) != Totals()
    }
    for check in (check_totals(states), check_slices(states, of_type.slices)):
        if not check.ok:
            yield f"log of type {of_type.name}: {check.detail}"
    if unnamed := _unnamed_files(table, of_type):
        yield named_paths("files that readers see are not in the logs", unnamed)


def _unnamed_files(table: ExportTable, of_type: TypeFacts) -> Iterable[str]:
    """Plain files that readers see and that the log of their type does not name: rows are there twice, or too many."""
    logs, name = table.logs, of_type.name
    left = set(visible_files(logs, name)) if logs.is_plain else set()
    left -= {file.path for file in of_type.log.active_files()}
    if not left:
        return ()
    # The job may have put them there since, or be about to delete them because it has compacted them.
    for file in open_table(of_type.log.spec, of_type.log.job).active_files():
        left.discard(file.path)
        staged = table.finishing.source_of(name, file)
        if parse_compacted_name(staged) is not None:
            try:
                left -= set(read_footer(logs.storage, staged).facts.get("inputs", ()))
            except NotFoundError:
                continue
    return logs.storage.sizes(left)


def _rewrite(logs: ExportLogs) -> Rewrite:
    """Writes records again, routed and filed as the job does now."""
    takes = {name for name, _ in logs.type_logs()}

    def rewrite(piece: Slice, rows_url: str, quarantine_url: str) -> Stage:
        partition = piece.partition
        starts = dict.fromkeys(takes, piece.start)
        routed = RoutedSlice(partition.topic_id, piece.start, piece.end, (piece.start,), starts)
        flow = fanout_flow(logs, "verify", {(partition.topic, partition.number): routed}, quarantine_url)
        return fanout_stage(replace(flow, root_url=rows_url, staged_folder="", storage_options={}))

    return rewrite
