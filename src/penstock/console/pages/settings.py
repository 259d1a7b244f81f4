"""The job file of a job with its secrets hidden, and the settings that are in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, duration, job_of, render, size
from penstock.job.reader import keys_of
from penstock.job.spec import JobSpec, Secret
from penstock.reporting.model import HIDDEN

link = Link("Settings", "settings", of_job=True)
SECTIONS = ("flush", "on", "alerts", "limits", "claims")


@reading
def settings(request: Request) -> Response:
    job = job_of(request)
    return render(request, "settings.html", job=job, sections=list(sections_of(job.spec)) if job.spec else [])


def sections_of(job: JobSpec) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The settings by section of the job file, also those that it leaves out."""
    for section in SECTIONS:
        values: Any = getattr(job, section)
        if values is not None:
            kind: Any = type(values)
            rows = [(key.name, _text(key.field, getattr(values, key.field))) for key in keys_of(kind)]
            yield section, [row for row in rows if row[1]]


def _text(name: str, value: Any) -> str:
    match value:
        case Secret():
            return HIDDEN
        case float() if "seconds" in name:
            return duration(value)
        case int() if "bytes" in name:
            return size(value)
        case str() | int() | float():
            return str(value)
    return ""


routes = [Route("/jobs/{job}/settings", settings, name="settings")]
