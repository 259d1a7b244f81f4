"""The page of a quarantine: kinds of errors, records with the error marked, replay with a preview, discard."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console.access import form_of, operating, reading
from penstock.console.commands import cancel, file_of, number_of, operates, refuse_readers, spec_of, start
from penstock.console.rendering import Link, job_of, render, state_of
from penstock.errors import PenstockError, UserError

link = Link("Quarantine", "quarantine", of_job=True)

PAGES_MAX = 200
CONTAINS_CHARACTERS_MAX = 300
COMMAND = "replay"
"""The name of the process, and of its results in the history."""


@reading
def quarantine(request: Request) -> Response:
    from penstock.console import quarantined  # noqa: PLC0415 - imports PySpark

    kind = request.query_params.get("kind") or None
    page = number_of(request.query_params.get("page"), PAGES_MAX)
    shown, fault = quarantined.Page(), None
    try:
        shown = quarantined.page_of(spec_of(request), kind, page, with_bytes=operates(request))
    except PenstockError as error:
        fault = error
    state, job = state_of(request), job_of(request)
    return render(
        request, "quarantine.html", job=job, shown=shown, fault=fault, kind=kind, page=page,
        pages=min(PAGES_MAX + 1, -(-shown.matching // quarantined.PAGE_ROWS)), text_of=quarantined.literal_part,
        child=state.children.of(COMMAND, job.name), past=state.history.notes(COMMAND, job.name, 5),
    )  # fmt: skip


@reading
def record(request: Request) -> Response:
    """One record in full, up to a bound; several if a recreated topic has its place twice."""
    from penstock.console import quarantined  # noqa: PLC0415 - imports PySpark

    refuse_readers(request)
    params = request.path_params
    records = quarantined.records_at(spec_of(request), params["topic"], params["partition"], params["offset"])
    if not records:
        raise HTTPException(404, "the record is not in quarantine: it was replayed or discarded")
    return render(request, "quarantine_record.html", job=job_of(request), records=records, still=True)


@reading
def preview(request: Request) -> Response:
    """What a replay of the oldest matching records would do now."""
    from penstock.console import quarantined  # noqa: PLC0415 - imports PySpark

    refuse_readers(request)
    contains = request.query_params.get("contains", "")[:CONTAINS_CHARACTERS_MAX]
    result, fault = None, None
    try:
        result = quarantined.previewed(spec_of(request), contains)
    except PenstockError as error:
        fault = error
    return render(
        request,
        "quarantine_preview.html",
        job=job_of(request),
        preview=result,
        contains=contains,
        fault=fault,
        still=True,
    )


@operating("replay the quarantine")
def replay(request: Request) -> Response:
    arguments = ["quarantine", "replay", str(file_of(request)), "--json"]
    contains = form_of(request).get("contains", "")[:CONTAINS_CHARACTERS_MAX]
    start(request, COMMAND, [*arguments, f"--where-error={contains}"] if contains else arguments)
    return _back(request)


@operating("cancel the replay")
def cancel_replay(request: Request) -> Response:
    cancel(request, COMMAND)
    return _back(request)


@operating("discard the quarantine")
def discard(request: Request) -> Response:
    from penstock.console import quarantined  # noqa: PLC0415 - imports PySpark

    spec = spec_of(request)
    if form_of(request).get("typed", "").strip() != spec.name:
        raise UserError("nothing was discarded: the name of the job was not typed", hint=f"type {spec.name}")
    rows = quarantined.discard_all(spec)
    state = state_of(request)
    state.history.note("discard", spec.name, f"{rows} records were discarded")
    state.read_soon(spec.name)
    return _back(request)


def _back(request: Request) -> Response:
    return RedirectResponse(request.url_for("quarantine", job=job_of(request).name).path, 303)


routes = [
    Route("/jobs/{job}/quarantine", quarantine, name="quarantine"),
    Route("/jobs/{job}/quarantine/preview", preview, name="replay_preview"),
    Route("/jobs/{job}/quarantine/replay", replay, methods=["POST"], name="replay"),
    Route("/jobs/{job}/quarantine/replay/cancel", cancel_replay, methods=["POST"], name="cancel_replay"),
    Route("/jobs/{job}/quarantine/discard", discard, methods=["POST"], name="discard"),
    Route("/jobs/{job}/quarantine/{topic}/{partition:int}/{offset:int}", record, name="quarantined_record"),
]
