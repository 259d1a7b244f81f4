"""Live progress on a terminal: one line per job, notable events above it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.events import BatchCommitted, ClaimLost, ClaimReleased, ClaimWon, ColumnsAdded, Event, Level


@dataclass(slots=True)
class _Row:
    state: str = "starting"
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    commits: int = 0
    size_bytes: int = 0
    claims: int = 0
    began_at: float = field(default_factory=time.monotonic)


_CLAIMS: dict[type[Event], int] = {ClaimWon: 1, ClaimLost: -1, ClaimReleased: -1}


class Progress:
    """A live table of the running jobs; `listener(job)` gives each job its voice."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=False)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def listener(self, job: str) -> _JobVoice:
        with self._lock:
            self._rows[job] = _Row()
        return _JobVoice(self, job)

    def hear(self, job: str, event: Event) -> None:
        with self._lock:
            row = self._rows[job]
            row.state = event.in_short()
            row.claims += _CLAIMS.get(type(event), 0)
            if isinstance(event, BatchCommitted):
                row.commits += 1
                row.written += event.written
                row.quarantined += event.quarantined
                row.filtered += event.filtered
                row.size_bytes += event.size_bytes
        if event.level is not Level.INFO or isinstance(event, ColumnsAdded):
            told = " ".join(f"{key}={value}" for key, value in event.facts().items() if value != "")
            self._console.print(f"[bold]{job}[/bold] {event.name} {told}", highlight=False)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("job", "state", "written", "quarantined", "filtered", "commits", "MiB", "records/s", "claims"):
            table.add_column(heading, justify="left" if heading in ("job", "state") else "right")
        with self._lock:
            for job, row in self._rows.items():
                seconds = max(time.monotonic() - row.began_at, 1e-9)
                table.add_row(
                    job,
                    row.state,
                    f"{row.written:,}",
                    f"{row.quarantined:,}",
                    f"{row.filtered:,}",
                    f"{row.commits:,}",
                    f"{row.size_bytes / 2**20:,.1f}",
                    f"{(row.written + row.quarantined + row.filtered) / seconds:,.0f}",
                    str(row.claims) if row.claims else "-",
                )
        return table


@dataclass(frozen=True, slots=True)
class _JobVoice:
    """The listener of one job."""

    progress: Progress
    job: str

    def event(self, event: Event) -> None:
        self.progress.hear(self.job, event)
