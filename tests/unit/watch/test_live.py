"""The live display of `run`: what it says in each state, at two widths; captures are in tests/golden/live."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from penstock.events import (
    BatchCommitted,
    BatchPlanned,
    ExecutorsAwaited,
    JobFailed,
    JobStarted,
    JobStopped,
    LagMeasured,
    Retrying,
)
from penstock.watch.live import LiveDisplay

GOLDEN = Path(__file__).parents[2] / "golden" / "live"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_772_359_200.0

    def __call__(self) -> float:
        return self.seconds


def screens(width: int) -> str:
    """What a run of two jobs shows, one screen after each step."""
    clock = Clock()
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    display = LiveDisplay(console, clock)
    orders, clicks = display.listener("orders"), display.listener("a-job-with-a-rather-long-name-for-its-clicks")
    shown = []

    def show(title: str) -> None:
        with console.capture() as capture:
            console.print(display)
        shown.append(f"--- {title}\n" + "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    orders.event(JobStarted(once=True))
    clicks.event(JobStarted(once=False))
    show("started")
    orders.event(LagMeasured(2_000_000))
    clicks.event(LagMeasured(0))
    orders.event(BatchPlanned("b", 500_000, 4))
    show("the first batch is read, the other job has nothing to do")
    clock.seconds += 8
    orders.event(BatchCommitted("b", 2, read=500_000, written=499_990, quarantined=10))
    orders.event(LagMeasured(1_500_000))
    clicks.event(LagMeasured(70))
    orders.event(BatchPlanned("c", 500_000, 4))
    show("committed, the next batch is read")
    orders.event(Retrying("Kafka at k1:9092 does not answer: Connection refused", "asked about topic orders", 12.3))
    clicks.event(JobFailed("UserError", "topic clicks does not exist on k1:9092", ""))
    show("an outage, and a job that failed")
    orders.event(BatchCommitted("c", 3, read=1_500_000, written=1_500_000))
    orders.event(JobStopped())
    show("done")
    return "".join(shown)


@pytest.mark.parametrize("width", [80, 140])
def test_screens_are_as_captured(width: int) -> None:
    text = screens(width)
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith("---"))
    assert text == (GOLDEN / f"{width}.txt").read_text()


def test_a_warning_is_printed_above_with_its_facts() -> None:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    view = LiveDisplay(console, Clock()).listener("orders")
    with console.capture() as capture:
        view.event(Retrying("Kafka does not answer", "refused", 3.0))
        view.event(BatchPlanned("b", 5, 1))
    assert capture.get() == "10:00:00Z orders: retrying: Kafka does not answer, refused, pause_seconds=3.0\n"


def test_a_wait_for_executors_is_a_line_that_ends_when_one_comes() -> None:
    view = LiveDisplay(Console(file=io.StringIO()), Clock()).listener("orders")
    view.event(ExecutorsAwaited(0, "4g memory each", "1 worker; free: 1 of 1 cores, 600 of 600 MiB"))
    assert view.state.startswith("waits for an executor: asked for 4g memory each; the cluster has 1 worker;")
    view.event(ExecutorsAwaited(2, "4g memory each", "2 workers"))
    assert view.state == "2 executors came"
