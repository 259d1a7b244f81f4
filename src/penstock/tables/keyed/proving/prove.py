"""What `verify` proves of a keyed table: its totals and slices, its files and keys, and what the log gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, conclude
from penstock.proof.footers import QuarantineFiles, examine, named_now
from penstock.proof.invariants import LogFacts, check_log, check_slices, check_totals, partition_facts
from penstock.proof.offsets.table import data_files
from penstock.proof.sources import Depth, read_log, with_epochs
from penstock.tables.keyed.files import read_active
from penstock.tables.keyed.proving.refold import check_records
from penstock.tables.keyed.proving.stored import bucket_faults, stored_store
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.quarantine.life import life_of
from penstock.tables.single.facts import TableFacts, read_table

FAULTS_SHOWN_MAX = 5


def prove_keyed(job: JobSpec[KeyedSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check one version of the table against itself and its log; nothing is written."""
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    quarantine = QuarantineFiles.of(job, facts.quarantine, facts.pending, life_of(facts.table))
    with closing(open_log(job)) as log:
        said = with_epochs(read_log(log, facts.incarnations), facts.states, log)
        checks = tuple(_checks(job, facts, quarantine, log, said, depth))
    return Proof(facts.table.version, checks, partition_facts(facts.states, said))


def _checks(
    job: JobSpec[KeyedSpec], facts: TableFacts, quarantine: QuarantineFiles, log: Log, said: LogFacts, depth: Depth
) -> Iterator[Check]:
    yield check_totals(facts.states)
    yield check_slices(facts.states, facts.slices)
    yield _check_rows(job, facts, quarantine)
    yield check_log(facts.states, facts.incarnations.fingerprints, said)
    if depth.deep:
        yield check_records(job, facts, quarantine, log, said, with_values=depth.values is not None)


def _check_rows(job: JobSpec[KeyedSpec], facts: TableFacts, quarantine: QuarantineFiles) -> Check:
    """Every file is as it was committed, sorted and within its statistics, and no key is there twice."""
    table = facts.table
    seen = examine(table.storage(), data_files(table), None, named_now(table))
    faults = [*seen.faults, *quarantine.faults]
    rows = 0
    if not seen.faults:
        active, store = read_active(table, job.table.layout), stored_store(job.table, table.schema)
        rows = active.rows
        strange = [each for each in active.by_bucket if not job.table.layout.has_bucket(each)]
        for bucket in sorted({*active.by_bucket, *active.commits}.difference(strange)):
            faults += bucket_faults(store, bucket, active.of(bucket), table.transactions())
        faults += [f"{len(active.of(each))} files are in bucket {each}, which there is not" for each in strange]
    bad = sum(each.totals.quarantined - each.totals.replayed for each in facts.states.values())
    held = quarantine.taken.rows + quarantine.pending.rows
    if held != bad and not facts.replay_unfinished:
        faults.append(f"the quarantine has {held} rows, {bad} are counted")
    told = [f"{quarantine.pending.rows} quarantined rows wait to be appended"] if quarantine.pending.rows else []
    if facts.replay_unfinished:
        told.append("a replay of the quarantine is unfinished: the next run finishes it")
    more = f" and {len(faults) - FAULTS_SHOWN_MAX} more" if len(faults) > FAULTS_SHOWN_MAX else ""
    detail = "; ".join(faults[:FAULTS_SHOWN_MAX]) + more
    whole = f"{rows} rows, each key once, in files that are sorted and as their names tell; {held} in quarantine"
    return conclude("rows", detail or whole, bool(faults), warnings=told, facts={"rows": rows, "quarantine": held})
