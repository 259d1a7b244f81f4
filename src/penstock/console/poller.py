"""Reads the status of every job again and again, in a few threads, and keeps what it has seen."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from penstock.console.history import HOUR, Point
from penstock.console.job_text import without_secret_values
from penstock.console.state import LOGGER, ConsoleState, WatchedJob
from penstock.errors import PenstockError, UserError
from penstock.job.spec import JobSpec, kafka_of
from penstock.reporting.model import JobStatus, PartitionStatus

WORKERS = 4
PAUSE_SECONDS = 5.0
"""Between two readings of a job."""
PAUSE_SHARE = 10.0
"""The pause is at least so many times as long as the reading: many or slow jobs are read less often."""
PAUSE_SECONDS_MAX = 60.0
RATE_SECONDS = 60.0
OWNERS_SECONDS = 30.0
"""Between two readings of a coordination topic."""
READING = float("inf")
"""When a job is due that is being read."""


class Poller:
    """A context manager; while it is open every job is read."""

    def __init__(self, state: ConsoleState, workers: int = WORKERS, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.state = state
        self.pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._due = dict.fromkeys(state.jobs, 0.0)
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(name=f"console poller {n}", target=self._work, daemon=True) for n in range(workers)
        ]

    def __enter__(self) -> Poller:
        self.state.read_soon = self.soon
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(PAUSE_SECONDS)

    def soon(self, name: str) -> None:
        """Read a job at once, after an action."""
        with self._changed:
            if self._due[name] != READING:
                self._due[name] = 0.0
            self._changed.notify()

    def _work(self) -> None:
        while (name := self._next()) is not None:
            began = time.monotonic()
            job = self.state.jobs[name]
            read_job(job, self.state)
            took = time.monotonic() - began
            with self._changed:
                self._due[name] = time.monotonic() + min(PAUSE_SECONDS_MAX, max(self.pause_seconds, took * PAUSE_SHARE))
                self._changed.notify()

    def _next(self) -> str | None:
        """The job that is due first, once it is due; no other thread reads it meanwhile."""
        with self._changed:
            while not self._stop.is_set():
                name = min(self._due, key=lambda name: self._due[name], default=None)
                wait = self._due[name] - time.monotonic() if name is not None else PAUSE_SECONDS_MAX
                if name is not None and wait <= 0:
                    self._due[name] = READING
                    return name
                self._changed.wait(min(wait, PAUSE_SECONDS_MAX))
        return None


def read_job(job: WatchedJob, state: ConsoleState) -> None:
    """Read the file of a job, its table and its log once; a fault is kept in its place."""
    before = job.judgement
    try:
        _read(job, state)
        job.error = ""
    except PenstockError as error:
        job.error = str(error)
    except Exception as error:  # noqa: BLE001 - the top of a thread: one job must not end the others
        LOGGER.exception("the status of %s cannot be read", job.name)
        job.error = f"{type(error).__name__}: {error}"
    after = job.judgement
    if after is not None and after.verdict != (before.verdict if before else None):
        with suppress(sqlite3.Error):
            state.history.note("verdict", job.name, after.verdict, detail=after.reason)
    state.live.publish(job.name)


def _read(job: WatchedJob, state: ConsoleState) -> None:
    from penstock.watch.status import status  # noqa: PLC0415 - imports PySpark, which takes longer than the start

    spec = _spec(job)
    newest, now = status(spec), time.time()
    job.status, job.read_at = newest, now
    commits = ((item.version, item.at.timestamp(), item.as_json()) for item in newest.commits)
    state.history.add_commits(job.name, commits)
    state.history.observe(job.name, points_of(newest, now))
    job.recent = state.history.points(job.name, HOUR)
    job.rate = rate_of(job.recent)
    _read_owners(job, spec, now)


def _read_owners(job: WatchedJob, spec: JobSpec, now: float) -> None:
    """Read who holds which partition, now and then; if that fails the owners that were read last stay."""
    if spec.claims is None:
        partitions = job.status.partitions if job.status is not None else ()
        job.owners = {str(item.partition): "static" for item in partitions}
    elif now - job.owners_read_at > OWNERS_SECONDS:
        from penstock.claims.admin.commands import list_claims  # noqa: PLC0415 - takes as long as the rest of the start
        from penstock.claims.admin.log_reader import CoordinatedGroup  # noqa: PLC0415

        job.owners_read_at = now
        with suppress(PenstockError):
            listing = list_claims(CoordinatedGroup(kafka_of(spec), spec.log.group, spec.claims.topic))
            job.owners = {str(item.partition): item.owner or "" for item in listing.held}


def _spec(job: WatchedJob) -> JobSpec:
    """The job by its file as it is now; a file that did not change is not read again."""
    from penstock.tables.registry import load_job  # noqa: PLC0415 - takes as long as the rest of the start

    if job.path is None:
        assert job.spec is not None
        return job.spec
    try:
        changed_at = job.path.stat().st_mtime_ns
        if job.spec is None or job.changed_at != changed_at:
            text = job.path.read_text("utf-8")
            job.spec, job.text, job.changed_at = load_job(job.path), without_secret_values(text), changed_at
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the job file {job.path} cannot be read", detail=str(error)) from None
    return job.spec


def points_of(status: JobStatus, now: float) -> dict[str, Point]:
    """What the history keeps of a status: each partition, and the job as a whole."""
    points = {
        str(item.partition): Point(int(now), item.lag_records, _age(item), item.totals.read)
        for item in status.partitions
    }
    lags = [point.lag for point in points.values() if point.lag is not None]
    ages = [point.age for point in points.values() if point.age is not None]
    whole = Point(int(now), sum(lags) if lags else None, max(ages, default=None), sum(p.read for p in points.values()))
    return {**points, "": whole} if status.started else {}


def _age(partition: PartitionStatus) -> int | None:
    """Of the oldest unread record, in whole seconds; 0 where none waits."""
    if partition.lag_records == 0:
        return 0
    return None if partition.lag_seconds is None else int(partition.lag_seconds)


def rates(points: Sequence[Point]) -> list[tuple[float, float | None]]:
    """Records per second between consecutive points; a count that fell is of another table."""
    return [(after.at, max(0, after.read - before.read) / (after.at - before.at)) for before, after in pairwise(points)]


def rate_of(points: Sequence[Point]) -> float | None:
    """Records per second over the last minute."""
    last = [point for point in points if point.at >= points[-1].at - RATE_SECONDS]
    if len(last) < 2:
        return None
    return max(0, last[-1].read - last[0].read) / (last[-1].at - last[0].at)
