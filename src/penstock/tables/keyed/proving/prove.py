"""What `verify` proves of a keyed table: its totals and slices, its files and keys, and what the log gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof, conclude
from penstock.proof.footers import QuarantineFiles
from penstock.proof.invariants import check_log, check_slices, check_totals, partition_facts
from penstock.proof.sources import Depth, read_log, with_epochs
from penstock.tables.keyed.proving.places import Evidence
from penstock.tables.keyed.proving.refold import check_records
from penstock.tables.keyed.proving.stored import (
    bucket_faults,
    content_faults,
    footer_faults,
    foreign_faults,
    stored_store,
)
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, decode_layout
from penstock.tables.keyed.tombstones import files_by_bucket, find_tombstones, tombstones_faults
from penstock.tables.single.facts import read_table

FAULTS_SHOWN_MAX = 5


def prove_keyed(job: JobSpec[KeyedSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check one version of the table against itself and its log; nothing is written."""
    if depth.every_entry and depth.values is None:
        raise UserError(f"the job {job.name} has no ledger", hint="--all goes with --values, or with a ledger")
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    # A table of an earlier format has not the numbers that tell.
    decode_layout(facts.table.handle.metadata().configuration.get(LAYOUT_PROPERTY) or "")
    tombstones = find_tombstones(job.table, job.name, facts.table.environment)
    quarantine = QuarantineFiles.of(job, facts.table.quarantine_url, facts.quarantine, facts.pending)
    with closing(open_log(job)) as log:
        said = with_epochs(read_log(log, facts.incarnations), facts.states, log)
        checks = tuple(_checks(Evidence(job, facts, tombstones, quarantine, log, said), depth))
    return Proof(facts.table.version, checks, partition_facts(facts.states, said))


def _checks(evidence: Evidence, depth: Depth) -> Iterator[Check]:
    facts = evidence.facts
    yield check_totals(facts.states)
    yield check_slices(facts.states, facts.slices)
    tables = [table for table in (facts.table, evidence.tombstones) if table is not None]
    unreadable = [*(fault for table in tables for fault in footer_faults(table)), *evidence.quarantine.faults]
    yield _check_rows(evidence, unreadable, [fault for table in tables for fault in foreign_faults(table)])
    yield check_log(facts.states, facts.incarnations.fingerprints, evidence.said)
    if depth.deep and not unreadable:
        yield check_records(evidence, with_values=depth.values is not None)


def _check_rows(evidence: Evidence, unreadable: list[str], foreign: list[str]) -> Check:
    """Every file is as it was committed by Penstock, sorted and within its statistics, and no key is there twice."""
    facts, quarantine = evidence.facts, evidence.quarantine
    faults = [*unreadable, *foreign, *tombstones_faults(evidence.job.table, facts.table, evidence.tombstones)]
    if not unreadable:
        faults += _content_faults(evidence.job.table, facts.table, evidence.tombstones)
    rows = sum(file.rows or 0 for file in facts.table.active_files())
    bad = sum(state.totals.quarantined - state.totals.replayed for state in facts.states.values())
    held = quarantine.taken.rows + quarantine.pending.rows
    if held != bad and not facts.replay_unfinished:
        faults.append(f"the quarantine has {held} rows, {bad} are counted")
    warnings = [f"{quarantine.pending.rows} quarantined rows wait to be appended"] if quarantine.pending.rows else []
    if facts.replay_unfinished:
        warnings.append("a replay of the quarantine is unfinished: the next run finishes it")
    more = f" and {len(faults) - FAULTS_SHOWN_MAX} more" if len(faults) > FAULTS_SHOWN_MAX else ""
    detail = "; ".join(faults[:FAULTS_SHOWN_MAX]) + more
    whole = f"{rows} rows, each key once, in files that are sorted and as their names tell; {held} in quarantine"
    return conclude("rows", detail or whole, bool(faults), warnings=warnings, facts={"rows": rows, "quarantine": held})


def _content_faults(spec: KeyedSpec, data: Table, tombstones: Table | None) -> Iterator[str]:
    store = stored_store(spec, data)
    for bucket, files in files_by_bucket(data.active_files(tuple(store.schema.names))).items():
        yield from bucket_faults(store, bucket, files)
    if tombstones is not None:
        store = stored_store(spec, tombstones)
        for file in tombstones.active_files():
            yield from (f"tombstones: {file.path}: {fault}" for fault in content_faults(file, store.read(file.path)))
