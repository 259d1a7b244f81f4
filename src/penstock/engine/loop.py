"""The loop of a job: rounds without end, or up to the present end, with bounded retries and a clean stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.engine.round import RoundResult, Waiting
from penstock.errors import (
    NoFieldsYetError,
    OutcomeUnknownError,
    PenstockError,
    TransientError,
    UnreachableError,
    UserError,
)
from penstock.events import Listener, Retrying, RoundDone
from penstock.logs.log import Partition
from penstock.plan import LogCutError
from penstock.spark.failures import SparkGoneError, SparkStoppedError

POLL_SECONDS = 0.5
"""How often the log is asked for new records while nothing is due."""
FIRST_RECORDS_POLL_SECONDS = 2.0
"""How often the log is asked for the records that give a job its schema."""
LOG_CUT_RETRIES_MAX = 3
_RETRY_SECONDS = 0.5
_RETRY_SECONDS_MAX = 30.0


class Turns(Protocol):
    """The rounds of a job."""

    def round(self, flush_now: bool = False, ends: dict[Partition, int] | None = None) -> RoundResult: ...

    def present_ends(self) -> dict[Partition, int]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Retries:
    """Counts transient errors in a row, up to a bound, with growing, randomly spread pauses."""

    failures_max: int
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def pause_seconds(self, error: PenstockError) -> float:
        """Count a failure and return how long to wait; raises the error once the bound is passed."""
        self.failures += 1
        # A new leader may show an older end for a moment, and an old one not know a newer epoch; a cut log stays cut.
        bound = min(self.failures_max, LOG_CUT_RETRIES_MAX) if isinstance(error, UserError) else self.failures_max
        if self.failures > bound:
            raise error
        longest = min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2**self.failures)
        return self.rng.uniform(_RETRY_SECONDS, longest)

    def succeed(self) -> None:
        self.failures = 0


@dataclass(slots=True)
class Loop:
    """Runs rounds until it is stopped; with `once`, until the ends of its start are reached."""

    open_rounds: Callable[[], Turns]
    once: bool
    stop: threading.Event
    """Set by a signal: the present batch is finished, no other begins."""
    retries: Retries
    listener: Listener
    working: Callable[[], None] = lambda: None
    """Called at every turn: the loop is not stuck."""
    _rounds: Turns | None = None
    _ends: dict[Partition, int] | None = None
    _has_worked: bool = False
    """Whether a round has succeeded: from then on a server that does not answer is waited for."""

    def run(self) -> None:
        try:
            self._turn_until_stopped()
        finally:
            self._close_rounds()

    def _close_rounds(self) -> None:
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.close()

    def _turn_until_stopped(self) -> None:
        while not self.stop.is_set():
            self.working()
            try:
                finished, pause = self._turn()
                self._has_worked = True
                self.retries.succeed()
                self.listener.event(RoundDone())
            except SparkGoneError:
                raise
            except (TransientError, OutcomeUnknownError, LogCutError) as error:
                if self.stop.is_set():
                    return
                if isinstance(error, UnreachableError) and not self._has_worked:
                    raise
                if isinstance(error, SparkStoppedError):
                    # The next rounds are opened on another session; rounds share only caches.
                    self._close_rounds()
                finished, pause = False, self.retries.pause_seconds(error)
                self.listener.event(Retrying(reason=error.primary, detail=error.detail, pause_seconds=round(pause, 2)))
            if finished:
                return
            if pause:
                self.stop.wait(pause)

    def _turn(self) -> tuple[bool, float]:
        """One round: whether the work is done, and how long to pause before the next."""
        if self._rounds is None:
            try:
                self._rounds = self.open_rounds()
            except NoFieldsYetError:
                return self.once, FIRST_RECORDS_POLL_SECONDS
        if self.once and self._ends is None:
            self._ends = self._rounds.present_ends()
        result = self._rounds.round(flush_now=self.once, ends=self._ends)
        if self.once and result.done:
            return True, 0.0
        return False, POLL_SECONDS if isinstance(result, Waiting) else 0.0
