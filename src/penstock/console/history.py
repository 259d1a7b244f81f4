"""What the console has observed, in SQLite: lag and records over time, commits, and what happened; bounded.

Points are kept in three tiers: the older, the coarser. A thousand partitions need about 60 MB for a week.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import UserError

HOUR, DAY = 3_600, 86_400
DAYS_MAX = 7.0
BYTES_MAX = 200_000_000
TIERS = ((15, HOUR), (120, DAY), (900, 7 * DAY))
"""Seconds of a point, and how long it is kept."""
PRUNE_SECONDS = 300.0
PAGE_BYTES = 4096
PRUNED_SHARE = 0.9
"""Of the bound: above it the oldest rows are deleted early."""
VERSION = 1
_SCHEMA = """
create table series (id integer primary key, job text not null, partition text not null, unique (job, partition));
create table points (
    tier integer, series integer, at integer, lag integer, age integer, read integer, primary key (tier, series, at)
) without rowid;
create table commits (job text, version integer, at real, content text, primary key (job, version)) without rowid;
create table notes (id integer primary key, at real, kind text, job text, text text, who text, detail text);
create index notes_of_job on notes (job, kind, at);
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a job or a partition; `read` counts all records that it ever read."""

    at: int
    lag: int | None
    age: int | None
    read: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened: an action, a change of a verdict, the result of a verification."""

    at: float
    kind: str
    job: str
    text: str
    who: str
    detail: str

    @property
    def content(self) -> Any:
        """The detail as the value that it was made of."""
        return json.loads(self.detail)


class History:
    """The history in one file, used by all threads; `close` it at the end."""

    def __init__(self, path: Path, days_max: float = DAYS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.path = path
        self.days_max = days_max
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], int] = {}
        self._pruned_at = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
            self._prepare()
        except sqlite3.Error as error:
            raise UserError(f"the history {path} cannot be used", detail=str(error), hint="delete or move it") from None

    def _prepare(self) -> None:
        db = self._db
        version = db.execute("pragma user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise UserError(f"the history {self.path} has version {version}", hint="delete it, or use a newer Penstock")
        db.execute("pragma auto_vacuum = incremental")
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute(f"pragma journal_size_limit = {self.bytes_max // 20}")
        db.execute(f"pragma max_page_count = {self.bytes_max // PAGE_BYTES}")
        if version == 0:
            db.executescript(f"begin immediate; {_SCHEMA} pragma user_version = {VERSION}; commit;")
        self._series = {(job, part): number for number, job, part in db.execute("select * from series")}

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; one that the bound refuses is tried no second time: what it has is not kept."""
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                self._pruned_at = 0.0
                if not (isinstance(error, sqlite3.OperationalError) and "full" in str(error)):
                    raise

    def observe(self, job: str, points: Mapping[str, Point]) -> None:
        """Keep what was seen of a job now, by partition, and of the job as a whole under the empty text."""
        with self._writing() as db:
            for partition in points:
                if (job, partition) not in self._series:
                    query = "insert into series (job, partition) values (?, ?) on conflict do update set job = job"
                    number = db.execute(f"{query} returning id", (job, partition)).fetchone()[0]
                    self._series[job, partition] = number
            rows = [
                (tier, self._series[job, partition], point.at // tier * tier, point.lag, point.age, point.read)
                for tier, _ in TIERS
                for partition, point in points.items()
            ]
            db.executemany("insert or replace into points values (?, ?, ?, ?, ?, ?)", rows)
        self.prune()

    def points(self, job: str, seconds: float, partition: str = "", now: float | None = None) -> list[Point]:
        """The points of the last seconds, in the finest tier that reaches so far back."""
        number = self._series.get((job, partition))
        tier = next((tier for tier, kept in TIERS if kept >= seconds), TIERS[-1][0])
        since = (time.time() if now is None else now) - seconds
        query = "select at, lag, age, read from points where tier = ? and series = ? and at >= ? order by at"
        with self._lock:
            return [Point(*row) for row in self._db.execute(query, (tier, number, since))]

    def add_commits(self, job: str, commits: Iterable[tuple[int, float, Mapping[str, object]]]) -> None:
        """Keep commits by version, with their time and what they did."""
        rows = [(job, version, at, json.dumps(content)) for version, at, content in commits]
        with self._writing() as db:
            db.executemany("insert or ignore into commits values (?, ?, ?, ?)", rows)

    def commits(self, job: str, limit: int = 100) -> list[dict[str, Any]]:
        """The newest commits of a job."""
        query = "select content from commits where job = ? order by version desc limit ?"
        with self._lock:
            return [json.loads(content) for (content,) in self._db.execute(query, (job, limit))]

    def note(self, kind: str, job: str, text: str, who: str = "", detail: object = "") -> None:
        """Keep something that happened; a detail that is not a text is kept as JSON."""
        content = detail if isinstance(detail, str) else json.dumps(detail)
        with self._writing() as db:
            row = (time.time(), kind, job, text, who, content)
            db.execute("insert into notes (at, kind, job, text, who, detail) values (?, ?, ?, ?, ?, ?)", row)

    def notes(self, kind: str = "", job: str = "", limit: int = 100) -> list[Note]:
        """What happened, the newest first; of every kind and job by default."""
        query = """select at, kind, job, text, who, detail from notes
            where (? = '' or kind = ?) and (? = '' or job = ?) order by id desc limit ?"""
        with self._lock:
            return [Note(*row) for row in self._db.execute(query, (kind, kind, job, job, limit))]

    def size_bytes(self) -> int:
        with self._lock:
            return int(self._db.execute("pragma page_count").fetchone()[0]) * PAGE_BYTES

    def prune(self, now: float | None = None) -> None:
        """Delete what is too old, from time to time; more of it while the file is near its bound."""
        now = time.time() if now is None else now
        if now - self._pruned_at < PRUNE_SECONDS:
            return
        self._pruned_at = now
        share = 1.0
        self._delete_before(now, share)
        while self.size_bytes() > self.bytes_max * PRUNED_SHARE and share > 0.01:
            share *= 0.8
            self._delete_before(now, share)

    def _delete_before(self, now: float, share: float) -> None:
        horizon = now - self.days_max * DAY * share
        with self._writing() as db:
            for tier, kept in TIERS:
                since = max(now - kept * share, horizon)
                rows = [(tier, number, since) for number in self._series.values()]
                db.executemany("delete from points where tier = ? and series = ? and at < ?", rows)
            db.execute("delete from commits where at < ?", (horizon,))
            db.execute("delete from notes where at < ?", (horizon,))
        with self._lock:
            self._db.execute("pragma incremental_vacuum").fetchall()
            self._db.execute("pragma wal_checkpoint(truncate)").fetchall()
