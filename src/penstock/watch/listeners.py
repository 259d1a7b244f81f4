"""Several ears for one job: the log lines, the terminal and the metrics hear the same events."""

from __future__ import annotations

from penstock.events import AlertEnded, AlertRaised, Event, Listener, RulesMeasured


class Listeners:
    """Passes each event on to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def event(self, event: Event) -> None:
        for each in self._listeners:
            each.event(event)


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
