"""Whether a member keeps up with a partition, from samples of its position and of the log's end. Pure.

A sample is taken once per heartbeat interval; a velocity is in records per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SAMPLES_MAX = 10
CHECKS_BEHIND_MAX = 3
"""After so many consecutive checks that find the member lagging and not catching up, it releases."""
QUIET_INTERVALS_MAX = 1.0
"""Longer without a record handed out or finished, a partition that has records counts as stuck."""

STUCK = "nothing was finished for an interval"
TOO_SLOW = "the log grows faster than this member works"


def lag_of(position: int, end: int) -> int:
    """The number of offsets from a position to the end of the log."""
    return max(0, end - position)


def velocity(samples: Sequence[int]) -> float:
    """Records per sample over the last samples; 0 until there are two."""
    last = samples[-SAMPLES_MAX:]
    if len(last) < 2:
        return 0.0
    return (max(last) - min(last)) / (len(last) - 1)


@dataclass(frozen=True, slots=True)
class Health:
    """The last samples of one claim, how many consecutive checks found it lagging, and why to release it, if so."""

    positions: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    checks_behind: int = 0
    release: str | None = None

    def sampled(self, position: int, end: int) -> Health:
        return replace(
            self, positions=(*self.positions, position)[-SAMPLES_MAX:], ends=(*self.ends, end)[-SAMPLES_MAX:]
        )

    @property
    def lag(self) -> int:
        return lag_of(self.positions[-1], self.ends[-1]) if self.positions else 0


def check(health: Health, quiet_intervals: float = 0.0, takers: bool = True, whole_topics: bool = False) -> Health:
    """Check one sample. A lagging member releases only if another can take over: slow is better than never.

    Its lag is remembered until then. Whole topics are not released for being slow.
    """
    if quiet_intervals > QUIET_INTERVALS_MAX and _stands_still(health):
        return replace(health, release=STUCK if takers else None)
    if whole_topics or _keeps_up(health):
        return replace(health, checks_behind=0, release=None)
    behind = min(CHECKS_BEHIND_MAX, health.checks_behind + 1)
    release = behind == CHECKS_BEHIND_MAX and takers
    return replace(health, checks_behind=behind, release=TOO_SLOW if release else None)


def _stands_still(health: Health) -> bool:
    """Records were there at the last check too: one that has just come to an idle partition is no sign."""
    positions = health.positions
    return len(positions) > 1 and velocity(positions) == 0 and lag_of(positions[-2], health.ends[-2]) > 0


def _keeps_up(health: Health) -> bool:
    """Caught up, or nearly: at most two samples' work from the end, or faster than the log grows."""
    consumed = velocity(health.positions)
    return health.lag <= int(2 * consumed) or velocity(health.ends) < consumed
