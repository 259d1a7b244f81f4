"""What `verify` is given of an export: the rows of all types next to the positions of the job log.

A type's log holds its rows up to its own position: that is lower than the job's while the type lags, and higher after a
crash between its commit and the job's. The job log counts the records that were read and those that belong to no type;
what became of the others is counted by the logs of their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.environment import Environment
from penstock.flow.route.fanout import fanout_stage
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.lake.state import DeltaPartition, Totals
from penstock.lake.storage import open_storage
from penstock.logs.log import Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.files import Quarantine, RowSource, data_file
from penstock.proof.findings import NO_TABLE, Proof, Unproven, conclude
from penstock.proof.frame import prove
from penstock.proof.subject import Depth, Rewrite, Subject
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.state import ExportState, JobPartition
from penstock.tables.export.type_proof import DeletedDays, TypeFacts, type_source, unnamed_files
from penstock.tables.export.writer import fanout_flow
from penstock.tables.single.facts import TableFacts, pending_files, read_facts

BEHIND = conclude(
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
    return prove(subject, depth, open_log) if not _is_behind(table.logs, subject) else Proof(subject.version, (BEHIND,))


def subject_of(table: ExportTable) -> Subject:
    """The export as of the newest versions of its logs; those of types are read last, so they may be ahead."""
    logs = table.logs
    facts = read_facts(logs.job, logs.job_log)
    logs.refresh_types()
    places = facts.incarnations.partitions
    types = [TypeFacts.read(logs, name, log, places) for name, log in logs.type_logs()]
    deleted = DeletedDays()
    sources = tuple(type_source(table, of_type, deleted) for of_type in types)
    ahead = {partition: sum((of_type.ahead(partition) for of_type in types), Totals()) for partition in places}
    return Subject(
        logs.job,
        facts.table.version,
        {
            partition: _combined(
                state,
                types,
                partition,
                ahead[partition],
                deleted.by_partition[partition],
                logs.known_state().of(partition).former_quarantined,
            )
            for partition, state in facts.states.items()
        },
        {},
        replace(facts.incarnations, others=_others(types)),
        _quarantine(logs.job, facts, types),
        facts.replay_unfinished,
        sources,
        rows_written={of_type.name: of_type.known.rows_written - deleted.rows[of_type.name] for of_type in types},
        rows_unplaced=deleted.unplaced,
        faults=(*_job_faults(logs), *(fault for of_type in types for fault in _type_faults(table, of_type))),
        warnings=tuple(deleted.warnings()),
        rewrite=_rewrite(table, sources),
        every_record_has_a_row=False,
        quarantined_ahead=sum(totals.quarantined for totals in ahead.values()),
        job_slices=(
            {partition: replace(state, totals=_read_only(state.totals)) for partition, state in facts.states.items()},
            {
                partition: [replace(piece, totals=_read_only(piece.totals)) for piece in pieces]
                for partition, pieces in facts.slices.items()
            },
        ),
    )


def _is_behind(logs: ExportLogs, subject: Subject) -> bool:
    """Whether types are ahead of a job log that was restored: up to where they counted their records is unknown."""
    restored = {place: state.position or 0 for place, state in subject.states.items() if state.totals.restored}
    return any(
        position < (log.known_state([place]).of(place).position or 0)
        for place, position in restored.items()
        for _, log in logs.type_logs()
    )


def _read_only(totals: Totals) -> Totals:
    """The offsets that the job log counts, whatever types made of their records."""
    return Totals(read=totals.read, written=totals.read, holes=totals.holes, gap=totals.gap, given_up=totals.given_up)


def _combined(
    state: DeltaPartition, types: Iterable[TypeFacts], partition: Partition, ahead: Totals, deleted: int, former: int
) -> DeltaPartition:
    """The totals of all logs up to the position of the job, without rows that a person deleted.

    If the job log was restored, what it had counted before is unknown: it counts records of before only if it reads
    them again, its holes may have been records, and bad records of before are not in the new quarantine.

    A slice of a type that ends beyond the position may hold records below it: the job was started again, with smaller
    batches. Which of them were dropped cannot be told: they may be rows or not, as deferred ones.
    """
    totals = state.totals
    for of_type in types:
        own = of_type.states[partition].totals
        totals += Totals(written=own.written, quarantined=own.quarantined, filtered=own.filtered, replayed=own.replayed)
    totals += Totals(written=-ahead.written, quarantined=-ahead.quarantined, filtered=-ahead.filtered)
    below = totals.unaccounted
    if 0 < below <= ahead.read:
        maybe = min(below, ahead.filtered)
        totals += Totals(written=below - maybe, deferred=maybe)
    if totals.restored:
        read_again = min(max(totals.unaccounted, 0), totals.restored)
        totals += Totals(quarantined=-former, filtered=former, restored=-read_again)
        totals += Totals(holes=-totals.holes, given_up=totals.holes)
    return replace(state, totals=totals + Totals(written=-deleted, filtered=deleted))


def _others(types: Iterable[TypeFacts]) -> dict[str, frozenset[str]]:
    """The other jobs that write to the tables of types, with the ids of their topics."""
    others: dict[str, frozenset[str]] = {}
    for of_type in types:
        for job, ids in of_type.known.others.items():
            others[job] = others.get(job, frozenset()) | ids
    return others


def _quarantine(job: JobSpec, facts: TableFacts, types: Sequence[TypeFacts]) -> Quarantine:
    """What all logs list; also a type that is ahead may have had its files appended."""
    listed = [file for of_type in types for file in pending_files(of_type.log, facts.quarantine, of_type.name)]
    found = Quarantine.of(job, facts.table.quarantine_url, facts.quarantine, [*facts.pending, *listed])
    ends = {
        partition: max([state.position or 0, *(of_type.ends[partition] for of_type in types)])
        for partition, state in facts.states.items()
    }
    return replace(found, source=replace(found.source, ends=ends))


# what is wrong with logs


def _job_faults(logs: ExportLogs) -> Iterator[str]:
    state = logs.known_state()
    for name, reason in sorted(logs.unreadable.items()):
        yield f"type {name} cannot be read: {reason}"
    for name in logs.replaced_logs(state):
        yield f"the log of type {name} is not the one that the job wrote: it was deleted or replaced"
    if unnamed := sorted(state.types.keys() - logs.export.all_types.keys()):
        yield f"the job file does not name the types {', '.join(unnamed)}: their rows are not looked at"
    for key, here in sorted(state.partitions.items()):
        for fault in _lag_faults(state, here):
            yield f"{state.partition_of(key)}: {fault}"


def _lag_faults(state: ExportState, here: JobPartition) -> Iterator[str]:
    """Types lag by what was deferred."""
    deferred = sum(lag.deferred for lag in here.lags.values())
    if deferred != here.totals.deferred:
        yield f"{here.totals.deferred} records are deferred, types lag by {deferred}"
    for name, lag in here.lags.items():
        if name not in state.types or lag.position > (here.position or 0):
            yield f"type {name} lags at {lag.position} without a reason"


def _type_faults(table: ExportTable, of_type: TypeFacts) -> Iterator[str]:
    yield from of_type.faults()
    yield from unnamed_files(table, of_type)


# values


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
