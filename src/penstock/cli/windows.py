"""`penstock windows`: the values of windows that are not closed yet."""

from __future__ import annotations

import json as json_text
import math
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.maintenance import Job, Json
from penstock.cli.status import status_console
from penstock.cli.tables import cell, table
from penstock.errors import UserError
from penstock.tables.kind import OpenWindow, OpenWindows, Windowed, WindowsWish
from penstock.tables.registry import kind_of, load_job


def windows(
    job: Job,
    metric: Annotated[list[str] | None, typer.Option(help="Only show this metric; may be repeated.")] = None,
    interval: Annotated[str | None, typer.Option(help="Only show windows of this length, such as 1h.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show at most this many windows.")] = WindowsWish().limit,
    json: Json = False,
) -> None:
    """Show open windows and their values so far."""
    spec = load_job(job)
    kind = kind_of(spec)
    if not isinstance(kind, Windowed):
        raise UserError(f"the table of {spec.name} has no windows", hint="windows are for metrics")
    found = kind.open_windows(spec, WindowsWish(tuple(metric or ()), interval, limit))
    if json:
        rows = [_as_json(window) for window in found.windows]
        typer.echo(json_text.dumps({"job": spec.name, "total": found.total, "windows": rows}))
    else:
        _print(found)


def _print(found: OpenWindows) -> None:
    if found.windows:
        names = tuple(found.windows[0].values)
        rows: list[tuple[str | Text, ...]] = [
            (
                Text(window.metric),
                Text(", ".join(f"{key}={value}" for key, value in window.tags.items())),
                window.interval,
                f"{window.start:%Y-%m-%d %H:%M:%SZ}",
                *(cell(window.values[name]) for name in names),
            )
            for window in found.windows
        ]
        status_console().print(table(("metric", "tags", "interval", "start", *names), rows, left=(0, 1, 2, 3)))
    left_out = found.total - len(found.windows)
    if left_out:
        typer.echo(f"{left_out:,} more open windows; --limit shows more, --metric and --interval choose")
    elif not found.total:
        typer.echo("no open windows")


def _as_json(window: OpenWindow) -> dict[str, Any]:
    return {
        "metric": window.metric,
        "tags": dict(window.tags),
        "interval": window.interval,
        "window_start": _instant(window.start),
        "window_end": _instant(window.end),
        # A sum may be too large for a double, and JSON has no infinity.
        **{name: value if value is None or math.isfinite(value) else None for name, value in window.values.items()},
    }


def _instant(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
