"""Vacuum of a job's Delta table and of its quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import ListedTable, data_rules, writing_jobs
from penstock.lake.maintenance.leftovers import NameRules, delete_dead
from penstock.lake.maintenance.reports import VacuumReport
from penstock.tables.quarantine.discard import Listings, listed_marks
from penstock.tables.quarantine.leftovers import quarantine_rules
from penstock.tables.quarantine.life import life_of

Beside = tuple[Table, Callable[[Table], NameRules]]
"""A further table of the job, with the rules for its files."""


def vacuum(
    table: Table,
    quarantine: Table | None = None,
    *,
    dry_run: bool = False,
    beside: Sequence[Beside] = (),
) -> VacuumReport:
    """Delete dead files."""
    data = ListedTable.of(table)
    others = [(ListedTable.of(other), rules) for other, rules in beside]
    bad = None if quarantine is None else ListedTable.of(quarantine)
    table.environment.reach("vacuum_listed")
    found = [data.classify(data_rules)]
    if bad is not None:
        numbers = table.transactions()
        listings = Listings(life_of(table), listed_marks(numbers))
        found.append(bad.classify(lambda each: quarantine_rules(each, writing_jobs(table), numbers, listings)))
    found += [listed.classify(rules) for listed, rules in others]
    return delete_dead(found, table.environment.reach, dry_run=dry_run)
