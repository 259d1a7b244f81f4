"""What happened: actions with who and when, changes of verdicts, results of verifications."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, render, state_of

link = Link("Activity", "activity")
NOTES_SHOWN = 200


@reading
def activity(request: Request) -> Response:
    return render(request, "activity.html", notes=state_of(request).history.notes(limit=NOTES_SHOWN))


routes = [Route("/activity", activity, name="activity")]
