"""Events as JSON lines: constant event text plus fields, for everything that is not a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

import structlog

from penstock.events import Event, Level


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

    def event(self, event: Event) -> None:
        write = {Level.ERROR: self._logger.error, Level.WARNING: self._logger.warning}.get(
            event.level, self._logger.info
        )
        write(event.name, **event.facts())
