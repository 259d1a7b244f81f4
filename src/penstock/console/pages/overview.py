"""The overview: one row per job, what needs attention on top."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, render, state_of

link = Link("Overview", "overview")


@reading
def overview(request: Request) -> Response:
    jobs = sorted(state_of(request).jobs.values(), key=lambda job: (-job.severity, job.name))
    groups = {"Needs attention": [job for job in jobs if job.severity], "All well": []}
    groups["All well" if all(job.judgement for job in jobs) else "Others"] = [job for job in jobs if not job.severity]
    lags, rates = [job.lag for job in jobs if job.lag], [job.rate for job in jobs if job.rate]
    return render(request, "overview.html", jobs=jobs, groups=groups, lag=sum(lags), rate=sum(rates))


routes = [Route("/", overview, name="overview")]
