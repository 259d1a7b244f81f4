"""Live progress on a terminal: one line per job, notable events above it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.events import BatchCommitted, ClaimLost, ClaimReleased, ClaimWon, ColumnsAdded, Event, Level

_CLAIMS: dict[type[Event], int] = {ClaimWon: 1, ClaimLost: -1, ClaimReleased: -1}


@dataclass(slots=True)
class JobLine:
    """The line of one job, as its events change it."""

    job: str
    console: Console
    lock: threading.Lock
    state: str = "starting"
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    commits: int = 0
    size_bytes: int = 0
    claims: int = 0
    began_at: float = field(default_factory=time.monotonic)

    def event(self, event: Event) -> None:
        with self.lock:
            self.state = event.in_short()
            self.claims += _CLAIMS.get(type(event), 0)
            if isinstance(event, BatchCommitted):
                self.commits += 1
                self.written += event.written
                self.quarantined += event.quarantined
                self.filtered += event.filtered
                self.size_bytes += event.size_bytes
        if event.level is not Level.INFO or isinstance(event, ColumnsAdded):
            facts = " ".join(f"{key}={value}" for key, value in event.facts().items() if value != "")
            self.console.print(f"[bold]{self.job}[/bold] {event.name} {facts}", highlight=False)


class Progress:
    """A live table of the running jobs; `listener(job)` adds the line of a job."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._lines: dict[str, JobLine] = {}
        self._lock = threading.Lock()
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4, transient=False)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def listener(self, job: str) -> JobLine:
        with self._lock:
            self._lines[job] = JobLine(job, self._console, self._lock)
            return self._lines[job]

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("job", "state", "written", "quarantined", "filtered", "commits", "MiB", "records/s", "claims"):
            table.add_column(heading, justify="left" if heading in ("job", "state") else "right")
        with self._lock:
            for job, row in self._lines.items():
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
