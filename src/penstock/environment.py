"""What a table needs from outside: clock, random numbers, failpoints and fresh ids, so that tests control them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.failpoints import Reach, noop


@dataclass(slots=True)
class Environment:
    """Clock, random numbers and failpoints of a process."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)
    reach: Reach = noop


def new_batch_id() -> str:
    return uuid.uuid4().hex
