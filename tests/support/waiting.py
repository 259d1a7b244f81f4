"""Waiting for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 180.0
_PAUSE_SECONDS_MIN = 0.02
_PAUSES_PER_CHECK = 4
"""Tests that wait leave the processor to those that work."""


def wait_until(
    holds: Callable[[], bool], seconds_max: float = SECONDS_MAX, words: Callable[[], str] = lambda: ""
) -> float:
    """Poll until something holds; returns the seconds that took. `words` adds what is known to the failure."""
    began_at = asked_at = time.monotonic()
    while not holds():
        answered_at = time.monotonic()
        assert answered_at - began_at < seconds_max, f"it did not happen within {seconds_max} s; {words()}"
        time.sleep(max(_PAUSE_SECONDS_MIN, _PAUSES_PER_CHECK * (answered_at - asked_at)))
        asked_at = time.monotonic()
    return time.monotonic() - began_at
