"""The page of a job: its pipe, lag and throughput over time, partitions, recent commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.history import DAY, HOUR
from penstock.console.kinds import sections_of
from penstock.console.poller import rates
from penstock.console.rendering import Link, duration, job_of, number, render, short, state_of
from penstock.console.state import WatchedJob
from penstock.reporting.model import PartitionStatus

link = Link("Job", "job", of_job=True)
RANGES = {"1h": HOUR, "24h": DAY, "7d": 7 * DAY}
PARTITIONS_SHOWN = 50
COMMITS_SHOWN = 20
ORDERS = {
    "partition": lambda item: item.partition,
    "lag": lambda item: -(item.lag_records or 0),
    "age": lambda item: -(item.lag_seconds or 0.0),
    "verdict": lambda item: -item.judgement.verdict.severity,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A step of the pipe, with its last time and what is to be said about it."""

    name: str
    seconds: float | None
    text: str
    blocked: bool = False


@reading
def job(request: Request) -> Response:
    watched, state = job_of(request), state_of(request)
    span = request.query_params.get("range", "1h")
    points = state.history.points(watched.name, RANGES.get(span, HOUR))
    return render(
        request,
        "job.html",
        job=watched,
        pipe=pipe(watched),
        span=span if span in RANGES else "1h",
        ranges=RANGES,
        lags=[(point.at, point.lag) for point in points],
        ages=[(point.at, point.age) for point in points],
        rates=rates(points),
        commits=state.history.commits(watched.name, COMMITS_SHOWN),
        sections=sections_of(watched),
        **partitions(watched, request),
    )


def pipe(job: WatchedJob) -> list[Node]:
    """The steps in their order; a time is that of the newest batch."""
    status, spec = job.status, job.spec
    if status is None or spec is None:
        return []
    steps = {**(status.commits[0].steps if status.commits else {}), **job.own_steps}
    work = {name: steps[name] for name in ("read", "decode", "write") if name in steps}
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in work.items())
    written = sum(item.totals.written + item.totals.replayed for item in status.partitions)
    ends = sum(item.end or 0 for item in status.partitions)
    shown = [(item.position or 0) - item.mirrored for item in status.partitions if item.mirrored is not None]
    behind = f"{short(max(0, *shown, 0))} behind" if shown else "no group"
    claims = "static" if spec.claims is None else f"group {spec.log.group}"
    return [
        Node("log", None, status.log_error or f"{short(ends)} offsets", blocked=bool(status.log_error)),
        Node("claim", None, f"{len(status.partitions)} partitions, {claims}"),
        Node("plan", steps.get("plan"), f"lag {short(job.lag)}"),
        Node("write", sum(work.values()) if work else None, parts or f"{number(written)} rows"),
        Node("commit", steps.get("commit"), "not started" if status.version is None else f"version {status.version}"),
        Node("mirror", steps.get("mirror"), behind),
    ]


def partitions(job: WatchedJob, request: Request) -> dict[str, Any]:
    """One page of the partitions that the request asks for."""
    query = request.query_params
    text, order, lagging = query.get("q", ""), query.get("order", "partition"), "lagging" in query
    every: Sequence[PartitionStatus] = job.status.partitions if job.status is not None else ()
    chosen = [item for item in every if text in str(item.partition) and (item.lag_records or not lagging)]
    chosen.sort(key=ORDERS.get(order, ORDERS["partition"]))
    last = max(1, -(-len(chosen) // PARTITIONS_SHOWN))
    page = query.get("page", "1")
    number = min(last, max(1, int(page) if page.isdecimal() and len(page) < 9 else 1))
    return {
        "partitions": chosen[(number - 1) * PARTITIONS_SHOWN : number * PARTITIONS_SHOWN],
        "chosen": len(chosen),
        "every": len(every),
        "page": number,
        "last": last,
        "q": text,
        "order": order,
        "orders": list(ORDERS),
        "lagging": lagging,
    }


routes = [Route("/jobs/{job}", job, name="job")]
