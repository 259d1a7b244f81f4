"""Vacuum of a job's Delta table and of its quarantine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.lake.delta.keys import position_key, quarantine_key
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import ListedTable, data_rules, writing_jobs
from penstock.lake.maintenance.leftovers import delete_dead
from penstock.lake.maintenance.reports import VacuumReport
from penstock.logs.log import Partition
from penstock.tables.quarantine.leftovers import Owner, quarantine_rules
from penstock.tables.quarantine.life import life_of


def vacuum(
    table: Table, quarantine: Table | None = None, *, dry_run: bool = False, retention_seconds: float | None = None
) -> VacuumReport:
    """Delete dead files; `retention_seconds` takes the place of what the tables themselves say."""
    data = ListedTable.of(table, retention_seconds)
    bad = None if quarantine is None else ListedTable.of(quarantine, retention_seconds)
    table.environment.reach("vacuum_listed")
    table.refresh()
    jobs = writing_jobs(table)
    found = [data.classify(data_rules(table, jobs))]
    if bad is not None:
        bad.table.refresh()
        found.append(bad.classify(quarantine_rules(bad.table, [_owner(table, each) for each in jobs])))
    return delete_dead(found, table.environment.reach, dry_run=dry_run)


def _owner(table: Table, job: str) -> Owner:
    def number(key: Callable[[str, Partition], str], partition: Partition) -> int | None:
        return table.transaction(key(job, partition))

    return Owner(job, life_of(table), partial(number, position_key), partial(number, quarantine_key))
