"""Vacuum of a rollup: partials, closed windows and quarantine."""

from __future__ import annotations

from penstock.environment import Environment
from penstock.job.spec import JobSpec
from penstock.lake.maintenance.reports import VacuumReport
from penstock.tables.rollup.closing.windows_table import windows_rules
from penstock.tables.rollup.opening import existing_tables
from penstock.tables.rollup.spec import RollupSpec
from penstock.tables.single.vacuum import vacuum as vacuum_tables


def vacuum(job: JobSpec[RollupSpec], environment: Environment, *, dry_run: bool) -> VacuumReport:
    """Delete files that no version names and no commit can name any more."""
    tables = existing_tables(job, environment)
    beside = [(tables.windows, windows_rules)]
    return vacuum_tables(tables.partials, dry_run=dry_run, beside=beside)
