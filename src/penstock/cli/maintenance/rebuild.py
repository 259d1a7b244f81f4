"""`penstock verify --rebuild`: make a lost commit log again from the files of a table."""

from __future__ import annotations

from contextlib import closing

from penstock.cli.maintenance.opening import environment, tell
from penstock.job.spec import JobSpec
from penstock.logs.registry import open_log
from penstock.tables.registry import kind_of


def rebuild(job: JobSpec, json: bool) -> bool:
    """Rebuild, and tell what came of it; whether there is a commit log now."""
    with closing(open_log(job)) as log:
        report = kind_of(job).rebuild(job, log, environment())
    tell(job.name, report, json)
    return report.ok
