"""Named steps at which a fault test can kill, stop or fail this process.

Every step of the write and commit paths calls `at_step(step)`. In production nothing is armed and it does nothing. A
test arms one through the environment of the process: `PENSTOCK_FAILPOINT=committed:kill`, or `checked:stop:2` for the
second time that the step is reached.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import TransientError, UserError

AtStep = Callable[[str], None]

ENVIRONMENT_NAME = "PENSTOCK_FAILPOINT"

BATCH_STEPS = ("planned", "writing", "staged", "checked", "committed", "quarantined", "mirrored")
START_STEPS = ("created", "started")
CLAIM_STEPS = ("fenced",)
COMPACT_STEPS = ("compact_staged", "compact_checked", "compact_committed")
VACUUM_STEPS = ("vacuum_listed", "vacuum_deleting")
REPLAY_STEPS = ("replay_staged", "replay_committed", "replay_removed")
DISCARD_STEPS = ("discard_checked", "discarded")
STEPS = (
    *(BATCH_STEPS + START_STEPS + CLAIM_STEPS),
    *(COMPACT_STEPS + VACUUM_STEPS + REPLAY_STEPS + DISCARD_STEPS),
)
"""The steps of every job; a kind of table adds its own (`Kind.steps`)."""

Action = Literal["kill", "stop", "error"]
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def noop(step: str) -> None:
    """The `AtStep` of a process in which nothing is armed."""


@dataclass(slots=True)
class Failpoint:
    """One armed step; `driver_pid` is the process that gets the signal, also when a Spark worker reaches the step."""

    step: str
    action: Action
    on_visit: int = 1
    driver_pid: int = field(default_factory=os.getpid)
    visits: int = 0

    def at_step(self, step: str) -> None:
        if step != self.step:
            return
        self.visits += 1
        if self.visits != self.on_visit:
            return
        if self.action == "error":
            raise TransientError(f"failpoint {step}")
        if self.driver_pid == os.getpid():
            # To this thread: a signal to the process may reach another one while this one continues for a while.
            signal.pthread_kill(threading.get_ident(), _SIGNALS[self.action])
        else:
            os.kill(self.driver_pid, _SIGNALS[self.action])


def armed(environment: str, steps: Collection[str] = STEPS) -> Failpoint | None:
    """Read the text of the environment variable; an empty text arms nothing."""
    if not environment:
        return None
    step, _, action_and_visit = environment.partition(":")
    action, _, visit = action_and_visit.partition(":")
    if step not in steps or action not in ("kill", "stop", "error"):
        raise UserError(
            f"invalid failpoint {ENVIRONMENT_NAME}={environment}",
            hint=f"write STEP:ACTION; steps: {', '.join(steps)}; actions: kill, stop, error",
        )
    return Failpoint(step, "kill" if action == "kill" else "stop" if action == "stop" else "error", int(visit or 1))
