"""The page of verifications: start one, see its progress, read its report; the last results are kept."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console.access import form_of, operating, reading
from penstock.console.commands import cancel, file_of, number_of, spec_of, start
from penstock.console.rendering import Link, job_of, render, state_of
from penstock.errors import UserError

link = Link("Verify", "verify", of_job=True)

COMMAND = "verify"
RESULTS_MAX = 20
DEPTHS = {
    "full": ((), "Every offset of the log, against every row"),
    "values": (("--values",), "The same, and the values of a sample of records"),
    "shallow": (("--shallow",), "Only the table against itself; quick, and proves less"),
}
"""What can be started, with its options and its explanation."""


@reading
def verify(request: Request) -> Response:
    job, state = job_of(request), state_of(request)
    results = state.history.notes(COMMAND, job.name, RESULTS_MAX)
    index = number_of(request.query_params.get("result"), RESULTS_MAX)
    chosen = results[index] if index < len(results) else None
    return render(
        request, "verify.html", job=job, child=state.children.of(COMMAND, job.name), results=results, index=index,
        chosen=chosen, report=None if chosen is None else report_of(chosen.content), depths=DEPTHS,
        verdict_of=lambda note: verdict_of(note.content), publishes=_publishes(request),
    )  # fmt: skip


@operating("start a verification")
def start_verify(request: Request) -> Response:
    depth = form_of(request).get("depth", "full")
    if depth not in DEPTHS:
        raise UserError(f"there is no verification {depth}")
    published = ["--published"] if form_of(request).get("published") == "yes" else []
    start(request, COMMAND, ["verify", str(file_of(request)), "--json", "--progress", *DEPTHS[depth][0], *published])
    return _back(request)


@operating("cancel the verification")
def cancel_verify(request: Request) -> Response:
    cancel(request, COMMAND)
    return _back(request)


def report_of(content: dict[str, Any]) -> dict[str, Any] | None:
    """The report of a result; None if the command failed before it had one."""
    result = content.get("result")
    return result if isinstance(result, dict) and "checks" in result else None


def verdict_of(content: dict[str, Any]) -> str:
    """`proven`, `not proven`, `violated`, or `failed` if there is no report."""
    report = report_of(content)
    return "failed" if report is None else str(report["verdict"]).replace("_", " ")


def _publishes(request: Request) -> bool:
    try:
        return getattr(spec_of(request).table, "publish", None) is not None
    except UserError:
        return False


def _back(request: Request) -> Response:
    return RedirectResponse(request.url_for("verify", job=job_of(request).name).path, 303)


routes = [
    Route("/jobs/{job}/verify", verify, name="verify"),
    Route("/jobs/{job}/verify/start", start_verify, methods=["POST"], name="start_verify"),
    Route("/jobs/{job}/verify/cancel", cancel_verify, methods=["POST"], name="cancel_verify"),
]
