"""What a process gives to a job: clock, random numbers, failpoints, fresh ids and a listener; tests control them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.events import Listener, NullListener
from penstock.failpoints import AtStep, Failpoint, noop

_BACK_OFF_SECONDS = 0.02


@dataclass(slots=True)
class Environment:
    """Clock, random numbers, failpoints and listener of a job in a process."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)
    at_step: AtStep = noop
    listener: Listener = field(default_factory=NullListener)
    failpoint: Failpoint | None = None
    """Also armed in Spark tasks, which are other processes."""
    watched: bool = False
    """Whether metrics are served: only then the ages of unread records are read."""
    stopping: Callable[[], bool] = lambda: False
    """Whether a stop was requested: long searches end early."""

    def back_off(self, attempt: int, seconds_max: float) -> None:
        """Wait before a commit that lost a race is tried again, with jitter and a bound."""
        self.sleep(self.rng.uniform(0, min(seconds_max, _BACK_OFF_SECONDS * 2**attempt)))


def new_batch_id() -> str:
    return uuid.uuid4().hex
