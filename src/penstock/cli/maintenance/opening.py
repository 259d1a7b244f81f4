"""What the commands of maintenance share."""

from __future__ import annotations

import os

from penstock.environment import Environment
from penstock.failpoints import ENVIRONMENT_NAME, armed


def environment() -> Environment:
    """Of a process that a fault test may have armed."""
    failpoint = armed(os.environ.get(ENVIRONMENT_NAME, ""))
    return Environment() if failpoint is None else Environment(reach=failpoint.reach)
