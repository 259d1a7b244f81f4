"""Vacuum of a rollup: partials, closed windows and quarantine."""

from __future__ import annotations

from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.lake.delta.vacuum import ListedTable, data_rules, writing_jobs
from penstock.lake.maintenance.leftovers import delete_dead
from penstock.lake.maintenance.reports import VacuumReport
from penstock.tables.quarantine.discard import Listings, listed_marks
from penstock.tables.quarantine.leftovers import quarantine_rules
from penstock.tables.quarantine.life import life_of
from penstock.tables.quarantine.table import open_quarantine
from penstock.tables.rollup.closing.windows_table import windows_rules
from penstock.tables.rollup.opening import existing_tables
from penstock.tables.rollup.spec import RollupSpec, partials_job


def vacuum(job: JobSpec[RollupSpec], environment: Environment, *, dry_run: bool) -> VacuumReport:
    """Delete files that no version names and no commit can name any more."""
    tables = existing_tables(job, environment)
    quarantine = open_quarantine(partials_job(job), environment)
    partials, windows = ListedTable.of(tables.partials), ListedTable.of(tables.windows)
    bad = None if quarantine is None else ListedTable.of(quarantine)
    environment.reach("vacuum_listed")
    found = [partials.classify(data_rules), windows.classify(windows_rules)]
    if bad is not None:
        numbers = tables.partials.transactions()
        listings = Listings(life_of(tables.partials), listed_marks(numbers))
        jobs = writing_jobs(tables.partials)
        found.append(bad.classify(lambda each: quarantine_rules(each, jobs, numbers, listings)))
    return delete_dead(found, environment.reach, dry_run=dry_run)
