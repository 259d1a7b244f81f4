"""What a WAL keeps: topics, records, client keys and the positions of jobs, in one SQLite database.

An append is one row, with its first offset and count; appends that wait share a transaction. A transaction ends with
an fsync (`synchronous=FULL`). Readers have connections of their own and see only committed records. A full disk refuses
appends; positions and trimming go on in the space of the reserve file. Any other failure of the database ends the
process: what it has written may never become durable (RULES A1).
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import sqlite3
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from penstock.errors import InvariantError, PenstockError, UserError
from penstock.failpoints import AtStep, noop
from penstock.logs.log import Partition, SliceShrankError
from penstock.logs.wal.records import (
    NAME,
    Appended,
    StoredAppend,
    WalDamagedError,
    WalFullError,
    WalPartition,
    WalRefusedError,
)

STEPS = ("wal_trimmed", "wal_written", "wal_committed")
"""Where a fault test may end the process: after deletions, before a commit, and after it."""
PARTITIONS_MAX = 256
CLIENT_KEYS_MAX = 1_000_000
"""Older client keys are forgotten: each new one replaces the oldest."""
TRIM_BYTES_MAX = 16 * 1024 * 1024
"""The most that one transaction trims from a partition; appends wait for it."""
APPEND_BYTES = 64
"""The approximate overhead of an append on disk."""
VERSION = 5
FREE_PAGES_KEPT = 4096
"""Free pages that are kept for further appends; others are given back to the file system."""
PAGES_AT_ONCE = 256
"""How many pages one transaction gives back; it needs as much space for a moment."""

SETTINGS = ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = FULL", "secure_delete = OFF")
"""Deleted pages are not overwritten, which would need as much space as they have."""

_SCHEMA = """
CREATE TABLE partitions (topic TEXT, topic_id TEXT, number INTEGER, first INTEGER DEFAULT 0, end INTEGER DEFAULT 0,
    bytes INTEGER DEFAULT 0, PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE appends (topic_id TEXT, number INTEGER, start INTEGER, count INTEGER, at_ms INTEGER, checksum INTEGER,
    body BLOB, PRIMARY KEY (topic_id, number, start)) WITHOUT ROWID;
CREATE TABLE client_keys (id INTEGER PRIMARY KEY, topic_id TEXT, key BLOB, digest BLOB, number INTEGER, start INTEGER,
    end INTEGER, UNIQUE (topic_id, key));
CREATE TABLE positions (job TEXT, topic_id TEXT, number INTEGER, position INTEGER,
    PRIMARY KEY (job, topic_id, number));
"""
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)

Append = tuple[str, int, bytes, str, str, int | None]
"""Topic, number of records, the records, client key, key and partition; "" and None for those that are not given."""

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


class WalStore:
    """An open folder until `close`; any thread may call."""

    def __init__(
        self,
        folder: Path,
        limits: WalLimits | None = None,
        now: Callable[[], float] = time.time,
        at_step: AtStep = noop,
    ) -> None:
        self.limits = limits or WalLimits()
        self._folder = folder
        self._reserve = folder / "reserve"
        self._now, self._at_step = now, at_step
        self._writing = threading.Lock()
        self._turns = itertools.count()
        """The next partition for appends without a key."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder)
        # The reserve's space allows opening the database on a full disk.
        self._reserve.unlink(missing_ok=True)
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            os.close(self._lock)
            raise WalDamagedError(f"the database in {folder} cannot be read", detail=str(error)) from None
        self._appends_allowed = self._take_reserve()

    def close(self) -> None:
        """Close the database and release the folder."""
        with self._writing:
            self._db.close()
            os.close(self._lock)

    def partitions(self, topic: str = "") -> list[WalPartition]:
        """The partitions of a topic, or all."""
        with closing(self._connect()) as db:
            return _partitions(db, topic)

    def create_topic(self, name: str, partitions: int) -> list[WalPartition]:
        """Create a topic, or return the existing one if it has as many partitions."""
        _check_name(name, "topic")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise WalRefusedError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        with self._transaction():
            counts = dict(self._db.execute("SELECT topic, count(*) FROM partitions GROUP BY topic"))
            if name not in counts:
                topic_id = uuid.uuid4().hex
                rows = [(name, topic_id, number) for number in range(partitions)]
                self._db.executemany("INSERT INTO partitions (topic, topic_id, number) VALUES (?, ?, ?)", rows)
        if counts.get(name, partitions) != partitions:
            hint = "their number is fixed: a key would move to another partition"
            raise WalRefusedError(f"topic {name} has {counts[name]} partitions", hint=hint)
        return self.partitions(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, read or not; its client keys age like others."""
        with self._transaction():
            topic_id = _partitions(self._db, name)[0].partition.topic_id
            for table in ("partitions", "appends", "positions"):
                self._db.execute(f"DELETE FROM {table} WHERE topic_id = ?", (topic_id,))

    def append_all(self, appends: Sequence[Append]) -> list[Appended | PenstockError]:
        """Do several appends with one fsync, each all or nothing; one that is refused holds up none of the others."""
        results: list[Appended | PenstockError] = []
        with self._transaction():
            for append in appends:
                try:
                    results.append(self._append(*append))
                except (UserError, WalFullError) as error:
                    results.append(error)
        return results

    def _append(self, topic: str, count: int, body: bytes, client_key: str, key: str, number: int | None) -> Appended:
        """Append to the given partition, to that of the key, or to the next one.

        A repeated client key gets the offsets of its first append, wherever that went.
        """
        sql = "SELECT topic_id, end, bytes FROM partitions WHERE topic = ? ORDER BY number"
        partitions = self._db.execute(sql, (topic,)).fetchall()
        if number is None:
            number = (zlib.crc32(key.encode()) if key else next(self._turns)) % max(1, len(partitions))
        if number >= len(partitions):
            _partitions(self._db, topic)
            raise WalRefusedError(f"there is no partition {topic}/{number}", status=404)
        topic_id, start, filled_bytes = partitions[number]
        if client_key and (repeated := self._repeated(topic_id, client_key, body)):
            return repeated
        if not self._appends_allowed:
            raise WalFullError("the disk of the log is full", hint="send again later, or free space on the disk")
        size = len(body) + APPEND_BYTES
        excess = filled_bytes + size - self.limits.partition_bytes_max
        if excess > 0 and self._trim(_partitions(self._db, topic)[number]) < excess:
            hint = "send again later; the jobs that read it must go on, or be unregistered"
            raise WalFullError(f"partition {number} is full of records that some job has not read", hint=hint)
        row = (topic_id, number, start, count, int(self._now() * 1000), zlib.crc32(body), body)
        self._db.execute("INSERT INTO appends VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        grown = (count, size, topic, number)
        self._db.execute("UPDATE partitions SET end = end + ?, bytes = bytes + ? WHERE topic = ? AND number = ?", grown)
        if client_key:
            entry = (topic_id, _digest(client_key.encode()), _digest(body), number, start, start + count)
            cursor = self._db.execute("INSERT INTO client_keys VALUES (NULL, ?, ?, ?, ?, ?, ?)", entry)
            oldest = (cursor.lastrowid or 0) - CLIENT_KEYS_MAX
            self._db.execute("DELETE FROM client_keys WHERE id <= ?", (oldest,))
        return Appended(number, start, start + count)

    def _repeated(self, topic_id: str, client_key: str, body: bytes) -> Appended | None:
        """The offsets of an earlier append with this key, if there is one."""
        sql = "SELECT number, start, end, digest FROM client_keys WHERE topic_id = ? AND key = ?"
        row = self._db.execute(sql, (topic_id, _digest(client_key.encode()))).fetchone()
        if row is None:
            return None
        number, start, end, digest = row
        if digest != _digest(body):
            detail = f"those in [{start}, {end}) of partition {number}"
            hint = "give each append a key of its own, and send exactly the same records when you repeat it"
            raise WalRefusedError(f"the key {client_key!r} was used for other records", detail=detail, hint=hint)
        return Appended(number, start, end, repeated=True)

    def read(self, topic: str, number: int, start: int, end: int, bytes_max: int) -> bytes:
        """Whole appends with the records from `start` on, below `end`, as one answer; at least one, or nothing."""
        appends: list[StoredAppend] = []
        with closing(self._connect()) as db:
            db.execute("BEGIN")
            sql = "SELECT topic_id, first FROM partitions WHERE topic = ? AND number = ?"
            row = db.execute(sql, (topic, number)).fetchone()
            if row is None:
                raise WalRefusedError(f"there is no partition {topic}/{number}", status=404)
            topic_id, first = row
            if start < first:
                raise SliceShrankError(f"offset {start} of {topic}/{number} is no longer in the log")
            query = db.execute(
                "SELECT start, start + count, at_ms, checksum, body FROM appends WHERE topic_id = ?1 AND number = ?2"
                " AND start < ?3 AND start + count > ?4 AND start >="
                " (SELECT max(start) FROM appends WHERE topic_id = ?1 AND number = ?2 AND start <= ?4) ORDER BY start",
                (topic_id, number, end, start),
            )
            for row in query:
                append = StoredAppend(*row)
                bytes_max -= len(append.body)
                if appends and bytes_max < 0:
                    break
                appends.append(append)
        return msgspec.msgpack.encode(appends)

    def report(self, job: str, positions: Sequence[tuple[Partition, int]], reset: bool = False) -> list[int | None]:
        """Note committed positions, and trim below them; returns the positions of these partitions from then on.

        They only advance, unless the job begins again (`reset`). A job holds every partition of a topic from its first
        position there on: one without a position counts as unread.
        """
        _check_name(job, "job")
        with self._transaction():
            states = {state.partition: state for state in _partitions(self._db)}
            for partition, position in positions:
                state = states.get(partition)
                if state is None or not 0 <= position <= state.end:
                    detail = "the topic was deleted or recreated" if state is None else f"it ends at {state.end}"
                    raise WalRefusedError(f"there is no offset {position} in partition {partition}", detail=detail)
                before = state.positions.get(job)
                if before is None or position > before or reset:
                    row = (job, partition.topic_id, partition.number, position)
                    self._db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", row)
                    state.positions[job] = position
            self._trim_expired()
        return [states[partition].positions[job] for partition, _ in positions]

    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may be deleted."""
        with self._transaction():
            if not self._db.execute("DELETE FROM positions WHERE job = ?", (job,)).rowcount:
                raise WalRefusedError(f"there is no job {job}", status=404)
            self._trim_expired()

    def trim(self) -> None:
        """Delete what is no longer needed, in short transactions, and give its space back to the file system."""
        freed_bytes = 1
        while freed_bytes:
            with self._transaction():
                freed_bytes = self._trim_expired()
        with self._writing:
            self._release_space()

    def _trim_expired(self) -> int:
        expired_ms = int((self._now() - self.limits.retention_seconds) * 1000)
        return sum(self._trim(state, expired_ms) for state in _partitions(self._db))

    def _trim(self, state: WalPartition, expired_ms: int | None = None) -> int:
        """Delete the oldest appends that every job has committed and that are expired; returns their bytes."""
        committed = min((position or 0 for position in state.positions.values()), default=0)
        place = (state.partition.topic_id, state.partition.number)
        first, freed_bytes = state.first, 0
        sql = "SELECT start + count, at_ms, length(body) FROM appends WHERE topic_id = ? AND number = ? ORDER BY start"
        with closing(self._db.execute(sql, place)) as appends:
            for end, at_ms, body_bytes in appends:
                expired = expired_ms is None or at_ms <= expired_ms
                if end > committed or not expired or freed_bytes > TRIM_BYTES_MAX:
                    break
                first, freed_bytes = end, freed_bytes + body_bytes + APPEND_BYTES
        if freed_bytes:
            self._db.execute("DELETE FROM appends WHERE topic_id = ? AND number = ? AND start < ?", (*place, first))
            sql = "UPDATE partitions SET first = ?, bytes = bytes - ? WHERE topic_id = ? AND number = ?"
            self._db.execute(sql, (first, freed_bytes, *place))
            self._at_step("wal_trimmed")
        return freed_bytes

    def _open(self) -> sqlite3.Connection:
        db = self._connect()
        for setting in SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchall()
        [version] = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            hint = "let its jobs read it to the end with that version, then serve an empty folder"
            raise UserError(f"{self._folder}/wal.db has version {version}, this program reads {VERSION}", hint=hint)
        if not version:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT")
        # What a killed process wrote may still be in memory of the system only: a checkpoint makes it durable.
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return db

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._folder / "wal.db", timeout=60.0, isolation_level=None, check_same_thread=False)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What the block writes is durable afterwards, or was not written at all.

        On a full disk the block raises `WalFullError` once: the space of the reserve is free for the next one.
        """
        with self._writing:
            try:
                with self._db:  # commits, or rolls back after an error
                    self._db.execute("BEGIN IMMEDIATE")
                    yield
                    self._at_step("wal_written")
            except sqlite3.Error as error:
                self._free_reserve(error)
                raise WalFullError("the disk of the log is full", hint="send again in a moment") from None
            self._at_step("wal_committed")

    def _take_reserve(self) -> bool:
        """Whether the disk has the space of the reserve; only then appends are accepted."""
        try:
            with self._reserve.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, self.limits.reserve_bytes)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        return True

    def _free_reserve(self, error: sqlite3.Error) -> None:
        """Delete the reserve if the disk is full. Any other error ends the process, so that nothing is acknowledged."""
        if getattr(error, "sqlite_errorcode", None) not in _FULL:
            logger.error("the log cannot go on, the process ends", error=str(error), kind=type(error).__name__)
            os._exit(InvariantError.exit_code)
        if self._appends_allowed:
            logger.warning("the disk is full, appends are refused", detail=str(error))
        self._appends_allowed = False
        self._reserve.unlink(missing_ok=True)

    def _release_space(self) -> None:
        """Give free pages back to the file system; accept appends again once the reserve fits."""
        kept = FREE_PAGES_KEPT if self._appends_allowed else 0
        try:
            while (free := self._db.execute("PRAGMA freelist_count").fetchone()[0]) > kept:
                # `execute` would free a single page.
                self._db.executescript(f"PRAGMA incremental_vacuum({min(free - kept, PAGES_AT_ONCE)})")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            self._free_reserve(error)
            return
        if not self._appends_allowed and self._take_reserve():
            self._appends_allowed = True
            logger.info("the disk has space again, appends are accepted")


def _partitions(db: sqlite3.Connection, topic: str = "") -> list[WalPartition]:
    states: dict[Partition, WalPartition] = {}
    rows = db.execute(
        "SELECT topic, topic_id, number, first, end, bytes, job, position FROM partitions"
        " LEFT JOIN (SELECT DISTINCT topic_id, job FROM positions) USING (topic_id)"
        " LEFT JOIN positions USING (topic_id, job, number)"
        " WHERE ?1 IN ('', topic) ORDER BY topic, number, job",
        (topic,),
    )
    for name, topic_id, number, first, end, size, job, position in rows:
        partition = Partition(name, topic_id, number)
        state = states.setdefault(partition, WalPartition(partition, first, end, size, {}))
        if job is not None:
            state.positions[job] = position
    if topic and not states:
        raise WalRefusedError(f"there is no topic {topic}", hint="penstock wal create URL TOPIC", status=404)
    return list(states.values())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _check_name(name: str, kind: str) -> None:
    if not NAME.fullmatch(name):
        hint = "1 to 249 letters, digits, . _ -, and no . first"
        raise WalRefusedError(f"invalid name of a {kind}: {name[:300]!r}", hint=hint)


def _lock(folder: Path) -> int:
    """Lock the folder for this process; the lock goes with the process, however it ends."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(f"another process serves the folder {folder}", hint="one server per folder") from None
    return descriptor
