"""What a running job tells: named events with fields, to whoever listens."""

from __future__ import annotations

from typing import Protocol

RULES_EVENT = "rules measured"
"""What a table's monitoring rules measure; `alerts` has, by rule, the texts of what does not hold. Told every round."""


class Listener(Protocol):
    """Hears what happens in a job. Event names are constant; fields carry the facts."""

    def event(self, name: str, **fields: object) -> None: ...


class NullListener:
    """Nobody listens."""

    def event(self, name: str, **fields: object) -> None:
        return
