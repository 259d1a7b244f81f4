"""The SQLite database of a WAL: one folder, one owner, durable transactions, and a full disk that recovers by itself.

A write is one transaction, which SQLite ends with an fsync (`synchronous=FULL`). Readers have connections of their own
and see only committed records. A full disk refuses appends; positions and trimming go on in the space of the reserve
file. Any other failure of the database ends the process: what it has written may never become durable (RULES A1).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import structlog

from penstock.errors import InvariantError, UserError
from penstock.failpoints import AtStep, noop
from penstock.logs.wal.records import WalDamagedError, WalFullError

VERSION = 3
FREE_PAGES_KEPT = 4096
"""Free pages that are kept for further appends; others are given back to the file system."""
PAGES_AT_ONCE = 256
"""Are given back in a transaction, which needs as much space for a moment."""

SETTINGS = ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = FULL", "secure_delete = OFF")
"""Deleted pages are not overwritten, which would need as much space as they have."""

_SCHEMA = """
CREATE TABLE partitions (topic TEXT, topic_id TEXT, number INTEGER, first INTEGER DEFAULT 0, end INTEGER DEFAULT 0,
    bytes INTEGER DEFAULT 0, PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE appends (topic_id TEXT, number INTEGER, start INTEGER, count INTEGER, at_ms INTEGER, checksum INTEGER,
    body BLOB, PRIMARY KEY (topic_id, number, start)) WITHOUT ROWID;
CREATE TABLE client_keys (id INTEGER PRIMARY KEY, topic_id TEXT, key TEXT, digest BLOB, number INTEGER, start INTEGER,
    end INTEGER, uptime REAL, UNIQUE (topic_id, key));
CREATE TABLE positions (job TEXT, owner TEXT, topic_id TEXT, number INTEGER, position INTEGER,
    PRIMARY KEY (job, topic_id, number));
"""
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)

T = TypeVar("T")
P = ParamSpec("P")
Database = TypeVar("Database", bound="WalDatabase")

logger = structlog.get_logger("penstock.wal")


@dataclass(frozen=True, slots=True)
class WalLimits:
    """What the store keeps."""

    partition_bytes_max: int = 4 * 1024**3
    """With so many unread bytes, a partition refuses appends until jobs have read on."""
    reserve_bytes: int = 64 * 1024**2
    """Disk space kept in a file of its own, for positions and trimming once the disk is full."""
    retention_seconds: float = 86_400.0
    """How long records stay after every job has committed them, unless their space is needed."""
    dedup_seconds: float = 3_600.0
    """How long client keys are remembered."""


def end_process(error: BaseException) -> NoReturn:
    """End at once, so that nothing more is acknowledged: what is written may never become durable."""
    logger.error("the log cannot go on, the process ends", error=str(error), kind=type(error).__name__)
    os._exit(InvariantError.exit_code)


class WalDatabase:
    """An open folder until `close`; any thread may call."""

    def __init__(
        self,
        folder: Path,
        limits: WalLimits | None = None,
        now: Callable[[], float] = time.time,
        at_step: AtStep = noop,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or WalLimits()
        self._folder = folder
        self._reserve = folder / "reserve"
        self._now, self._reach, self._monotonic = now, at_step, monotonic
        self._readers = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._writing = threading.Lock()
        self._writer: int | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder)
        # Its space is there for opening the database on a full disk.
        self._reserve.unlink(missing_ok=True)
        try:
            self._db = self._open()
            [newest] = self._db.execute("SELECT coalesce(max(uptime), 0) FROM client_keys").fetchone()
        except sqlite3.DatabaseError as error:
            self.close()
            raise WalDamagedError(f"the database in {folder} cannot be read", detail=str(error)) from None
        # Client keys age only while a server runs: a clock that is set forward or back forgets none of them.
        self._started_at = monotonic() - float(newest)
        self._appends_allowed = self._take_reserve()

    def close(self) -> None:
        """Let the folder go."""
        with self._writing:
            for connection in self._connections:
                connection.close()
            os.close(self._lock)

    def _open(self) -> sqlite3.Connection:
        db = self._connect()
        [version] = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            hint = "let its jobs read it to the end with that version, then serve an empty folder"
            raise UserError(f"{self._folder}/wal.db has version {version}, this program reads {VERSION}", hint=hint)
        if not version:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT")
        # What a killed process wrote may still be in memory of the system only: a checkpoint makes it durable.
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        return db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._folder / "wal.db", timeout=60.0, isolation_level=None, check_same_thread=False)
        self._connections.append(db)
        for setting in SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchall()
        return db

    def _query(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Read what is committed; within a write, what it has written too."""
        if self._writer == threading.get_ident():
            return self._db.execute(sql, values)
        if not hasattr(self._readers, "db"):
            self._readers.db = self._connect()
        db: sqlite3.Connection = self._readers.db
        return db.execute(sql, values)

    def write(self, act: Callable[[], T]) -> T:
        """Do it in one transaction; returns once it is durable.

        On a full disk it is done once more in the space of the reserve, which appends do not get.
        """
        with self._writing:
            try:
                for _ in range(2):
                    try:
                        return self._transaction(act)
                    except sqlite3.OperationalError as error:
                        self._give_reserve(error)
                raise WalFullError("the disk of the log is full")
            except sqlite3.Error as error:
                end_process(error)
            finally:
                if not self._appends_allowed:
                    self._recover_space()

    def _transaction(self, act: Callable[[], T]) -> T:
        self._writer = threading.get_ident()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            result = act()
            self._reach("wal_written")
            self._db.execute("COMMIT")
        finally:
            self._writer = None
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        self._reach("wal_committed")
        return result

    def _take_reserve(self) -> bool:
        """Whether the disk has the space of the reserve; only then appends are accepted."""
        try:
            with self._reserve.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, self.limits.reserve_bytes)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        return True

    def _give_reserve(self, error: sqlite3.OperationalError) -> None:
        """Free the reserve if the disk is full; any other error ends the process."""
        if error.sqlite_errorcode not in _FULL:
            end_process(error)
        if self._appends_allowed:
            logger.warning("the disk is full, appends are refused", detail=str(error))
        self._appends_allowed = False
        self._reserve.unlink(missing_ok=True)

    def _recover_space(self) -> None:
        """Give free pages back to the file system, and accept appends again once the reserve fits."""
        self._give_back_pages(0)
        self._appends_allowed = self._take_reserve()
        if self._appends_allowed:
            logger.info("the disk has space again, appends are accepted")

    def _give_back_pages(self, kept: int) -> None:
        """Shorten the database until it has no more free pages than these."""
        try:
            while (free := self._db.execute("PRAGMA freelist_count").fetchone()[0]) > kept:
                # `execute` would free a single page.
                self._db.executescript(f"PRAGMA incremental_vacuum({min(free - kept, PAGES_AT_ONCE)})")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            self._give_reserve(error)

    def _refuse_if_full(self) -> None:
        if not self._appends_allowed:
            raise WalFullError("the disk of the log is full", hint="send again later, or free space on the disk")


def durable(method: Callable[Concatenate[Database, P], T]) -> Callable[Concatenate[Database, P], T]:
    """Make a method one transaction: it returns once what it wrote is durable."""

    @wraps(method)
    def run(database: Database, /, *arguments: P.args, **options: P.kwargs) -> T:
        return database.write(partial(method, database, *arguments, **options))

    return run


def _lock(folder: Path) -> int:
    """Lock the folder for this process; the lock goes with the process, however it ends."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"another process serves the folder {folder}", hint="one server per folder") from None
    return descriptor
