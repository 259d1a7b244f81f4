"""The live display of `penstock run` on a terminal: two lines per job, and above them what a person should read."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock import events
from penstock.events import Event, Level

REFRESHES_PER_SECOND = 4
TREND_SECONDS = 30.0
"""The lag is compared with the one of so long ago."""
BAR_WIDTH = 12
_UNNAMED_FACTS = ("reason", "detail", "error")
STYLES: Mapping[Level, str] = {Level.DEBUG: "", Level.INFO: "", Level.WARNING: "yellow", Level.ERROR: "red"}


@dataclass(slots=True)
class JobView:
    """What the display shows of one job, kept up to date by its events."""

    job: str
    now: Callable[[], float]
    console: Console
    state: str = "starting"
    style: str = ""
    once: bool = False
    lag: int | None = None
    first_lag: int | None = None
    rate: float | None = None
    """Records per second of the last batch."""
    written: int = 0
    quarantined: int = 0
    committed_at: float | None = None
    _batch_at: float | None = None
    _started_at: float | None = None
    _lags: deque[tuple[float, int]] = field(default_factory=deque)

    def event(self, event: Event) -> None:
        match event:
            case events.JobStarted(once):
                self.once, self._started_at = once, self.now()
            case events.ProgressMeasured():
                self._measure(event.lag)
            case events.BatchPlanned(_, offsets):
                self._batch_at = self.now()
                self._show(f"reading {offsets:,} records")
            case events.BatchCommitted():
                self._commit(event)
            case events.Retrying(reason, _, pause_seconds):
                self._show(f"waits {pause_seconds:.0f} s: {reason}", "yellow")
            case events.ExecutorsAwaited(executors, requested, cluster):
                waits = f"waits for an executor: asked for {requested}; the cluster has {cluster}"
                self._show(*((f"{executors} executors came", "") if executors else (waits, "yellow")))
            case events.JobStopped():
                self._show("done" if self.once and not self.lag else "stopped")
            case events.JobFailed(_, reason) | events.JobCrashed(_, reason):
                self._show(f"failed: {reason}", "red")
        if event.level in (Level.WARNING, Level.ERROR) and not isinstance(event, events.JobFailed):
            self._print(event)

    def _show(self, state: str, style: str = "") -> None:
        self.state, self.style = state, style

    def _measure(self, lag: int) -> None:
        self.lag = lag
        self.first_lag = lag if self.first_lag is None else self.first_lag
        self._lags.append((self.now(), lag))
        while self._lags[0][0] < self.now() - TREND_SECONDS:
            self._lags.popleft()
        self._show("waits for more records" if lag else "idle: everything is read")

    def _commit(self, batch: events.BatchCommitted) -> None:
        now = self.now()
        if self._batch_at is not None and now > self._batch_at:
            self.rate = batch.read / (now - self._batch_at)
        self.committed_at, self._batch_at = now, None
        self.written += batch.written
        self.quarantined += batch.quarantined
        # A bounded run ends with its last commit, and measures no more.
        self.lag = max(0, self.lag - batch.read) if self.lag is not None else None
        self._show("committed")

    def _print(self, event: Event) -> None:
        """Print a warning above the display."""
        facts = event.facts()
        words = [str(facts[name]) for name in _UNNAMED_FACTS if facts.get(name)]
        words += [f"{name}={fact}" for name, fact in facts.items() if name not in _UNNAMED_FACTS]
        line = Text.assemble(
            f"{_clock(self.now())} {self.job}: ", (event.name, STYLES[event.level]), f": {', '.join(words)}"
        )
        self.console.print(line, soft_wrap=True)

    @property
    def trend(self) -> str:
        """How the lag moves."""
        if not self._lags or self._lags[0][1] == self._lags[-1][1]:
            return " "
        return "▲" if self._lags[-1][1] > self._lags[0][1] else "▼"

    @property
    def share(self) -> float | None:
        """The share of a bounded run that is done; None if it is not known."""
        return None if not self.once or not self.first_lag or self.lag is None else 1 - self.lag / self.first_lag

    def render(self) -> RenderableType:
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        lag = "" if self.lag is None else f"lag {self.lag:,}{self.trend}"
        rate = "" if self.rate is None else f"{self.rate:,.0f}/s"
        grid.add_row(Text.assemble((self.job, "bold"), "  ", (self.state, self.style)), Text(f"{lag}  {rate}".strip()))
        grid.add_row(Text(self._totals(), style="dim"), self._progress())
        return grid

    def _totals(self) -> str:
        if self.committed_at is None:
            return "no commit in this run yet"
        text = f"committed {_clock(self.committed_at)}: {self.written:,} rows"
        return f"{text}, {self.quarantined:,} quarantined" if self.quarantined else text

    def _progress(self) -> RenderableType:
        share = self.share
        if share is None or self._started_at is None:
            return Text()
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(1, share, width=BAR_WIDTH), Text(f"{share:4.0%}{self._time_left(share)}"))
        return bar

    def _time_left(self, share: float) -> str:
        if not 0 < share < 1 or self._started_at is None:
            return ""
        minutes, seconds = divmod(round((self.now() - self._started_at) * (1 - share) / share), 60)
        return f" {minutes}:{seconds:02} left"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%SZ}"


class LiveDisplay:
    """The jobs of a process on a terminal; a context manager."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.time) -> None:
        self.console = console or Console(highlight=False)
        self._now = now
        self._views: list[JobView] = []
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def listener(self, job: str) -> JobView:
        with self._lock:
            self._views.append(JobView(job, self._now, self.console))
            return self._views[-1]

    def __rich__(self) -> RenderableType:
        with self._lock:
            return Group(*(view.render() for view in self._views))

    def __enter__(self) -> Self:
        self._stack.enter_context(Live(self, console=self.console, refresh_per_second=REFRESHES_PER_SECOND))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
