"""Vacuum of an export: delete what lies in the folders of its logs and no commit can name any more (RULES C7).

The proof is in the name: a slice's start below the position of its type, a version that the type's log has passed, a
replay run that is over. Names that are not ours stay (docs/protocol.md, "Compaction and vacuum").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.flow.write.names import ReplayedName
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import Kept as KeptFile
from penstock.lake.delta.vacuum import ListedTable, by_end, by_run, data_rules
from penstock.lake.maintenance.leftovers import (
    CanGo,
    Classified,
    NameRules,
    Stays,
    Verdict,
    classify_all,
    delete_dead,
)
from penstock.lake.maintenance.reports import VacuumReport
from penstock.lake.storage import Entry
from penstock.logs.log import Partition
from penstock.tables.export.export import ExportTable
from penstock.tables.export.finishing import PROBE
from penstock.tables.quarantine.replay import run_number
from penstock.tables.quarantine.table import Listings, listed_marks, open_quarantine, quarantine_rules


class Dead(CanGo):
    PROBE = "left by a probe of the folder"


class Kept(Stays):
    PENDING = "committed, not yet in its place"
    YOUNG = "a probe of a short while ago"


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
            found += _type_folders(table, name, log)
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


def _type_folders(table: ExportTable, name: str, log: Table) -> list[Classified]:
    """The folders in which files of a type are staged or probed, listed before its log is read."""
    logs, environment = table.logs, table.environment
    probed = name if logs.is_plain else f"{name}/_delta_log"
    probes = [entry for entry in logs.storage.list(probed) if entry.path.rsplit("/", 1)[-1].startswith(PROBE)]
    staged = list(logs.storage.list(f"{logs.places.staged}/{name}")) if logs.is_plain else []
    listed = None if logs.is_plain else ListedTable.of(log)
    environment.reach("vacuum_listed")
    log.refresh()
    now, age_seconds_max = environment.now(), table.job.limits.stage_age_seconds_max

    def classify_probe(entry: Entry) -> Verdict:
        # A probe is put and deleted at once: one that is old was left by a process that died in between.
        return Kept.YOUNG if now - entry.modified_at.timestamp() < age_seconds_max else Dead.PROBE

    url = logs.export.path
    folders = [classify_all(url, logs.storage, probes, classify_probe)]
    if listed is not None:
        return [*folders, listed.classify(data_rules)]
    rules = StagedRules.of(table, name, log)
    return [*folders, classify_all(url, logs.storage, staged, rules.classify)]


@dataclass(frozen=True, slots=True)
class StagedRules:
    """Which staged files of a plain type can go."""

    pending: frozenset[str]
    by_name: Callable[[str], Verdict | None]

    @classmethod
    def of(cls, table: ExportTable, name: str, log: Table) -> StagedRules:
        known, run_over = data_rules(log), run_number(table.logs.job_log)

        def of_replay(replayed: ReplayedName) -> Verdict:
            # A run begins once the one before it is finished, and every type has its rows or is fenced.
            done = run_number(log) >= int(replayed.run)
            return by_run(replayed, int(replayed.run) if done else run_over - 1)

        rules = NameRules(known.of_slice, known.of_output, of_replay)
        pending = frozenset(table.finishing.source_of(name, file) for file in log.active_files())
        return cls(pending, rules.classify)

    def classify(self, entry: Entry) -> Verdict:
        if entry.path in self.pending:
            return Kept.PENDING
        return self.by_name(entry.path) or KeptFile.UNKNOWN
