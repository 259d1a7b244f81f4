"""Vacuum of a job's Delta table and of its quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.lake.delta.keys import position_key
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import Table, find_table
from penstock.lake.delta.vacuum import ListedTable, NameRules, data_rules, delete_dead
from penstock.lake.reports import VacuumReport
from penstock.quarantine.table import listed_marks, quarantine_rules

Beside = tuple[Table, Callable[[Table], NameRules]]
"""A further table of the job, with the rules for its files."""


def vacuum(table: Table, *, dry_run: bool = False, beside: Sequence[Beside] = ()) -> VacuumReport:
    """Delete dead files."""
    place = TablePlace(path=table.quarantine_url, storage_options=table.spec.storage_options)
    quarantine = find_table(place, table.job, table.environment)
    further = [*beside] if quarantine is None else [(quarantine, _rules_from(table)), *beside]
    data = ListedTable.of(table)
    others = [(ListedTable.of(other), rules) for other, rules in further]
    table.environment.at_step("vacuum_listed")
    result = [data.classify(data_rules), *(listed.classify(rules) for listed, rules in others)]
    return delete_dead(result, table.environment.at_step, dry_run=dry_run)


def _rules_from(data: Table) -> Callable[[Table], NameRules]:
    """The rules for the quarantine of a table; they go by the version of the table that was loaded last."""
    return lambda quarantine: quarantine_rules(
        quarantine, listed_marks(data), lambda partition: data.transaction(position_key(data.job, partition))
    )
