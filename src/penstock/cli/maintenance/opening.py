"""What `compact` and `vacuum` share: the job's table, opened without Spark."""

from __future__ import annotations

import os

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.failpoints import ENVIRONMENT_NAME, armed
from penstock.job.spec import TableSpec
from penstock.lake.delta.library import MissingTableError
from penstock.lake.delta.table import Table, open_table


def environment() -> Environment:
    """Of a process that a fault test may have armed."""
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""))
    return Environment() if failpoint is None else Environment(reach=failpoint.reach)


def existing_table(spec: TableSpec, job: str, environment: Environment) -> Table:
    """The job's table; one that is missing is the user's to create."""
    try:
        return open_table(spec, job, environment)
    except MissingTableError as error:
        raise UserError(error.primary, detail=error.detail, hint="`penstock run` creates it") from error
