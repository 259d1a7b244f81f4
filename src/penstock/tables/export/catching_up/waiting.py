"""What a running export remembers of types that cannot be written, and of records that wait for theirs (I7)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import PenstockError
from penstock.events import Listener
from penstock.job.spec import GapPolicy
from penstock.logs.log import Bounds, Log, Partition
from penstock.plan import GapError
from penstock.tables.export.catching_up.catch_up import lost_lanes
from penstock.tables.export.events import RetentionNotKnown, TypeStoppedByAGap
from penstock.tables.export.ledger.state import LedgerState

LOOK_SECONDS = 60.0
"""How often the log is asked which records have grown old."""


class WaitingRecords:
    """A cache of what was told and asked: losing it costs a repetition. Time is passed in."""

    def __init__(self, log: Log, gap: GapPolicy, retention_percent: float, listener: Listener) -> None:
        self._log = log
        self._gap = gap
        self._retention_percent = retention_percent
        self._listener = listener
        self._stopped: set[tuple[Partition, str]] = set()
        self._look_at = 0.0
        self._expiring: Mapping[Partition, int] = {}

    def gaps(self, state: LedgerState, bounds: Mapping[Partition, Bounds]) -> list[GapError]:
        """Where the log lost records that wait for a type, unless the job says to go on."""
        if self._gap is not GapPolicy.FAIL:
            return []
        return [
            GapError(partition, lane.position, held.first, name)
            for partition, held in bounds.items()
            for name, lane in sorted(lost_lanes(state.of(partition), held).items())
        ]

    def tell_gaps(self, state: LedgerState, bounds: Mapping[Partition, Bounds]) -> None:
        """Say once which types stand still; the others go on."""
        for error in self.gaps(state, bounds):
            if (error.partition, error.type) not in self._stopped:
                self._stopped.add((error.partition, error.type))
                self._listener.event(
                    TypeStoppedByAGap(
                        type=error.type,
                        partition=str(error.partition),
                        reason=error.primary,
                        hint=error.hint,
                    )
                )

    def expiring(self, state: LedgerState, bounds: Mapping[Partition, Bounds], now: float) -> Mapping[Partition, int]:
        """Below which offsets waiting records are near their end; the log's answer may be a minute old."""
        waiting = {each: held for each, held in bounds.items() if state.of(each).lanes}
        if waiting and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            try:
                self._expiring = self._log.expiring(waiting, self._retention_percent, now)
            except PenstockError as error:
                # Whoever only watches stops nobody.
                self._listener.event(RetentionNotKnown(reason=error.primary, detail=error.detail))
        return self._expiring if waiting else {}


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
