"""What a table needs from outside: clock, chance, failpoints and fresh ids, so that tests can hold them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.failpoints import Reach, nowhere


@dataclass(slots=True)
class Environment:
    """Clock, chance and failpoints of a process."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)
    reach: Reach = nowhere


def new_batch_id() -> str:
    return uuid.uuid4().hex
