"""Listeners to the events of a job: log lines, and changes of alerts."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from penstock.events import AlertEnded, AlertRaised, Event, Level, Listener, RulesMeasured


class Listeners:
    """Passes each event on to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def event(self, event: Event) -> None:
        for listener in self._listeners:
            listener.event(event)


class AlertChanges:
    """Turns the measurements of every round into two events: an alert was raised, an alert ended."""

    def __init__(self, inner: Listener) -> None:
        self._inner = inner
        self._raised: set[str] = set()

    def event(self, event: Event) -> None:
        if not isinstance(event, RulesMeasured):
            self._inner.event(event)
            return
        for rule, texts in event.alerts.items():
            if texts and rule not in self._raised:
                self._raised.add(rule)
                self._inner.event(AlertRaised(rule, "; ".join(texts)))
            elif not texts and rule in self._raised:
                self._raised.discard(rule)
                self._inner.event(AlertEnded(rule))


class LogRecords:
    """Logs each event of a job by Python's `logging`, under `penstock.jobs.NAME`."""

    def __init__(self, job: str) -> None:
        self._logger = logging.getLogger(f"penstock.jobs.{job}")

    def event(self, event: Event) -> None:
        if event.level is not Level.DEBUG:
            level = logging.getLevelNamesMapping()[event.level.upper()]
            self._logger.log(level, "%s %s", event.name, event.facts())


class LogLines:
    """Writes each event of a job as one line of JSON."""

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
        if event.level is not Level.DEBUG:
            getattr(self._logger, event.level)(event.name, **event.facts())
