"""The status of a job with any kind of table."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.job.spec import JobSpec
from penstock.logs.registry import OpenLog
from penstock.logs.registry import open_log as open_log_of
from penstock.reporting.model import AlertKind as AlertKind
from penstock.reporting.model import JobStatus as JobStatus
from penstock.tables.registry import kind_of


def status(job: JobSpec, now: Callable[[], float] = time.time, open_log: OpenLog = open_log_of) -> JobStatus:
    """Read the status from table and log; if the log does not answer, the status has the table's part."""
    return kind_of(job).status(job, open_log, now)
