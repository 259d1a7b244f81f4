"""Several ears for one job: the log lines, the terminal and the metrics hear the same events."""

from __future__ import annotations

from penstock.events import RULES_EVENT, Listener


class Listeners:
    """Passes each event on to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def event(self, name: str, **fields: object) -> None:
        for each in self._listeners:
            each.event(name, **fields)


class AlertChanges:
    """Turns what the rules measure, batch after batch, into two events for people: an alert raised, an alert ended."""

    def __init__(self, inner: Listener) -> None:
        self._inner = inner
        self._raised: set[str] = set()

    def event(self, name: str, **fields: object) -> None:
        if name != RULES_EVENT:
            self._inner.event(name, **fields)
            return
        alerts = fields.get("alerts")
        for rule, texts in alerts.items() if isinstance(alerts, dict) else ():
            if texts and rule not in self._raised:
                self._raised.add(rule)
                self._inner.event("alert raised", rule=rule, reason="; ".join(texts))
            elif not texts and rule in self._raised:
                self._raised.discard(rule)
                self._inner.event("alert ended", rule=rule)
