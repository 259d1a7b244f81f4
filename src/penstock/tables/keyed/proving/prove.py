"""What `verify` proves of a keyed table: its totals and slices, its files and keys, and what the log gives."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.files import table_source
from penstock.proof.findings import NO_TABLE, Check, Proof, conclude
from penstock.proof.frame import prove
from penstock.proof.log import LogFacts
from penstock.proof.subject import Depth
from penstock.tables.keyed.proving.places import Evidence
from penstock.tables.keyed.proving.refold import check_records
from penstock.tables.keyed.proving.stored import (
    bucket_faults,
    content_faults,
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
    evidence = Evidence(facts.subject(job), facts, job.table, tombstones)
    tables = [table for table in (facts.table, tombstones) if table is not None]
    unreadable = [fault for table in tables for fault in table_source(table, None).faults]
    unreadable += evidence.subject.quarantine.faults
    rows = _check_rows(evidence, unreadable, [fault for table in tables for fault in foreign_faults(table)])

    def log_checks(log: Log, said: LogFacts) -> Iterator[Check]:
        if depth.deep and not unreadable:
            yield check_records(evidence, log, said, with_values=depth.values is not None)

    return prove(evidence.subject, depth, open_log, [rows], log_checks)


def _check_rows(evidence: Evidence, unreadable: list[str], foreign: list[str]) -> Check:
    """Every file is as it was committed by Penstock, sorted and within its statistics, and no key is there twice."""
    facts, quarantine = evidence.facts, evidence.subject.quarantine
    faults = [*unreadable, *foreign, *tombstones_faults(evidence.spec, facts.table, evidence.tombstones)]
    if not unreadable:
        faults += _content_faults(evidence.spec, facts.table, evidence.tombstones)
    rows = sum(file.rows or 0 for file in facts.table.active_files())
    bad, held = evidence.subject.quarantined, quarantine.rows + quarantine.pending
    if held != bad and not facts.replay_unfinished:
        faults.append(f"the quarantine has {held} rows, {bad} are counted")
    warnings = [f"{quarantine.pending} quarantined rows wait to be appended"] if quarantine.pending else []
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
