"""What pages do for the job of a request: find its file, and run commands for it in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request

from penstock.console.access import session_of
from penstock.console.children import Child
from penstock.console.rendering import job_of, state_of
from penstock.errors import TransientError, UserError
from penstock.job.spec import JobSpec


def spec_of(request: Request) -> JobSpec:
    """The job as its file describes it; `UserError` while the file cannot be used."""
    job = job_of(request)
    if job.spec is None:
        raise UserError(job.error or f"the job file of {job.name} is not read yet", hint="see the page of the job")
    return job.spec


def reachable_spec(request: Request) -> JobSpec:
    """The same for a page that asks the log; `TransientError` at once if the log did not answer a moment ago."""
    spec, status = spec_of(request), job_of(request).status
    if status is not None and status.log_error:
        raise TransientError(status.log_error, hint="the page works again once the log answers")
    return spec


def file_of(request: Request) -> Path:
    job = job_of(request)
    if job.path is None:
        raise UserError(f"the job file of {job.name} is not known", hint="start the console with the job file")
    return job.path


def operates(request: Request) -> bool:
    """Whether the session may act, and see what is in records."""
    session = session_of(request)
    return session is not None and session.operates


def refuse_readers(request: Request) -> None:
    if not operates(request):
        raise HTTPException(403, "the contents of records need the role operate")


def start(request: Request, command: str, arguments: Sequence[str]) -> Child:
    """Start a command for the job of a request; its result is kept in the history, and pages follow its progress."""
    state, job, session = state_of(request), job_of(request).name, session_of(request)
    who = "" if session is None else session.who

    def changed(child: Child) -> None:
        if not child.running:
            detail = {"result": child.result, "lines": list(child.lines)[-20:], "started_at": child.started_at}
            state.history.note(command, job, outcome(child), who, detail)
            state.read_soon(job)
        state.live.publish(job)

    return state.children.start(command, job, arguments, who, changed)


def outcome(child: Child) -> str:
    """How a command ended, in a few words."""
    match child.result:
        case {"verdict": verdict}:
            return str(verdict).replace("_", " ")
        case {"replayed": replayed, "remaining": remaining}:
            return f"{replayed} replayed, {remaining} remain"
        case _:
            return "cancelled" if child.cancelled else f"failed with exit code {child.exit_code}"


def cancel(request: Request, command: str) -> None:
    child = state_of(request).children.of(command, job_of(request).name)
    if child is None or not child.running:
        raise UserError(f"no {command} of {job_of(request).name} runs")
    child.cancel()


def number_of(text: str | None, most: int, default: int = 0) -> int:
    """A number of a query, within its bounds; the default for anything else."""
    return min(int(text), most) if text is not None and text.isdecimal() and len(text) < 20 else default
