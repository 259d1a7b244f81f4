"""What the commands of maintenance share."""

from __future__ import annotations

from penstock.environment import Environment
from penstock.tables.registry import failpoint


def environment() -> Environment:
    """Of a process that a fault test may have armed."""
    armed = failpoint()
    return Environment() if armed is None else Environment(reach=armed.reach)
