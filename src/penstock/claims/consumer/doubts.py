"""Positions that the log says it does not have: believed once it has said so for a while. Pure.

A broker that comes back may name an end, for a moment, that its log has long passed. To believe one such answer would
stop the member, or send it back to records that are done.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.logs.log import Partition

ANSWERS_MIN = 4
"""How often the log must say the same, each time to another client."""
LASTING_INTERVALS = 3
"""For how many heartbeat intervals, at least."""
LASTING_SECONDS_MIN = 3.0


@dataclass(slots=True)
class _Doubt:
    token: int
    position: int
    since: float
    asked_at: float
    answers: int = 1


class Doubts:
    """What is doubted at the moment, per partition; another token or position is another doubt."""

    def __init__(self, interval_seconds: float) -> None:
        self._lasting_seconds = max(LASTING_SECONDS_MIN, LASTING_INTERVALS * interval_seconds)
        self._doubts: dict[Partition, _Doubt] = {}

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._doubts

    def waits(self, partition: Partition, now: float) -> bool:
        """Whether it is too early to ask again."""
        doubt = self._doubts.get(partition)
        return doubt is not None and now - doubt.asked_at < self._lasting_seconds / ANSWERS_MIN

    def outside(self, partition: Partition, token: int, position: int, now: float) -> bool:
        """The log said that it does not have this position; returns whether that is to be believed by now."""
        doubt = self._doubts.get(partition)
        if doubt is None or (doubt.token, doubt.position) != (token, position):
            self._doubts[partition] = _Doubt(token, position, now, now)
            return False
        doubt.asked_at = now
        doubt.answers += 1
        return doubt.answers >= ANSWERS_MIN and now - doubt.since >= self._lasting_seconds

    def over(self, partition: Partition) -> None:
        """The log has the position, or what it said was acted upon."""
        self._doubts.pop(partition, None)
