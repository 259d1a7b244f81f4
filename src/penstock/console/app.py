"""The web application: pages, live updates and static files behind the guard of `access`."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from penstock.console import access, live
from penstock.console.pages import LINKS, ROUTES
from penstock.console.rendering import STATIC, render
from penstock.console.state import ConsoleState
from penstock.errors import PenstockError


def create_app(state: ConsoleState) -> Starlette:
    app = Starlette(
        routes=[*ROUTES, *live.routes, *access.routes, Mount("/static", StaticFiles(directory=STATIC), name="static")],
        exception_handlers={HTTPException: _refused, PenstockError: _failed},
    )
    app.state.console = state
    app.state.links = LINKS
    app.add_middleware(access.Guard, access=state.access)
    return app


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return render(request, "error.html", error.status_code, title=error.detail, detail="", hint="")


def _failed(request: Request, error: Exception) -> Response:
    """An error of the project is shown with its hint: the page stays usable."""
    assert isinstance(error, PenstockError)
    return render(request, "error.html", 422, title=error.primary, detail=error.detail, hint=error.hint)
