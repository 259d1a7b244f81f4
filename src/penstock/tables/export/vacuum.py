"""Vacuum of an export: delete what lies in the folders of its logs and no commit can name any more (RULES C7).

The proof is in the name: a slice's start below the position of its type, a version that the type's log has passed, a
replay run that is over. Names that are not ours stay (docs/protocol.md, "Compaction and vacuum").
"""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import PenstockError
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import (
    Classified,
    Kept,
    ListedTable,
    Verdict,
    by_end,
    classify_all,
    data_rules,
    delete_dead,
)
from penstock.lake.reports import VacuumReport
from penstock.lake.storage import Entry
from penstock.logs.log import Partition
from penstock.tables.export.export import ExportTable
from penstock.tables.quarantine.replay import run_number
from penstock.tables.quarantine.table import Listings, listed_marks, open_quarantine, quarantine_rules


def listings(table: ExportTable) -> Listings:
    """What the commits of all logs list for the quarantine."""
    logs = table.logs
    marks = dict(listed_marks(logs.job_log))
    for name, log in logs.type_logs():
        marks |= listed_marks(log, name)
    return Listings(logs.job_log.quarantine_url, marks, run_number(logs.job_log))


def vacuum(table: ExportTable, *, dry_run: bool = False) -> VacuumReport:
    """Delete the dead files of an export and of its quarantine; the job may run meanwhile.

    A type that cannot be looked at does not keep the others from it: it is named in the report.
    """
    logs, environment = table.logs, table.environment
    logs.job_log.refresh()
    failed: dict[str, str] = {}
    found: list[Classified] = []
    quarantine = open_quarantine(table.job, logs.job_log.quarantine_url, environment)
    listed_quarantine = None if quarantine is None else ListedTable.of(quarantine)
    for name, log in logs.type_logs():
        try:
            found.append(_type_folder(table, name, log))
        except PenstockError as error:
            failed[name] = error.primary
    failed |= logs.unreadable
    if listed_quarantine is not None and not failed:
        # Any log may still be the one that lists a file: all types of its partition must have passed it.
        marks, state = listings(table).marks, logs.state()

        def lowest(partition: Partition) -> int | None:
            return state.of(partition).position_of()

        found.append(listed_quarantine.classify(lambda opened: quarantine_rules(opened, marks, lowest, by_end)))
    report = delete_dead(found, environment.reach, dry_run=dry_run)
    return replace(report, failed=tuple(f"{name}: {reason}" for name, reason in sorted(failed.items())))


def _type_folder(table: ExportTable, name: str, log: Table) -> Classified:
    """The folder in which files of a type are staged, listed before its log is read."""
    logs, reach = table.logs, table.environment.reach
    if not logs.is_plain:
        listed = ListedTable.of(log)
        reach("vacuum_listed")
        return listed.classify(data_rules)
    staged = list(logs.storage.list(f"{logs.places.staged}/{name}"))
    reach("vacuum_listed")
    log.refresh()
    by_name = data_rules(log)
    pending = {table.finishing.source_of(name, file) for file in log.active_files()}

    def classify(entry: Entry) -> Verdict:
        return Kept.PENDING_RENAME if entry.path in pending else by_name.classify(entry.path)

    return classify_all(logs.export.path, logs.storage, staged, classify)
