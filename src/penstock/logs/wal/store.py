"""What a WAL keeps: topics, records, client keys and the positions of jobs, as rows of its database (`database.py`).

An append is one row, with its first offset and count. Appends that wait share a transaction.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
import zlib
from collections.abc import Sequence
from contextlib import closing

import msgspec

from penstock.errors import PenstockError, UserError
from penstock.logs.log import Partition, SliceShrankError
from penstock.logs.wal.database import FREE_PAGES_KEPT, WalDatabase, durable
from penstock.logs.wal.records import (
    NAME,
    Appended,
    PartitionState,
    Positions,
    Reported,
    StoredAppend,
    WalFullError,
    WalRefusedError,
)

STEPS = ("wal_trimmed", "wal_written", "wal_committed")
"""Where a fault test may end the process: after deletions, before a commit, and after it."""
PARTITIONS_MAX = 256
"""Of a topic."""
CLIENT_KEYS_MAX = 1_000_000
"""Older client keys are forgotten, also within their time."""
ANY_TIME_MS = 2**62
APPEND_BYTES = 64
"""What an append costs on disk besides its records, about."""

Append = tuple[str, int, bytes, str, str, int | None]
"""Topic, number of records, the records, client key, key and partition; "" and None for those that are not given."""


class WalStore(WalDatabase):
    """Topics, records, client keys and positions of jobs."""

    _turns = itertools.count()
    """Of appends without any key, which take turns."""

    def partitions(self, topic: str = "") -> list[PartitionState]:
        """The partitions of a topic, or all."""
        states: dict[Partition, PartitionState] = {}
        rows = self._query(
            "SELECT topic, topic_id, number, first, end, bytes, job, position FROM partitions"
            " LEFT JOIN (SELECT DISTINCT topic_id, job FROM positions) USING (topic_id)"
            " LEFT JOIN positions USING (topic_id, job, number)"
            " WHERE ?1 IN ('', topic) ORDER BY topic, number, job",
            (topic,),
        )
        for name, topic_id, number, first, end, size, job, position in rows:
            partition = Partition(name, topic_id, number)
            state = states.setdefault(partition, PartitionState(partition, first, end, size, {}))
            if job is not None:
                state.positions[job] = position
        if topic and not states:
            raise WalRefusedError(f"there is no topic {topic}", hint="penstock wal create URL TOPIC", status=404)
        return list(states.values())

    @durable
    def create_topic(self, name: str, partitions: int) -> list[PartitionState]:
        """A new topic, or the one that there is if it has as many partitions."""
        _refuse_name(name, "topic")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise WalRefusedError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        counts = dict(self._query("SELECT topic, count(*) FROM partitions GROUP BY topic"))
        if counts.get(name, partitions) != partitions:
            hint = "their number is fixed: a key would move to another partition"
            raise WalRefusedError(f"topic {name} has {counts[name]} partitions", hint=hint)
        if name not in counts:
            self._refuse_if_full()
            topic_id = uuid.uuid4().hex
            rows = [(name, topic_id, number) for number in range(partitions)]
            self._db.executemany("INSERT INTO partitions (topic, topic_id, number) VALUES (?, ?, ?)", rows)
        return self.partitions(name)

    @durable
    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, read or not."""
        topic_id = self.partitions(name)[0].partition.topic_id
        for table in ("partitions", "appends", "client_keys", "positions"):
            self._db.execute(f"DELETE FROM {table} WHERE topic_id = ?", (topic_id,))

    @durable
    def append_all(self, appends: Sequence[Append]) -> list[Appended | PenstockError]:
        """Do several appends with one fsync, each all or nothing; one that is refused holds up none of the others."""
        results: list[Appended | PenstockError] = []
        for append in appends:
            try:
                results.append(self._append(*append))
            except (UserError, WalFullError) as error:
                results.append(error)
        return results

    def _append(self, topic: str, count: int, body: bytes, client_key: str, key: str, number: int | None) -> Appended:
        """Append to the given partition, to that of the key or client key, or to the next one.

        A client key that is known gets the offsets of its first append, wherever that went.
        """
        sql = "SELECT topic_id, end, bytes FROM partitions WHERE topic = ? ORDER BY number"
        partitions = self._query(sql, (topic,)).fetchall()
        if number is None:
            chosen_by = key or client_key
            number = (zlib.crc32(chosen_by.encode()) if chosen_by else next(self._turns)) % max(1, len(partitions))
        if number >= len(partitions):
            self.partitions(topic)
            raise WalRefusedError(f"topic {topic} has no partition {number}", status=404)
        topic_id, start, filled_bytes = partitions[number]
        if client_key and (repeated := self._repeated(topic_id, client_key, body)):
            return repeated
        self._refuse_if_full()
        size = len(body) + APPEND_BYTES
        excess = filled_bytes + size - self.limits.partition_bytes_max
        if excess > 0 and self._trim(self.partitions(topic)[number], ANY_TIME_MS) < excess:
            hint = "send again later; the jobs that read it must go on, or be unregistered"
            raise WalFullError(f"partition {number} is full of records that some job has not read", hint=hint)
        row = (topic_id, number, start, count, int(self._now() * 1000), zlib.crc32(body), body)
        self._db.execute("INSERT INTO appends VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        grown = (count, size, topic, number)
        self._db.execute("UPDATE partitions SET end = end + ?, bytes = bytes + ? WHERE topic = ? AND number = ?", grown)
        if client_key:
            entry = (topic_id, _digest(client_key), _digest(body), number, start, start + count, self._uptime())
            self._db.execute("INSERT OR REPLACE INTO client_keys VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", entry)
        return Appended(number, start, start + count)

    def _uptime(self) -> float:
        """Seconds that servers of this folder have run since the first client key that is kept."""
        return self._monotonic() - self._started_at

    def _repeated(self, topic_id: str, client_key: str, body: bytes) -> Appended | None:
        """The offsets of an earlier append with this key, if there is one within the window."""
        sql = "SELECT number, start, end, digest FROM client_keys WHERE topic_id = ? AND key = ? AND uptime >= ?"
        oldest = self._uptime() - self.limits.dedup_seconds
        row = self._query(sql, (topic_id, _digest(client_key), oldest)).fetchone()
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
        sql = "SELECT topic_id, first FROM partitions WHERE topic = ? AND number = ?"
        row = self._query(sql, (topic, number)).fetchone()
        if row is None:
            raise WalRefusedError(f"there is no partition {topic}/{number}", status=404)
        topic_id, first = row
        if start < first:
            raise SliceShrankError(f"offset {start} of {topic}/{number} is no longer in the log")
        appends: list[StoredAppend] = []
        query = self._query(
            "SELECT start, start + count, at_ms, checksum, body FROM appends WHERE topic_id = ?1 AND number = ?2"
            " AND start < ?3 AND start + count > ?4 AND start >="
            " (SELECT max(start) FROM appends WHERE topic_id = ?1 AND number = ?2 AND start <= ?4) ORDER BY start",
            (topic_id, number, end, start),
        )
        with closing(query):
            for row in query:
                append = StoredAppend(*row)
                bytes_max -= len(append.body)
                if appends and bytes_max < 0:
                    break
                appends.append(append)
        return msgspec.msgpack.encode(appends)

    @durable
    def report(self, job: str, positions: Positions, owner: str = "", reset: bool = False) -> Reported:
        """Note committed positions, and trim below them: they only advance, unless the job begins again (`reset`).

        A job holds every partition of a topic from its first position there on: one without a position counts as
        unread. A name belongs to one table (`owner`): each of two jobs would trim what the other has not read.
        """
        _refuse_name(job, "job")
        [others] = self._query("SELECT count(*) FROM positions WHERE job = ? AND owner != ?", (job, owner)).fetchone()
        if others:
            hint = "give one of both another name or group; if its table was moved, unregister the job first"
            raise WalRefusedError(f"the job {job} is registered for another table", hint=hint)
        states = {state.partition: state for state in self.partitions()}
        moved: Positions = []
        refused = []
        for partition, position in positions:
            state = states.get(partition)
            if state is None or not 0 <= position <= state.end:
                detail = "the topic was deleted or recreated" if state is None else f"it ends at {state.end}"
                raise WalRefusedError(f"there is no offset {position} in partition {partition}", detail=detail)
            before = state.positions.get(job)
            if before is None or reset or position > before:
                moved.append((partition, position))
            elif position < before:
                refused.append((partition, f"already at {before}"))
        rows = [(job, owner, partition.topic_id, partition.number, position) for partition, position in moved]
        self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)", rows)
        for topic in {partition.topic for partition, _ in moved}:
            self._trim_all(topic)
        return moved, refused

    @durable
    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may be deleted."""
        if not self._db.execute("DELETE FROM positions WHERE job = ?", (job,)).rowcount:
            raise WalRefusedError(f"there is no job {job}", status=404)
        self._trim_all()

    def trim(self) -> None:
        """Remove what is no longer needed, and give its space back to the file system."""
        self._remove_old()
        with self._writing:
            self._give_back_pages(FREE_PAGES_KEPT)

    @durable
    def _remove_old(self) -> None:
        """Remove what every job has committed and whose retention is over, and old client keys."""
        self._trim_all()
        # Ids and uptimes grow together, so nothing but the keys that go is read.
        self._db.execute(
            "DELETE FROM client_keys WHERE id <= (SELECT max(id) FROM client_keys) - ?1 OR id < coalesce("
            "(SELECT id FROM client_keys WHERE uptime >= ?2 ORDER BY id LIMIT 1), 1 << 62)",
            (CLIENT_KEYS_MAX, self._uptime() - self.limits.dedup_seconds),
        )

    def _trim_all(self, topic: str = "") -> None:
        expired_ms = int((self._now() - self.limits.retention_seconds) * 1000)
        for state in self.partitions(topic):
            self._trim(state, expired_ms)

    def _trim(self, state: PartitionState, expired_ms: int) -> int:
        """Delete what every job has committed, up to the first append that is not yet expired: how many bytes."""
        committed = min((position or 0 for position in state.positions.values()), default=0)
        place = (state.partition.topic_id, state.partition.number)
        of_partition = "FROM appends WHERE topic_id = ? AND number = ?"
        sql = f"SELECT start {of_partition} AND (start + count > ? OR at_ms > ?) ORDER BY start LIMIT 1"
        kept = self._query(sql, (*place, committed, expired_ms)).fetchone()
        first = state.end if kept is None else kept[0]
        if first == state.first:
            return 0
        sql = f"SELECT sum(length(body) + {APPEND_BYTES}) {of_partition} AND start < ?"
        [freed] = self._query(sql, (*place, first)).fetchone()
        self._db.execute(f"DELETE {of_partition} AND start < ?", (*place, first))
        sql = "UPDATE partitions SET first = ?, bytes = bytes - ? WHERE topic_id = ? AND number = ?"
        self._db.execute(sql, (first, freed, *place))
        self._reach("wal_trimmed")
        return int(freed)


def _digest(data: str | bytes) -> bytes:
    return hashlib.blake2b(data.encode() if isinstance(data, str) else data, digest_size=16).digest()


def _refuse_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        hint = "1 to 249 letters, digits, . _ -, and no . first"
        raise WalRefusedError(f"invalid name of a {what}: {name[:300]!r}", hint=hint)
