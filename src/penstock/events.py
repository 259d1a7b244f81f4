"""What a running job tells: named events with fields, to whoever listens."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Hears what happens in a job. Event names are constant; fields carry the facts."""

    def event(self, name: str, **fields: object) -> None: ...


class NullListener:
    """Nobody listens."""

    def event(self, name: str, **fields: object) -> None:
        return
