"""Waiting for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 180.0
_PAUSE_SECONDS = 0.02


def wait_until(
    holds: Callable[[], bool], seconds_max: float = SECONDS_MAX, words: Callable[[], str] = lambda: ""
) -> float:
    """Poll until something holds; returns the seconds that took. `words` adds what is known to the failure."""
    began_at = time.monotonic()
    while not holds():
        assert time.monotonic() - began_at < seconds_max, f"it did not happen within {seconds_max} s; {words()}"
        time.sleep(_PAUSE_SECONDS)
    return time.monotonic() - began_at
