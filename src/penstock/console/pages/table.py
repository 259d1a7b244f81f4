"""The table of a job: its columns with the history of their changes, and the sizes of its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.console.access import reading
from penstock.console.rendering import Link, job_of, render, size

if TYPE_CHECKING:
    from penstock.lake.delta.table import DeltaLog

link = Link("Table", "table", of_job=True)
COMMITS_SEARCHED = 5_000
"""The newest ones, for changes of columns."""
SIZES = tuple(2**power for power in range(10, 34, 2))
"""The bounds of the bars: 1 KiB, 4 KiB and so on."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    at: datetime
    version: int
    text: str


@reading
def table(request: Request) -> Response:
    """Only this page reads the log of the table: it may be long."""
    from penstock.tables.registry import kind_of  # noqa: PLC0415 - imports PySpark, which takes longer than the start

    job = job_of(request)
    logs = kind_of(job.spec).data_tables(job.spec) if job.spec is not None else {}
    name = request.query_params.get("table", "")
    name = name if name in logs else next(iter(logs), "")
    log = logs.get(name)
    shown: dict[str, Any] = {"columns": (), "changes": (), "bars": (), "files": 0, "bytes": 0, "rows": None}
    if log is not None:
        files = log.active_files()
        rows = [file.rows for file in files]
        shown = {
            "columns": list(columns_of(log.schema)),
            "changes": list(schema_changes(log)),
            "bars": size_bars([file.size_bytes for file in files]),
            "files": len(files),
            "bytes": sum(file.size_bytes for file in files),
            "rows": None if None in rows else sum(filter(None, rows)),
        }
    return render(request, "table.html", job=job, names=list(logs), name=name, log=log, **shown)


def columns_of(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    return ((field.name, str(field.type)) for field in schema)


def schema_changes(log: DeltaLog) -> Iterator[SchemaChange]:
    """The commits that changed columns, as far as the log retains them; the newest first."""
    for record in log.handle.history(COMMITS_SEARCHED):
        operation, parameters = str(record.get("operation")), record.get("operationParameters") or {}
        if operation in ("ADD COLUMN", "CREATE TABLE", "CHANGE COLUMN", "DROP COLUMNS", "REPLACE TABLE"):
            at = datetime.fromtimestamp(record["timestamp"] / 1000, UTC)
            names = _names(parameters.get("fields") or parameters.get("metadata") or "")
            text = f"{len(names)} columns" if operation == "CREATE TABLE" else ", ".join(names)
            yield SchemaChange(at, int(record["version"]), f"{operation.lower()}: {text}")


def _names(text: str) -> list[str]:
    """The columns in the parameters of an operation, with their types."""
    try:
        values = json.loads(text)
        fields = values if isinstance(values, list) else json.loads(values["schemaString"])["fields"]
        return [f"{item['name']} {item['type'] if isinstance(item['type'], str) else 'nested'}" for item in fields]
    except (ValueError, KeyError, TypeError):
        return []


def size_bars(sizes: Sequence[int]) -> list[tuple[str, int, float]]:
    """How many files there are by size: label, count, share of the highest bar."""
    counts = Counter(next((bound for bound in SIZES if item < bound), SIZES[-1] * 4) for item in sizes)
    highest = max(counts.values(), default=1)
    bounds = [bound for bound in (*SIZES, SIZES[-1] * 4) if min(counts, default=0) <= bound <= max(counts, default=0)]
    return [(f"below {size(bound)}", counts[bound], counts[bound] / highest) for bound in bounds]


routes = [Route("/jobs/{job}/table", table, name="table")]
