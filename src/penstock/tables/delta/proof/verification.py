"""What `verify` proves of a single Delta table."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Proof
from penstock.proof.frame import Provable, prove
from penstock.proof.invariants import check_rows, check_slices, check_totals, spans
from penstock.proof.offsets.verdicts import Leave
from penstock.proof.sources import Depth, Sources, Subject, TypeFiles
from penstock.tables.delta.facts import TableFacts, read_table
from penstock.tables.delta.proof.files import TableFiles
from penstock.tables.delta.proof.values import row_values


def prove_table(job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    files = TableFiles.of(job, facts)
    table = Provable(
        version=facts.version,
        states=facts.states,
        subject=_subject(facts),
        sources=Sources(
            storage=facts.table.storage(),
            types=[TypeFiles(files.data.files)],
            quarantine_storage=files.quarantine.storage,
            quarantine_files=files.quarantine.files,
            columns=files.columns,
        ),
        own_checks=lambda _: (
            check_totals(facts.states),
            check_slices(facts.states, facts.committed.slices),
            check_rows(files.counts(facts), files.faults(facts)),
        ),
        values=lambda: row_values(job, facts.table, files.data.files),
    )
    return prove(job, depth, open_log, table)


def _subject(facts: TableFacts) -> Subject:
    return Subject(
        spans={each: spans(each, state, facts.committed.slices.get(each, ())) for each, state in facts.states.items()},
        incarnations=facts.incarnations,
        leaves=dict.fromkeys(facts.states, Leave(in_both=facts.replay_unfinished)),
        replayed=frozenset(each for each, state in facts.states.items() if state.totals.replayed),
    )
