"""Listeners to the events of a job: log lines, and what changes events on the way to them."""

from __future__ import annotations

import sys
from typing import TextIO

import structlog

from penstock.events import AlertEnded, AlertRaised, Event, Listener, RulesMeasured


class Listeners:
    """Passes each event on to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def event(self, event: Event) -> None:
        for listener in self._listeners:
            listener.event(event)


class AlertChanges:
    """Turns what the rules measure, batch after batch, into two events for people: an alert raised, an alert ended."""

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
        getattr(self._logger, event.level)(event.name, **event.facts())
