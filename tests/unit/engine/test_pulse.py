"""What counts as progress: a step that is reached, and a value that differs from the last one."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.claims import StaticClaims
from penstock.engine.pulse import Pulse, SparkProgress, with_signs
from penstock.environment import Environment


class Watched(StaticClaims):
    """Claims that count the reports of progress."""

    def __init__(self) -> None:
        self.signs = 0

    def working(self) -> None:
        self.signs += 1


def test_every_failpoint_step_counts_as_progress_and_is_reached() -> None:
    claims, steps = Watched(), list[str]()
    environment = with_signs(Environment(at_step=steps.append), claims)
    for step in ("planned", "staged", "committed"):
        environment.at_step(step)
    assert claims.signs == 3
    assert steps == ["planned", "staged", "committed"]


def test_only_new_progress_counts_as_progress() -> None:
    claims = Watched()
    answers: list[Hashable] = [(1, 0), (1, 0), (1, 1), (1, 1), (1, 1), (2, 0)]
    pulse = Pulse(lambda: answers.pop(0), claims.working)
    counts = []
    for _ in range(6):
        pulse.check()
        counts.append(claims.signs)
    assert counts == [1, 1, 2, 2, 2, 3]


def test_a_spark_session_that_has_not_started_is_not_a_failure() -> None:
    claims, progress = Watched(), SparkProgress("web")
    progress.begin_turn()
    Pulse(progress, claims.working).check()
    assert claims.signs == 0
