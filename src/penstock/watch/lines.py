"""Events as JSON lines: constant event text plus fields, for everything that is not a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

import structlog

WARNINGS = frozenset(
    {
        "alert raised",
        "claim lost",
        "coordination interrupted",
        "day marker failed",
        "fields left out",
        "foreign record",
        "left without saying so",
        "messages given up",
        "mirror failed",
        "mirror refused",
        "no topic matches",
        "records vanished",
        "retention not known",
        "range not reported",
        "range not returned",
        "record isolated",
        "retrying",
        "slice dropped",
        "slice refused",
        "table behind its claim",
    }
)
ERRORS = frozenset({"job failed", "job crashed", "type cannot be written", "type stopped by a gap"})


class JsonLines:
    """Writes each event of a job as one line."""

    def __init__(self, job: str, stream: TextIO = sys.stdout) -> None:
        self._logger = structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(default=str),
            ],
            job=job,
        )

    def event(self, name: str, **fields: object) -> None:
        if name in ERRORS:
            self._logger.error(name, **fields)
        elif name in WARNINGS:
            self._logger.warning(name, **fields)
        else:
            self._logger.info(name, **fields)
