"""Templates to pages; everything that is put into them is escaped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from penstock.console import charts
from penstock.console.access import session_of
from penstock.console.records import cell_text, visible
from penstock.reporting import verdicts

if TYPE_CHECKING:
    from penstock.console.state import ConsoleState, WatchedJob

STATIC = Path(__file__).parent / "static"
NONE = "–"
"""Shown for a value that is not known."""


@dataclass(frozen=True, slots=True)
class Link:
    """A page in the navigation: of the console, or a tab of every job if its route has `{job}`."""

    label: str
    route: str
    """The name of its route."""
    of_job: bool = False


def render(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page of a template, which also has `request`, `session`, `state` and `links`."""
    given = {"request": request, "session": session_of(request), "state": state_of(request)}
    page = environment().get_template(template).render(**given, links=request.app.state.links, **context)
    return HTMLResponse(page, status)


def state_of(request: Request) -> ConsoleState:
    state: ConsoleState = request.app.state.console
    return state


def job_of(request: Request) -> WatchedJob:
    """The job in the path of a request; another name is 404."""
    try:
        return state_of(request).jobs[request.path_params["job"]]
    except KeyError:
        raise HTTPException(404, "no such job") from None


@cache
def environment() -> Environment:
    templates = Environment(
        loader=PackageLoader("penstock.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FORMATS, cell=cell_text, visible=visible)
    templates.globals.update(shown=FORMATS, static=static, sparkline=charts.sparkline, line_chart=charts.line_chart)
    return templates


@cache
def static(name: str) -> str:
    """The address of a static file; it changes with its content, so that browsers may keep it."""
    return f"/static/{name}?{sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """At most four characters and a unit: 12.3k."""
    if value is None:
        return NONE
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}" if abs(value) < 999.5 * factor else f"{value / factor:.0f}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float | None) -> str:
    if value is None:
        return NONE
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """A duration in one unit: 900ms, 4.2s, 12min, 3h."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds else "0s"
    return f"{seconds:.3g}s" if seconds < 59.5 else verdicts.duration(seconds)


def instant(at: float | datetime | None) -> str:
    if at is None:
        return NONE
    return f"{at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def ago(at: float | datetime | None) -> str:
    """How long ago an instant was."""
    if at is None:
        return "never"
    seconds = at.timestamp() if isinstance(at, datetime) else at
    return f"{verdicts.duration(max(1.0, time.time() - seconds))} ago"


FORMATS = {"number": number, "short": short, "duration": duration, "size": size, "instant": instant, "ago": ago}
