"""What `verify` proves of a single Delta table."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import UserError
from penstock.flow.write.names import parse_replayed_name, parse_staged_name
from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof
from penstock.proof.footers import Examined, examine
from penstock.proof.frame import Provable, prove
from penstock.proof.invariants import RowCounts, Slices, check_rows, check_slices, check_totals, spans
from penstock.proof.offsets.owners import kept_columns
from penstock.proof.offsets.table import DataFile, data_files
from penstock.proof.offsets.verdicts import Leave
from penstock.proof.quarantine import QuarantineFiles, named_now
from penstock.proof.sources import Depth, Sources, Subject, TypeFiles
from penstock.tables.delta.facts import TableFacts, read_table
from penstock.tables.delta.proof.values import row_values
from penstock.tables.quarantine.life import life_of


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    return NO_TABLE if facts is None else prove(job, depth, open_log, _provable(job, facts))


def _provable(job: JobSpec, facts: TableFacts) -> Provable:
    """The table with its files and those of its quarantine, each looked at."""
    storage, columns = facts.table.storage(), kept_columns(job, facts.table.schema)
    data = examine(storage, data_files(facts.table), columns, named_now(facts.table))
    quarantine = QuarantineFiles.of(job, facts.quarantine, facts.pending, life_of(facts.table))
    return Provable(
        version=facts.version,
        states=facts.states,
        subject=_subject(facts),
        sources=Sources(storage, [TypeFiles(data.files)], quarantine.storage, quarantine.files, columns),
        own_checks=lambda _: (
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            _check_rows(facts, data, quarantine),
        ),
        values=lambda: row_values(job, facts.table, data.files),
    )


def _subject(facts: TableFacts) -> Subject:
    return Subject(
        spans={each: spans(each, state, facts.committed.slices.get(each, ())) for each, state in facts.states.items()},
        incarnations=facts.incarnations,
        leaves=dict.fromkeys(facts.states, Leave(in_both=facts.replay_unfinished)),
        replayed=frozenset(each for each, state in facts.states.items() if state.totals.replayed),
    )


def _check_rows(facts: TableFacts, data: Examined, quarantine: QuarantineFiles) -> Check:
    counts = RowCounts(
        table=data.rows,
        written=facts.incarnations.rows_written,
        quarantine=quarantine.taken.rows,
        quarantined=sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values()),
        pending=quarantine.pending.rows,
        replay_unfinished=facts.replay_unfinished,
    )
    of_slices = _slice_faults(data.files, facts.committed.slices)
    return check_rows(counts, (*data.faults, *quarantine.faults, *of_slices))


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
