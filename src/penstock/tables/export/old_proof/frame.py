"""The frame of a verification, the same for every kind of table (I2, I3).

The order: what the table says of itself (totals, slices, rows), then what its files hold (offsets), then the log
(bounds, records), then values. Nothing is written. A job may run meanwhile: one version of the table is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from penstock.job.spec import JobSpec
from penstock.logs.log import Bounds, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Proof, Unproven, conclude
from penstock.proof.subject import Depth, Sample
from penstock.tables.export.old_proof.invariants import States, check_log, partition_facts
from penstock.tables.export.old_proof.offsets.reconcile import Reconciliation
from penstock.tables.export.old_proof.sources import Sources, Subject, read_log, with_epochs
from penstock.tables.export.old_proof.values.compare import check_values
from penstock.tables.export.old_proof.values.rows import RowValues, ValueSources


@dataclass(frozen=True, slots=True)
class Provable:
    """One version of a table, as its room gives it to be checked."""

    version: int
    states: States
    subject: Subject
    sources: Sources
    """Without the log, which the frame opens."""
    own_checks: Callable[[Reconciliation], Iterable[Check]]
    """Totals, slices and rows: what the table says of itself. The offsets, read before, tell which rows count."""
    values: Callable[[], RowValues | Unproven]
    """How to write its rows once more, or why that cannot be done."""


def prove(job: JobSpec, depth: Depth, open_log: OpenLog, table: Provable) -> Proof:
    """Check a table against itself and its log."""
    incarnations = table.subject.incarnations
    with closing(open_log(job)) as log:
        facts = with_epochs(read_log(log, incarnations), table.states, log)
        sources = replace(table.sources, log=log, log_bounds=facts.bounds if depth.deep else {})
        offsets = Reconciliation.of(job, table.subject, sources, depth)
        values, by_values = None, False
        if depth.values is not None:
            values, by_values = _check_values(job, table, log, facts.bounds, depth.values)
        checks = [
            *table.own_checks(offsets),
            offsets.check_offsets(by_values),
            check_log(table.states, incarnations.fingerprints, facts),
            *([offsets.check_records()] if depth.deep else []),
            *([] if values is None else [values]),
        ]
    return Proof(table.version, tuple(checks), partition_facts(table.states, facts))


def _check_values(
    job: JobSpec, table: Provable, log: Log, bounds: Mapping[Partition, Bounds], sample: Sample
) -> tuple[Check, bool]:
    """The values, and whether they prove the offsets of rows that do not tell them."""
    rows = table.values()
    if isinstance(rows, Unproven):
        return conclude("values", "not compared", False, unproven=[rows], partitions=bounds), False
    found = check_values(ValueSources(job.name, table.subject, table.sources, log, bounds, sample, rows))
    return found, found.ok and rows.strict and table.sources.columns is None and sample.records is None
