"""Vacuum of a job's Delta table and of its quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.lake.delta.keys import position_key
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog, find_table
from penstock.lake.delta.vacuum import ListedTable, NameRules, data_rules, delete_dead
from penstock.lake.reports import VacuumReport
from penstock.quarantine.table import listed_marks, quarantine_rules

TableRules = tuple[DeltaLog, Callable[[DeltaLog], NameRules]]
"""A further table of the job, with the rules for its files."""


def vacuum(table: DeltaLog, *, dry_run: bool = False, alongside: Sequence[TableRules] = ()) -> VacuumReport:
    """Delete dead files of a table, of its quarantine, and of further tables."""
    place = TablePlace(path=table.quarantine_url, storage_options=table.spec.storage_options)
    quarantine = find_table(place, table.job, table.environment)

    def of_quarantine(opened: DeltaLog) -> NameRules:
        """They follow the version of the job's table that was loaded last."""
        positions = table.transactions()
        return quarantine_rules(
            opened, listed_marks(table), lambda place: positions.get(position_key(table.job, place))
        )

    further = [*alongside] if quarantine is None else [(quarantine, of_quarantine), *alongside]
    listed = [(ListedTable.of(other), rules) for other, rules in [(table, data_rules), *further]]
    table.environment.at_step("vacuum_listed")
    return delete_dead([folder.classify(rules) for folder, rules in listed], table.environment.at_step, dry_run=dry_run)
