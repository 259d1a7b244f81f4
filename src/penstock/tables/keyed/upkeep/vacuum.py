"""Vacuum of a keyed table, of its quarantine and of its tombstones."""

from __future__ import annotations

from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import by_version, data_rules
from penstock.lake.maintenance.leftovers import NameRules
from penstock.lake.maintenance.reports import VacuumReport
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.tombstones import find_tombstones
from penstock.tables.single.vacuum import vacuum


def vacuum_keyed(job: JobSpec[KeyedSpec], table: Table, dry_run: bool = False) -> VacuumReport:
    """Delete dead files: also runs whose slices are behind the position, and tombstones that no commit can name."""
    tombstones = find_tombstones(job.table, job.name, table.environment)

    def rules(beside: Table) -> NameRules:
        """They are committed before the batch that they belong to, so its positions decide about them too."""
        of_data = data_rules(table)
        return NameRules(of_data.of_slice, by_version(beside), of_data.of_replay)

    beside = () if tombstones is None else ((tombstones, rules),)
    return vacuum(table, dry_run=dry_run, beside=beside)
