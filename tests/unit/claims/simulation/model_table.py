"""A table as claims know it: a position and a token per partition, checked in one step with the rows (RULES C3, C5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.logs.log import Partition


class ViolationError(AssertionError):
    """What must never happen has happened; the text begins with the seed that replays it."""


@dataclass(slots=True)
class _Lane:
    position: int = 0
    token: int = 0


@dataclass(slots=True)
class Table:
    """Refuses what is not allowed, and keeps a record of its own to see whether something passed that should not.

    `checks=False` is a plain table: the proof that the records of the test can see harm.
    """

    seed: int
    checks: bool = True
    accepted: int = 0
    refused: int = 0
    written: dict[Partition, int] = field(default_factory=dict)
    """How far the rows of a partition reach without hole or double: kept apart from the position on purpose."""
    fences: dict[Partition, int] = field(default_factory=dict)
    _lanes: dict[Partition, _Lane] = field(default_factory=dict)

    def token(self, partition: Partition) -> int:
        return self._lane(partition).token

    def position(self, partition: Partition) -> int:
        return self._lane(partition).position

    def fence(self, partition: Partition, token: int) -> int | None:
        """The first act of a new owner: raise the token, then learn the position; None if a newer owner was here."""
        lane = self._lane(partition)
        if self.checks and token < lane.token:
            self.refused += 1
            return None
        lane.token = max(lane.token, token)
        self.fences[partition] = max(self.fences.get(partition, 0), token)
        return lane.position

    def commit(self, partition: Partition, token: int, start: int, end: int) -> bool:
        """Rows `[start, end)` and the position behind them, in one step."""
        lane = self._lane(partition)
        if self.checks and not (token >= lane.token and start == lane.position):
            self.refused += 1
            return False
        self._witness(partition, token, start, end)
        lane.position, lane.token = end, max(lane.token, token)
        self.accepted += 1
        return True

    def _witness(self, partition: Partition, token: int, start: int, end: int) -> None:
        if token < self.fences.get(partition, 0):
            raise ViolationError(f"seed {self.seed}: {partition} took rows of token {token} after a newer fence")
        reached = self.written.get(partition, 0)
        if start != reached:
            harm = "twice" if start < reached else "with a hole"
            raise ViolationError(f"seed {self.seed}: {partition} was written {harm} at {start}, rows reach {reached}")
        self.written[partition] = end

    def _lane(self, partition: Partition) -> _Lane:
        return self._lanes.setdefault(partition, _Lane())
