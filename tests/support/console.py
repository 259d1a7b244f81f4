"""A console over statuses that a test states, with a client that speaks to it as a browser does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import sin
from pathlib import Path
from random import Random

from starlette.testclient import TestClient

from penstock.console.access import Access
from penstock.console.app import create_app
from penstock.console.history import DAY, HOUR, TIERS, History, Point
from penstock.console.poller import points_of, rate_of
from penstock.console.state import ConsoleState, WatchedJob
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.reporting.model import Alert, AlertKind, Commit, JobStatus, PartitionStatus
from penstock.reporting.verdicts import Judgement, Verdict
from penstock.tables.registry import load_job
from tests.support.small_table import small_job

HTML = {"accept": "text/html"}
EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {"plan": 0.021, "read": 0.42, "decode": 0.31, "write": 0.55}


def watched(
    folder: Path,
    name: str = "orders",
    lags: Sequence[int] = (2, 0),
    alerts: Sequence[Alert] = (),
    topic: str = "orders",
    judgement: Judgement | None = None,
) -> WatchedJob:
    """A job with a partition per lag, as the poller would have read it."""
    whole, now = judgement or Judgement(), datetime.now(UTC)
    partitions = tuple(
        PartitionStatus(
            Partition(topic, "id", number),
            position=1_000_000 + number,
            token=1,
            totals=Totals(read=1_000_000 + number, written=999_999, quarantined=1 + number),
            first=0,
            end=1_000_000 + number + lag,
            lag_seconds=lag / 1000 if lag else None,
            mirrored=1_000_000 + number,
            shown_position=1_000_000 + number,
            judgement=whole if lag else Judgement(),
        )
        for number, lag in enumerate(lags)
    )
    commits = tuple(
        Commit(version, now - timedelta(seconds=9 + 60 * (300 - version)), 81_200 + version * 7, 81_150, 50, 0, 4,
               37_400_000 - version * 9_000, steps=STEPS)
        for version in range(300, 292, -1)
    )  # fmt: skip
    status = JobStatus(
        name,
        f"/lake/{name}",
        300,
        partitions,
        committed_at=commits[0].at,
        quarantine_rows=sum(item.totals.quarantined for item in partitions),
        alerts=tuple(alerts),
        judgement=whole,
        commits=commits,
    )
    job = replace(small_job("127.0.0.1:1", topic, folder), name=name)
    return WatchedJob(name, None, job, status, read_at=time.time(), text=f"job: {name}")


def fleet(folder: Path, history: History) -> list[WatchedJob]:
    """Jobs of every kind with a day of history, of which some need attention."""
    wait = "records wait for 14m 20s, and the last commit was 13m 50s ago"
    growing = "devices/2: lag grew from 1200 to 48100 records in 10m"
    away = "the broker 10.1.4.7:9092 does not answer"
    rewound = Alert(AlertKind.LOG_UNREACHABLE, away)
    members = [
        ("web-requests", "delta", "web", (120, 40, 0, 310, 90, 0, 75, 220), None, ()),
        ("shop-events", "export", "shop", (14, 0, 3, 9), None, ()),
        ("devices", "keyed", "devices", (900, 1200, 48_100, 1100), Judgement(Verdict.WARN, growing), ()),
        ("metrics-rollup", "rollup", "telegraf", (81_000, 79_200), Judgement(Verdict.STOP, wait), ()),
        ("payments", "delta", "payments", (12, 40), Judgement(Verdict.ERR, away), (rewound,)),
        ("customers", "change-data", "customers.public", (0, 0, 0), None, ()),
        ("audit-log", "delta", "audit", (5, 1), None, ()),
    ]
    jobs = []
    for number, (name, example, topic, lags, judgement, alerts) in enumerate(members):
        path = EXAMPLES / example / "job.yaml"
        job = watched(folder, name, lags, alerts, topic, judgement)
        spec = load_job(path, {"KAFKA_BROKERS": "broker-1:9092"})
        job.spec = replace(spec, name=name, log=replace(spec.log, topics=(topic,)))
        job.text = path.read_text().replace(spec.name, name)
        verdict = judgement.verdict if judgement else Verdict.OK
        remember(job, history, number, rising=verdict in (Verdict.WARN, Verdict.STOP), stopped=verdict is Verdict.STOP)
        if judgement:
            history.note("verdict", name, judgement.verdict, detail=judgement.reason)
        jobs.append(job)
    return jobs


def remember(job: WatchedJob, history: History, seed: int, rising: bool = False, stopped: bool = False) -> None:
    """Give a job a day of history up to its status: waves of lag and throughput."""
    assert job.status is not None
    now, random = int(time.time()), Random(seed)
    newest = points_of(job.status, now)
    ages = sorted({age for tier, kept in TIERS for age in range(0, min(kept, DAY), tier)}, reverse=True)
    for age in ages:
        wave = sin((age + seed * 977) / 2_900)
        noise = random.uniform(-0.2, 0.2) if age else 0.0
        share = max(0.05, 1 - age / 900) + noise / 10 if rising else 1 + (0.5 * wave + noise if age else 0)
        # Less is read at some times than at others; a job that has stopped reads nothing.
        read = int(max(0, age - 830) * 1_300 if stopped else age * 1_300 + 900_000 * wave + random.uniform(0, 1_500))
        history.observe(job.name, {
            key: Point(now - age, None if point.lag is None else int(point.lag * share),
                       int((point.age or 0) * share), point.read - read // len(newest) * (1 if key else len(newest)))
            for key, point in newest.items()
        })  # fmt: skip
    assert job.status is not None
    history.add_commits(job.name, ((item.version, item.at.timestamp(), item.as_json()) for item in job.status.commits))
    job.recent = history.points(job.name, HOUR)
    job.rate = rate_of(job.recent)
    job.owners = {key: f"writer-{index % 2 + 1}" for index, key in enumerate(newest) if key}


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
