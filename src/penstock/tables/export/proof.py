"""The input of `verify` for an export: the rows of all types and the positions of the job log.

A type's log holds its rows up to its own position, which is lower than the job's while the type lags. The job log
counts the records that were read and those that belong to no type; the logs of types count all others. If a type is
ahead of the job, or files wait for their final names, because a batch is half landed, nothing is proven.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from penstock.environment import Environment
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.stage import Stage
from penstock.job.spec import DAY_FOLDER, JobSpec
from penstock.lake.delta.table import DeltaLog
from penstock.lake.state import DeltaPartition, Totals
from penstock.logs.log import Batch, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, Unproven
from penstock.proof.frame import prove, shown
from penstock.proof.numbers import Slices, States, check_slices, check_totals
from penstock.proof.subject import (
    DataFile,
    Depth,
    Rewrite,
    RowSource,
    Subject,
    examined,
    files_now,
    named_paths,
    place_of,
)
from penstock.tables.export.export import ExportTable
from penstock.tables.export.finishing import visible_files
from penstock.tables.export.flow import local_flow
from penstock.tables.export.logs import ExportLogs, type_totals
from penstock.tables.export.spec import ExportSpec
from penstock.tables.single.facts import TableFacts, pending_files, read_facts

READS_MAX = 5
"""How often the logs are read again because a batch is half landed: a job that runs finishes it meanwhile."""
HALF_LANDED = Unproven(
    "the rows: types are ahead of the job log, or files wait for their final names, because a batch is half landed "
    "or the job log was restored",
    "run the job up to the end of the log, then verify",
)

FORMER_QUARANTINE = Unproven(
    "records that were read before the job log was restored, and are no rows",
    "they are in former folders of the quarantine, if they were bad",
)


def prove_export(job: JobSpec[ExportSpec], depth: Depth, open_log: OpenLog, reads: int = READS_MAX) -> Proof:
    table = ExportTable(ExportLogs(job, Environment()))
    logs = table.logs
    if logs.find_job_log() is None:
        return NO_TABLE
    facts = read_facts(job, logs.job_log)
    # Read last: types may be ahead, and never behind.
    state = logs.cached_state()
    types = [
        read_type(table, name, log, {place: state.of(place).position_of(name) or 0 for place in facts.states})
        for name, log in logs.type_logs().items()
    ]
    if not any(of_type.is_half_landed for of_type in types):
        proof = prove(subject_of(table, facts, types), depth, open_log)
        former = sum(_former(logs, place, counted.totals) for place, counted in facts.states.items())
        check = Check("former quarantine", f"{former} records were read before", False, unproven=[FORMER_QUARANTINE])
        return replace(proof, checks=(*proof.checks, check)) if former else proof
    if reads > 1:
        return prove_export(job, depth, open_log, reads - 1)
    faults = _log_faults(logs, types)
    check = Check("types", shown(faults) or "a batch is half landed", bool(faults), unproven=[HALF_LANDED])
    return Proof(facts.table.version, (check_slices(*_job_slices(facts)), check))


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """The facts of a type's log, as of the version that is loaded."""

    name: str
    facts: TableFacts
    ends: Mapping[Partition, int]
    """Up to where the type is complete by the job log: no row is at or beyond them."""
    pending: bool
    """Whether plain files wait for their final names."""
    unnamed: Collection[str]
    """Plain files that readers see and the log does not name: their rows are duplicated or foreign."""

    def state(self, partition: Partition) -> DeltaPartition:
        return self.facts.table.cached_state(self.ends).of(partition)

    @property
    def is_half_landed(self) -> bool:
        return self.pending or any((self.state(place).position or 0) > end for place, end in self.ends.items())


def read_type(table: ExportTable, name: str, log: DeltaLog, ends: Mapping[Partition, int]) -> TypeFacts:
    """Read the log of a type; in between the files of plain types are listed.

    What readers see is listed before: the log names it, unless a compaction has replaced it. What is staged is listed
    after: any other file has its final name by then, and what compactions replaced was deleted.
    """
    logs = table.logs
    visible = {entry.path for entry in visible_files(logs, name)} if logs.is_plain else set()
    facts = read_facts(logs.job, log)
    files = log.active_files()
    staged = {entry.path for entry in logs.storage.list(f"{logs.staged}/{name}")} if logs.is_plain else set()
    pending = any(table.finishing.source_of(name, file) in staged for file in files)
    # A compaction whose file is pending has still to delete what it replaces.
    unnamed = () if pending else logs.storage.sizes(visible - {file.path for file in files})
    return TypeFacts(name, facts, ends, pending, unnamed)


def subject_of(table: ExportTable, facts: TableFacts, types: Sequence[TypeFacts]) -> Subject:
    """The export as of the versions of its logs that are loaded."""
    logs = table.logs
    pairs = [_type_source(table, of_type) for of_type in types]
    deleted = {source.name: rows for source, rows in pairs}
    other_ids = frozenset().union(*(of_type.facts.incarnations.other_ids for of_type in types))
    pending = [file for of_type in types for file in pending_files(of_type.facts.table, facts.quarantine, of_type.name)]
    return replace(
        facts.subject(logs.job, pending),
        states={
            partition: replace(state, totals=_combined(logs, partition, state.totals))
            for partition, state in facts.states.items()
        },
        slices={},
        incarnations=replace(facts.incarnations, other_ids=other_ids),
        sources=tuple(source for source, _ in pairs),
        rows_written={
            of_type.name: of_type.facts.incarnations.rows_written - deleted[of_type.name] for of_type in types
        },
        rows_unplaced=sum(deleted.values()),
        faults=_log_faults(logs, types),
        rewrite=_rewrite(logs),
        every_record_has_a_row=False,
        job_slices=_job_slices(facts),
    )


def _job_slices(facts: TableFacts) -> tuple[States, Slices]:
    """The offsets that the job log counts, whatever became of their records in the types."""

    def read_only(totals: Totals) -> Totals:
        return Totals(read=totals.read, written=totals.read, holes=totals.holes, gap=totals.gap)

    states = {place: replace(state, totals=read_only(state.totals)) for place, state in facts.states.items()}
    slices = {
        place: [replace(piece, totals=read_only(piece.totals)) for piece in pieces]
        for place, pieces in facts.slices.items()
    }
    return states, slices


def _combined(logs: ExportLogs, partition: Partition, totals: Totals) -> Totals:
    """The totals of all logs. If the job log was restored, its holes may have been records."""
    holes = totals.holes if totals.restored else 0
    former = Totals(filtered=_former(logs, partition, totals), holes=-holes, gap=holes)
    return totals + type_totals(logs, partition) + former


def _former(logs: ExportLogs, partition: Partition, totals: Totals) -> int:
    """Records that a restored job log read again, and that are in neither rows nor its new quarantine."""
    return max(0, (totals + type_totals(logs, partition)).unaccounted) if totals.restored else 0


def _type_source(table: ExportTable, of_type: TypeFacts) -> tuple[RowSource, int]:
    """The rows of a type, and how many rows are of complete days of which no file exists: their folder was deleted."""
    logs, name, log = table.logs, of_type.name, of_type.facts.table
    by_day: dict[str, list[DataFile]] = {}
    for file in log.active_files():
        day, staged_as = str(file.values[0]), str(file.values[-1]) if logs.is_plain else None
        data_file = DataFile(file.path, file.rows, file.size_bytes, {DAY_FOLDER: day}, staged_as)
        by_day.setdefault(day, []).append(data_file)
    complete = {day for day in by_day if logs.is_plain and table.markers.is_complete(name, day)}
    deleted = {day for day in complete if not log.file_storage().sizes(file.path for file in by_day[day])}
    files = [file for day, of_day in by_day.items() if day not in deleted for file in of_day]
    rows_deleted = sum(file.rows or 0 for day in deleted for file in by_day[day])
    schema = logs.columns_of(name) or log.schema
    rows = RowSource(log.file_storage(), files, place_of(logs.job, log.schema), schema, name, of_type.ends)
    return examined(rows, files_now(log)), rows_deleted


def _log_faults(logs: ExportLogs, types: Iterable[TypeFacts]) -> tuple[str, ...]:
    return (*_job_faults(logs), *(fault for of_type in types for fault in _type_faults(of_type)))


def _job_faults(logs: ExportLogs) -> Iterator[str]:
    """What is wrong with the types in the job log and with the records that it counts as deferred for them."""
    state = logs.cached_state()
    for name, reason in sorted(logs.unreadable.items()):
        yield f"type {name} cannot be read: {reason}"
    yield from logs.lost_logs(state)
    if unnamed := sorted(state.types.keys() - logs.export.types.keys()):
        yield f"the job file does not name the types {', '.join(unnamed)}: their rows are not checked"
    for key, counted in sorted(state.partitions.items()):
        partition, deferred = state.partition_of(key), sum(lag.deferred for lag in counted.lags.values())
        if deferred != counted.totals.deferred:
            yield f"{partition}: {counted.totals.deferred} records are deferred, types lag by {deferred}"
        for name, lag in counted.lags.items():
            if name not in state.types or lag.position > (counted.position or 0):
                yield f"{partition}: type {name} lags at {lag.position} without a reason"


def _type_faults(of_type: TypeFacts) -> Iterator[str]:
    """What is wrong with positions, totals and slices of a type, and with the files that readers see.

    What it replayed, other logs may have quarantined.
    """
    states = {
        partition: replace(state, totals=structs.replace(state.totals, replayed=0))
        for partition, state in ((partition, of_type.state(partition)) for partition in of_type.ends)
        if state.position is not None or structs.replace(state.totals, replayed=0) != Totals()
    }
    for check in (check_totals(states), check_slices(states, of_type.facts.slices)):
        if not check.ok:
            yield f"log of type {of_type.name}: {check.detail}"
    if of_type.unnamed:
        yield named_paths("files that readers see are not in the logs", of_type.unnamed)


def _rewrite(logs: ExportLogs) -> Rewrite:
    """Writes records again, as the job does now."""
    types = logs.type_logs()

    def rewrite(piece: Slice, rows_url: str, quarantine_url: str) -> Stage:
        return fanout_stage(local_flow(logs, Batch("verify", (piece,)), types, rows_url, quarantine_url))

    return rewrite
