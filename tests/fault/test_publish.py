"""Publishers are killed at every step, and brokers under them: readers of committed records see each row once."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.embedded.broker import Cluster
from penstock.errors import TransientError
from penstock.failpoints import noop
from penstock.publish.output import PUBLISH_STEPS
from tests.fault.publisher import ROWS, publish_numbers
from tests.jobs import KILLED
from tests.kafka import Topics
from tests.published import read_topic

PROCESS_SECONDS_MAX = 120
TRIES_MAX = 5


def test_publishers_killed_at_every_step_in_turn_publish_each_row_once_and_in_order(
    bootstrap: str, topic: Topics
) -> None:
    """Each step kills one process, the second time that it is reached; the next one has to live with what it left."""
    places = (bootstrap, topic(), f"positions-{uuid.uuid4().hex[:8]}")
    for step in PUBLISH_STEPS:
        command = [sys.executable, "-m", "tests.fault.publisher", *places, f"{step}:kill:2"]
        assert subprocess.run(command, check=False, timeout=PROCESS_SECONDS_MAX).returncode == KILLED, step
    publish_numbers(*places, noop)
    assert published(bootstrap, places[1]) == list(range(ROWS))


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_a_broker_that_dies_and_comes_back_costs_and_doubles_no_row(tmp_path: Path, step: str) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        places = (cluster.bootstrap, Topics(cluster.bootstrap)(), "positions")
        killed: list[str] = []

        def restarting(reached: str) -> None:
            if reached == step and not killed:
                killed.append(step)
                cluster.kill()
                cluster.restart()

        for _ in range(TRIES_MAX):
            try:
                publish_numbers(*places, restarting)
                break
            except TransientError:
                continue
        assert killed == [step]
        assert published(cluster.bootstrap, places[1]) == list(range(ROWS))


def published(bootstrap: str, topic: str) -> list[int]:
    return [int(record.value) for record in read_topic(bootstrap, topic, committed=True)]
