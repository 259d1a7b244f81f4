"""Publishers are killed at every step, and brokers under them: readers of committed records see each row once."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

from penstock.embedded.broker import Cluster
from penstock.errors import TransientError
from penstock.failpoints import AtStep, noop
from penstock.publish.output import PUBLISH_STEPS
from tests.fault.publisher import ROWS, publish_numbers
from tests.support.forked import Forked
from tests.support.jobs import KILLED
from tests.support.kafka import Topics
from tests.support.published import read_topic

PROCESS_SECONDS_MAX = 120
TRIES_MAX = 5


def test_publishers_killed_at_every_step_in_turn_publish_each_row_once_and_in_order(
    bootstrap: str, topic: Topics
) -> None:
    """Each step kills one process when it is reached for the second time; the next one recovers from its state."""
    places = (bootstrap, topic(), f"positions-{uuid.uuid4().hex[:8]}")
    for step in PUBLISH_STEPS:
        process = Forked("tests.fault.publisher", [*places, f"{step}:kill:2"])
        assert process.wait(PROCESS_SECONDS_MAX) == KILLED, step
    publish_numbers(*places, noop)
    assert published(bootstrap, places[1]) == list(range(ROWS))


def test_a_broker_restart_loses_and_duplicates_no_row(tmp_path: Path) -> None:
    """At each step in turn."""
    with Cluster.start(tmp_path / "kafka") as cluster:
        for step in PUBLISH_STEPS:
            places = (cluster.bootstrap, Topics(cluster.bootstrap)(), f"positions-{step}")
            killed: list[str] = []
            publish_through(places, partial(_restart_once, cluster, step, killed))
            assert killed == [step]
            assert published(cluster.bootstrap, places[1]) == list(range(ROWS))


def _restart_once(cluster: Cluster, step: str, killed: list[str], reached: str) -> None:
    if reached == step and not killed:
        killed.append(step)
        cluster.kill()
        cluster.restart()


def publish_through(places: tuple[str, str, str], at_step: AtStep) -> None:
    """As often as it takes, within a bound."""
    for _ in range(TRIES_MAX):
        try:
            return publish_numbers(*places, at_step)
        except TransientError:
            continue
    return None


def published(bootstrap: str, topic: str) -> list[int]:
    return [int(record.value) for record in read_topic(bootstrap, topic, committed=True)]
