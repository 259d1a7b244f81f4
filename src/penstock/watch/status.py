"""How a job stands, whatever its kind of table."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.status.model import AlertKind as AlertKind
from penstock.status.model import JobStatus as JobStatus
from penstock.tables.registry import kind_of


def status(job: JobSpec, now: Callable[[], float] = time.time, open_log: OpenLog = open_log_of) -> JobStatus:
    """Ask table and log how the job stands; a log that does not answer leaves the table's side."""
    return kind_of(job).status(job, open_log, now)
