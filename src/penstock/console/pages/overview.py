"""The overview: one row per job, what needs attention on top."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, render, state_of
from penstock.console.state import WatchedJob

link = Link("Overview", "overview")


@reading
def overview(request: Request) -> Response:
    jobs = sorted(state_of(request).jobs.values(), key=lambda job: (-concern(job), job.name))
    return render(request, "overview.html", jobs=jobs)


def concern(job: WatchedJob) -> int:
    """How much a job needs attention."""
    return 0 if job.status is None else len(job.status.alerts)


routes = [Route("/", overview, name="overview")]
