"""Live progress: a line for each job, with what it did last."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.events import Event, JobStarted
from penstock.tables.rollup.events import WindowsClosed, WindowsPublished
from penstock.watch.progress import Progress

CLOSED = WindowsClosed(close=1, rows=32_103, updated=0, late={}, seconds=0.3, until=1_770_000_060.0)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (JobStarted(once=True), "job started"),
        (CLOSED, "windows closed until 2026-02-02 02:41:00Z"),
        (WindowsPublished(rows=32_103, topic="rollups"), "32,103 windows published"),
    ],
)
def test_the_state_of_a_job_is_its_last_event(event: Event, state: str) -> None:
    printed = io.StringIO()
    with Progress(Console(file=printed, width=200)) as progress:
        progress.listener("rollups").event(event)
    heading, line = [item for item in printed.getvalue().splitlines() if item.strip()][-2:]
    assert heading.split()[:2] == ["job", "state"]
    assert line.startswith("rollups") and state in line
