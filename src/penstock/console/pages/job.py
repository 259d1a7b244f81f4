"""The page of a job."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, job_of, render

link = Link("Job", "job", of_job=True)


@reading
def job(request: Request) -> Response:
    return render(request, "job.html", job=job_of(request))


routes = [Route("/jobs/{job}", job, name="job")]
