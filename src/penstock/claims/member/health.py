"""Whether a member keeps up with a partition, from samples of its position and of the log's end. Pure.

A sample is taken once per heartbeat interval; a velocity is in records per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SAMPLES_MAX = 10
CHECKS_BEHIND_MAX = 3
"""So many checks in a row that find the member behind, and not catching up, are enough to let go."""
QUIET_INTERVALS_MAX = 1.0
"""Longer without a handed-out record, and with nothing finished, a partition that has records counts as stuck."""

LEASE_OVER = "the lease ran out"
STUCK = "nothing was finished for an interval"
TOO_SLOW = "the log grows faster than this member works"


def lag_of(position: int, end: int) -> int:
    """How many offsets lie between a position and the end of the log."""
    return max(0, end - position)


def velocity(samples: Sequence[int]) -> float:
    """Records per sample over the last samples; 0 as long as there is nothing to compare."""
    last = samples[-SAMPLES_MAX:]
    if len(last) < 2:
        return 0.0
    return (max(last) - min(last)) / (len(last) - 1)


@dataclass(frozen=True, slots=True)
class Health:
    """The last samples of one claim, and how many checks in a row found it behind."""

    positions: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    checks_behind: int = 0

    def sampled(self, position: int, end: int) -> Health:
        return replace(
            self, positions=(*self.positions, position)[-SAMPLES_MAX:], ends=(*self.ends, end)[-SAMPLES_MAX:]
        )

    @property
    def consumed(self) -> float:
        return velocity(self.positions)

    @property
    def produced(self) -> float:
        return velocity(self.ends)

    @property
    def lag(self) -> int:
        return lag_of(self.positions[-1], self.ends[-1]) if self.positions else 0


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """`release_if_behind` off: only a lease that ran out lets go. Whole topics are not let go for being slow."""

    release_if_behind: bool = True
    whole_topics: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What a check needs beyond the samples: `takers` says whether somebody else could take the partition."""

    quiet_intervals: float = 0.0
    takers: bool = True
    lease_over: bool = False


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The health behind a check, and why the claim should be let go (None: keep it)."""

    health: Health
    release: str | None = None


def check(health: Health, policy: HealthPolicy, situation: Situation) -> HealthCheck:
    """One step of the ladder. Who is behind lets go only if somebody can take over: alone, slow is better than never.

    Being behind is remembered until then.
    """
    if situation.lease_over:
        return HealthCheck(health, LEASE_OVER)
    if not policy.release_if_behind:
        return HealthCheck(replace(health, checks_behind=0))
    if _stuck(health, situation):
        return HealthCheck(health, STUCK if situation.takers else None)
    if policy.whole_topics or _keeps_up(health):
        return HealthCheck(replace(health, checks_behind=0))
    behind = replace(health, checks_behind=min(CHECKS_BEHIND_MAX, health.checks_behind + 1))
    release = behind.checks_behind == CHECKS_BEHIND_MAX and situation.takers
    return HealthCheck(behind, TOO_SLOW if release else None)


def _stuck(health: Health, situation: Situation) -> bool:
    quiet = situation.quiet_intervals > QUIET_INTERVALS_MAX and len(health.positions) > 1
    return quiet and health.consumed == 0 and health.lag > 0


def _keeps_up(health: Health) -> bool:
    """Caught up, or as good as: two samples' work away from the end; or faster than the log grows."""
    return health.lag <= int(2 * health.consumed) or health.produced < health.consumed
