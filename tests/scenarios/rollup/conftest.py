"""A cluster in memory that rollups publish to."""

from __future__ import annotations

import pytest

from penstock.tables.rollup.publishing import OUTPUTS
from tests.support.memory_output import MemoryCluster, MemoryOutput


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Has the topic `rollups`."""
    made = MemoryCluster()
    made.create("rollups")
    monkeypatch.setitem(
        OUTPUTS,
        "kafka",
        lambda job, spec, bucket, environment: MemoryOutput(made, spec.topic, bucket, environment.at_step),
    )
    return made
