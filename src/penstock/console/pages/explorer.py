"""The explorer: records of a topic around an offset or a time, next to the rows that they became."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.commands import operates, reachable_spec, refuse_readers, spec_of
from penstock.console.rendering import Link, job_of, render
from penstock.errors import PenstockError, UserError

link = Link("Explorer", "explorer", of_job=True)

AROUND_CHARACTERS_MAX = 40


@reading
def explorer(request: Request) -> Response:
    """A window of a partition; without `operate` only places, sizes and what became of the records."""
    return _explored(request, single=False)


@reading
def explored_record(request: Request) -> Response:
    """One record in full, up to a bound."""
    refuse_readers(request)
    return _explored(request, single=True)


@reading
def found_row(request: Request) -> Response:
    """The present row of a key, of a table with a row per key."""
    from penstock.tables.kind import Lookups  # noqa: PLC0415 - imports PySpark
    from penstock.tables.registry import kind_of  # noqa: PLC0415

    refuse_readers(request)
    row, fault = None, None
    try:
        spec = spec_of(request)
        kind = kind_of(spec)
        if not isinstance(kind, Lookups):
            raise UserError(f"the table of {spec.name} has no keys")
        row = kind.find_row(spec, {name: request.query_params.get(name, "") for name in spec.table.keys})
    except PenstockError as error:
        fault = error
    return render(request, "row_of_key.html", job=job_of(request), row=row, fault=fault, still=True)


def _explored(request: Request, *, single: bool) -> Response:
    from penstock.console.explored import explore  # noqa: PLC0415 - imports PySpark
    from penstock.watch.status import status  # noqa: PLC0415

    job, query = job_of(request), request.query_params
    around = query.get("at", "").strip()[:AROUND_CHARACTERS_MAX]
    result, fault = None, None
    try:
        spec = reachable_spec(request)
        # The console may have started just now.
        partitions = (job.status or status(spec)).partitions
        positions = {str(item.partition): item.position for item in partitions}
        result = explore(spec, query.get("partition") or None, around, positions, single=single)
    except PenstockError as error:
        fault = error
    return render(
        request, "explorer.html", job=job, explored=result, fault=fault, around=around, single=single,
        with_bytes=operates(request), still=True,
    )  # fmt: skip


routes = [
    Route("/jobs/{job}/explorer", explorer, name="explorer"),
    Route("/jobs/{job}/explorer/row", found_row, name="row_of_key"),
    Route("/jobs/{job}/explorer/record", explored_record, name="explored_record"),
]
