"""What `verify` proves of a single Delta table: its facts, its files, and the values of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.errors import UserError
from penstock.flow.columns.fitting import folded
from penstock.flow.columns.partition_values import partition_value
from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.names import parse_replayed_name, parse_staged_name
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.storage import open_storage
from penstock.logs.log import Batch, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, VALUES_OF_SQL, Check, Proof, Unproven
from penstock.proof.footers import Examined, QuarantineFiles, examine, named_now
from penstock.proof.frame import Provable, prove
from penstock.proof.invariants import RowCounts, Slices, check_rows, check_slices, check_totals, spans
from penstock.proof.offsets.owners import kept_columns
from penstock.proof.offsets.table import DataFile, data_files
from penstock.proof.offsets.verdicts import Leave
from penstock.proof.sources import Depth, Sources, Subject, TypeFiles
from penstock.proof.values.files import BATCH_ID, ValueFile, data_file
from penstock.proof.values.rows import RowValues
from penstock.tables.delta.misfiled import Misfiled, find_misfiled
from penstock.tables.single.facts import TableFacts, read_table


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    return NO_TABLE if facts is None else prove(job, depth, open_log, _provable(job, facts))


def _provable(job: JobSpec, facts: TableFacts) -> Provable:
    """The table with its files and those of its quarantine, each looked at."""
    storage, columns = facts.table.storage(), kept_columns(job, facts.table.schema)
    data = examine(storage, data_files(facts.table), columns, named_now(facts.table))
    misfiled = find_misfiled(job, facts.table, data.files, columns, facts.incarnations)
    quarantine = QuarantineFiles.of(job, facts.table.quarantine_url, facts.quarantine, facts.pending)
    return Provable(
        version=facts.table.version,
        states=facts.states,
        subject=_subject(job, facts),
        sources=Sources(storage, [TypeFiles(data.files)], quarantine.storage, quarantine.files, columns),
        own_checks=lambda _: (
            check_totals(facts.states),
            check_slices(facts.states, facts.slices),
            _check_rows(facts, data, quarantine, misfiled),
        ),
        values=lambda: row_values(job, facts.table, data.files),
    )


def _subject(job: JobSpec, facts: TableFacts) -> Subject:
    return Subject(
        spans={each: spans(each, state, facts.slices.get(each, ())) for each, state in facts.states.items()},
        incarnations=facts.incarnations,
        leaves=dict.fromkeys(facts.states, Leave(in_both=facts.replay_unfinished)),
        replayed=frozenset(each for each, state in facts.states.items() if state.totals.replayed),
        filters_only_tombstones=job.sql is None or job.sql.where is None,
    )


def _check_rows(facts: TableFacts, data: Examined, quarantine: QuarantineFiles, misfiled: Sequence[Misfiled]) -> Check:
    counts = RowCounts(
        table=data.rows,
        written=facts.incarnations.rows_written,
        quarantine=quarantine.taken.rows,
        quarantined=sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values()),
        pending=quarantine.pending.rows,
        replay_unfinished=facts.replay_unfinished,
    )
    of_slices = _slice_faults(data.files, facts.slices)
    return check_rows(
        counts,
        (*data.faults, *quarantine.faults, *of_slices, *map(str, misfiled)),
        violations=[rows.first for rows in misfiled if rows.first is not None],
    )


def _slice_faults(files: Iterable[DataFile], slices: Slices) -> list[str]:
    """What is wrong with the rows of slices, as far as names of files tell of which slice their rows are.

    Compaction takes rows out of a slice's own files, so only without any do they have all of its rows.
    """
    rows: dict[tuple[str, int, int, int], int] = {}
    mixed = False
    for file in files:
        staged = parse_staged_name(file.path)
        if staged is not None:
            place = (staged.topic_id, staged.partition, staged.start, staged.end)
            rows[place] = rows.get(place, 0) + (file.rows or 0)
        elif parse_replayed_name(file.path) is None:
            mixed = True
    return [
        f"{partition} [{each.start}, {each.end}): {found} rows in its files, {each.totals.written} were written"
        for partition, committed in sorted(slices.items())
        for each in committed
        if (found := rows.get((partition.topic_id, partition.number, each.start, each.end), 0)) > each.totals.written
        or (found < each.totals.written and not mixed)
    ]


@dataclass(frozen=True, slots=True)
class TableRewriter:
    """The flow of a job with one table, without `sql:`, which needs Spark."""

    job: JobSpec
    target: pa.Schema
    partition_by: tuple[str, ...]

    def written(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> Iterator[ValueFile]:
        table, bad = folder / "table", folder / "quarantine"
        flow = flow_of(self.job, Batch(BATCH_ID, (piece,)), self.target, self.partition_by, str(bad))
        flow = replace(
            flow,
            table=replace(flow.table, table_url=str(table), storage_options={}),
            quarantine=replace(flow.quarantine, storage_options={}),
        )
        storage = open_storage(str(table), {})
        schema = _body_schema(self.target, self.partition_by)
        for report in fused_stage(flow)(records):
            shares = decode_report(report.column(0)[0].as_py()).shares
            for file in (file for named in shares.values() for share in named.values() for file in share.files):
                yield ValueFile(storage, data_file(file), schema, file.partition_values)


def row_values(job: JobSpec, table: Table, files: Sequence[DataFile]) -> RowValues | Unproven:
    """The rows of these files of the table, to be compared with the log."""
    if job.sql is not None:
        return VALUES_OF_SQL
    schema, partition_by, storage = table.schema, table.spec.partition_by, table.storage()
    body = _body_schema(schema, partition_by)
    # Columns that the next run adds have no values yet.
    there = {folded(name) for name in schema.names}
    job = replace(job, columns={name: column for name, column in job.columns.items() if folded(name) in there})
    return RowValues(
        files=[ValueFile(storage, each, body, _texts(each, schema, partition_by)) for each in files],
        rewriter=TableRewriter(job, schema, partition_by),
    )


def _body_schema(schema: pa.Schema, partition_by: Iterable[str]) -> pa.Schema:
    apart = set(partition_by)
    return pa.schema([each for each in schema if each.name not in apart])


def _texts(file: DataFile, schema: pa.Schema, partition_by: tuple[str, ...]) -> dict[str, str | None]:
    """The partition values of a file as the log of the table spells them."""
    return {
        name: partition_value(pa.scalar(file.partition_values.get(name), schema.field(name).type))
        for name in partition_by
    }
