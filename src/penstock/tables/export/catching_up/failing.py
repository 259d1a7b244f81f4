"""The types that could not be written lately: a process remembers them so as not to try them in every batch."""

from __future__ import annotations


class FailingTypes:
    """A cache: losing it costs one more try. Time is passed in."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._retry_at: dict[str, float] = {}
        self._costly: set[str] = set()
        self.reasons: dict[str, str] = {}

    def note(self, name: str, reason: str, now: float, costly: bool = False) -> bool:
        """Leave a type alone for a while; returns whether that is news.

        `costly`: only reading its records again can tell whether it is well, a look at its folder cannot.
        """
        (self._costly.add if costly else self._costly.discard)(name)
        news = self.reasons.get(name) != reason
        self.reasons[name] = reason
        self._retry_at[name] = now + self._retry_seconds
        return news

    def forgive(self, name: str) -> None:
        """Let a type be tried again at once."""
        self._retry_at.pop(name, None)

    def may_look(self, name: str, now: float, in_haste: bool) -> bool:
        """Whether to look at a type now: after its rest, or before in a run that wants to end, if a look is cheap."""
        return name not in self.resting(now) or (in_haste and name not in self._costly)

    def resting(self, now: float) -> frozenset[str]:
        return frozenset(name for name, at in self._retry_at.items() if now < at)

    def recovered(self, name: str) -> bool:
        """A type was written: forget that it failed; returns whether it had."""
        self._retry_at.pop(name, None)
        return self.reasons.pop(name, None) is not None
