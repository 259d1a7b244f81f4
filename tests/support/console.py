"""A console over statuses that a test states, with a client that speaks to it as a browser does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from starlette.testclient import TestClient

from penstock.console.access import Access
from penstock.console.app import create_app
from penstock.console.history import History
from penstock.console.state import ConsoleState, WatchedJob
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.reporting.model import Alert, JobStatus, PartitionStatus
from tests.support.small_table import small_job

HTML = {"accept": "text/html"}


def watched(
    folder: Path,
    name: str = "orders",
    lags: Sequence[int] = (2, 0),
    alerts: Sequence[Alert] = (),
    topic: str = "orders",
) -> WatchedJob:
    """A job with a partition per lag, as the poller would have read it."""
    partitions = tuple(
        PartitionStatus(
            Partition(topic, "id", number),
            position=100,
            token=1,
            totals=Totals(read=100, written=99, quarantined=1),
            first=0,
            end=100 + lag,
            lag_seconds=float(lag),
            mirrored=100,
            shown_position=100,
        )
        for number, lag in enumerate(lags)
    )
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    status = JobStatus(name, str(folder / "table"), 7, partitions, at, alerts=tuple(alerts))
    job = small_job("127.0.0.1:1", topic, folder)
    return WatchedJob(name, None, job, status, read_at=time.time(), text=f"job: {name}")


@contextmanager
def console(folder: Path, *jobs: WatchedJob, access: Access | None = None) -> Iterator[TestClient]:
    """A client of a console with these jobs; `state_of(client)` is its state."""
    history = History(folder / "console.sqlite")
    state = ConsoleState({job.name: job for job in jobs}, history, access or Access())
    try:
        with TestClient(create_app(state), base_url="http://127.0.0.1", headers=HTML) as client:
            yield client
    finally:
        history.close()


def state_of(client: TestClient) -> ConsoleState:
    state: ConsoleState = client.app.state.console  # type: ignore[attr-defined]
    return state


def csrf_of(page: str) -> str:
    """The token in the first form of a page."""
    match = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert match is not None
    return match[1]
