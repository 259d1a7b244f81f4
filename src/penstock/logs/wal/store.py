"""What a WAL keeps: topics, records, client keys and the positions of jobs, as rows of its database (`database.py`).

A request is one row per partition, with its first offset and count. Appends that wait share a transaction.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from penstock.errors import PenstockError
from penstock.logs.log import SliceShrankError
from penstock.logs.wal.database import FREE_PAGES_KEPT, WalDatabase
from penstock.logs.wal.errors import UnknownTopicError, WalFullError, WalRefusedError
from penstock.logs.wal.records import (
    Appended,
    EncodedRecord,
    PartitionView,
    PositionsReport,
    Reported,
    StoredAppend,
    TopicView,
    join_records,
)

STEPS = ("wal_trimmed", "wal_written", "wal_committed")
"""Where a fault test may end the process: after deletions, before a commit, and after it."""
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")
"""Of topics and jobs."""
CLIENT_KEY_BYTES_MAX = 255
APPEND_BYTES = 64
"""What an append costs on disk besides its records, about."""


class WalStore(WalDatabase):
    """Topics, records, client keys and positions of jobs."""

    # topics

    def topics(self) -> dict[str, TopicView]:
        """All topics with their partitions."""
        topics: dict[str, TopicView] = {}
        columns = "topic, topic_id, number, first, end, bytes"
        for name, topic_id, *partition in self._query(f"SELECT {columns} FROM partitions ORDER BY topic, number"):
            topics.setdefault(name, TopicView(name, topic_id, [])).partitions.append(PartitionView(*partition))
        return topics

    def topic(self, name: str) -> TopicView:
        topics = self.topics()
        if name not in topics:
            known = ", ".join(sorted(topics)[:20])
            raise UnknownTopicError(f"there is no topic {name}", hint=f"the log has {known or 'none'}")
        return topics[name]

    def create_topic(self, name: str, partitions: int) -> TopicView:
        """A new topic, or the one that there is if it has as many partitions."""
        _refuse_name(name, "topic")
        if not 1 <= partitions <= self.limits.partitions_max:
            raise WalRefusedError(f"a topic has 1 to {self.limits.partitions_max} partitions, not {partitions}")
        self._write_one(lambda: self._create_topic(name, partitions))
        return self.topic(name)

    def _create_topic(self, name: str, partitions: int) -> None:
        topics = self.topics()
        if name in topics:
            count = len(topics[name].partitions)
            if count != partitions:
                hint = "their number is fixed: a key would move to another partition, and its repeat with it"
                raise WalRefusedError(f"topic {name} has {count} partitions", hint=hint)
            return
        if len(topics) >= self.limits.topics_max:
            raise WalRefusedError(f"there are {len(topics)} topics already")
        self._refuse_if_full()
        topic_id = uuid.uuid4().hex
        rows = [(name, topic_id, number) for number in range(partitions)]
        self._db.executemany("INSERT INTO partitions (topic, topic_id, number) VALUES (?, ?, ?)", rows)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, read or not."""
        self._write_one(lambda: self._delete_topic(self.topic(name).id))

    def _delete_topic(self, topic_id: str) -> None:
        chosen = "WHERE topic_id = ?"
        self._db.execute(f"DELETE FROM appends WHERE partition IN (SELECT id FROM partitions {chosen})", (topic_id,))
        for table in ("partitions", "client_keys", "positions"):
            self._db.execute(f"DELETE FROM {table} {chosen}", (topic_id,))

    # records

    def append(
        self, topic: str, records: Sequence[EncodedRecord], client_key: str = "", partition: int | None = None
    ) -> list[Appended]:
        """Append records, all or none; returns once they are durable."""
        return self._write_one(self.append_act(topic, records, client_key, partition))

    def append_all(self, acts: Sequence[Callable[[], list[Appended]]]) -> list[list[Appended] | PenstockError]:
        """Append what `append_act` has prepared, with one fsync."""
        return self._write(*acts)

    def append_act(
        self, topic: str, records: Sequence[EncodedRecord], client_key: str = "", partition: int | None = None
    ) -> Callable[[], list[Appended]]:
        """Prepare an append: records go to the named partition, those with a key to that of the key, others to one.

        A client key that is known gets the offsets of its first append, wherever that went.
        """
        if len(client_key.encode()) > CLIENT_KEY_BYTES_MAX:
            raise WalRefusedError(f"a client key has at most {CLIENT_KEY_BYTES_MAX} bytes")
        count = len(self._partitions(topic))
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicError(f"topic {topic} has no partition {partition}")
        self._turn += 1
        without_key = zlib.crc32(client_key.encode()) if client_key else self._turn
        shares: dict[int, list[bytes]] = {}
        digest = hashlib.blake2b(digest_size=16)
        for key, encoded in records:
            digest.update(encoded)
            chosen = (without_key if key is None else zlib.crc32(key)) % count
            shares.setdefault(chosen if partition is None else partition, []).append(encoded)
        bodies = [(number, len(share), join_records(share)) for number, share in sorted(shares.items())]
        return lambda: self._append(topic, bodies, client_key, digest.digest())

    def _partitions(self, topic: str) -> dict[int, tuple[int, str, int, int]]:
        """Id, topic id, end and bytes of the partitions of a topic, by number."""
        rows = self._query("SELECT number, id, topic_id, end, bytes FROM partitions WHERE topic = ?", (topic,))
        partitions = {number: values for number, *values in rows}
        if not partitions:
            self.topic(topic)
        return partitions

    def _append(
        self, topic: str, bodies: Sequence[tuple[int, int, bytes]], client_key: str, digest: bytes
    ) -> list[Appended]:
        partitions = self._partitions(topic)
        topic_id = partitions[0][1]
        if client_key and (known := self._known_append(topic_id, client_key, digest)):
            return known
        self._refuse_if_full()
        for number, _, body in bodies:
            self._refuse_if_partition_full(topic_id, number, partitions[number], len(body) + APPEND_BYTES)
        at_ms = int(self._now() * 1000)
        appended = []
        for number, count, body in bodies:
            partition, _, start, _ = partitions[number]
            row = (partition, start, count, at_ms, zlib.crc32(body), body)
            self._db.execute("INSERT INTO appends VALUES (?, ?, ?, ?, ?, ?)", row)
            grown = (count, len(body) + APPEND_BYTES, partition)
            self._db.execute("UPDATE partitions SET end = end + ?, bytes = bytes + ? WHERE id = ?", grown)
            appended.append(Appended(number, start, start + count))
        if client_key:
            entry = (topic_id, client_key, digest, msgspec.msgpack.encode(appended), self._uptime())
            self._db.execute("INSERT OR REPLACE INTO client_keys VALUES (?, ?, ?, ?, ?)", entry)
        return appended

    def _uptime(self) -> float:
        """Seconds that servers of this folder have run since the first client key that is kept."""
        return self._monotonic() - self._started_at

    def _known_append(self, topic_id: str, client_key: str, digest: bytes) -> list[Appended]:
        """The offsets of an earlier append with this key; none if there is none within the window."""
        sql = "SELECT digest, answer FROM client_keys WHERE topic_id = ? AND key = ? AND uptime >= ?"
        oldest = self._uptime() - self.limits.dedup_seconds
        for known_digest, answer in self._query(sql, (topic_id, client_key, oldest)):
            places = msgspec.msgpack.decode(answer, type=list[Appended])
            if known_digest != digest:
                raise WalRefusedError(
                    f"the key {client_key!r} was used for other records",
                    detail=", ".join(f"partition {place.partition}: [{place.start}, {place.end})" for place in places),
                    hint="give each append a key of its own, and send exactly the same records when you repeat it",
                )
            return [Appended(place.partition, place.start, place.end, repeated=True) for place in places]
        return []

    def _refuse_if_partition_full(
        self, topic_id: str, number: int, partition: tuple[int, str, int, int], size: int
    ) -> None:
        needed = partition[3] + size - self.limits.partition_bytes_max
        if needed > 0 and self._trim(partition[0], topic_id, number, needed) < needed:
            raise WalFullError(
                f"partition {number} is full: {partition[3]} bytes are not yet read by every job",
                hint="send again later; the jobs that read it must go on, or be unregistered",
            )

    def read(self, topic: str, number: int, start: int, end: int, bytes_max: int) -> bytes:
        """Whole appends with the records from `start` on, below `end`, as one answer; at least one, or nothing."""
        row = self._query("SELECT id, first FROM partitions WHERE topic = ? AND number = ?", (topic, number)).fetchone()
        if row is None:
            raise UnknownTopicError(f"there is no partition {topic}/{number}")
        partition, first = row
        if start < first:
            raise SliceShrankError(f"offset {start} of {topic}/{number} is no longer in the log")
        appends: list[StoredAppend] = []
        query = self._query(
            "SELECT start, count, at_ms, checksum, body FROM appends WHERE partition = ?1 AND start < ?2 AND start >="
            " (SELECT max(start) FROM appends WHERE partition = ?1 AND start <= ?3) ORDER BY start",
            (partition, end, start),
        )
        with closing(query):
            for row in query:
                append = StoredAppend(*row)
                bytes_max -= len(append.body)
                if appends and bytes_max < 0:
                    break
                if append.end > start:
                    appends.append(append)
        return msgspec.msgpack.encode(appends)

    # jobs

    def positions(self) -> Iterator[tuple[str, str, str, int, int]]:
        """Every job with topic, topic id, partition and what it has committed."""
        yield from self._query(
            "SELECT job, topic, topic_id, number, position FROM positions JOIN partitions USING (topic_id, number)"
            " ORDER BY job, topic, number"
        )

    def jobs(self) -> dict[str, dict[str, dict[int, int]]]:
        """What each job has committed, by topic and partition."""
        jobs: dict[str, dict[str, dict[int, int]]] = {}
        for job, topic, _, number, position in self.positions():
            jobs.setdefault(job, {}).setdefault(topic, {})[number] = position
        return jobs

    def report(self, job: str, report: PositionsReport) -> Reported:
        """Note committed positions, durably, and trim below them.

        A job holds every partition of a topic from its first position there on: one without a position counts as
        unread. A name belongs to one table (`owner`): each of two jobs would trim what the other has not read.
        """
        _refuse_name(job, "job")
        return self._write_one(lambda: self._report(job, report))

    def _report(self, job: str, report: PositionsReport) -> Reported:
        owners = dict(self._query("SELECT DISTINCT job, owner FROM positions"))
        if owners.get(job, report.owner) != report.owner:
            hint = "give one of both another name or group; if its table was moved, unregister the job first"
            raise WalRefusedError(f"the job {job} is registered for another table", hint=hint)
        if job not in owners and len(owners) >= self.limits.jobs_max:
            raise WalRefusedError(f"there are {len(owners)} jobs already", hint="unregister some of them")
        known = {(topic, number): position for name, topic, _, number, position in self.positions() if name == job}
        reported = Reported([], [])
        for name, offsets in report.topics.items():
            topic = self.topic(name)
            for number, position in offsets.offsets.items():
                _refuse_position(topic, offsets.id, number, position)
                before = known.get((name, number))
                if before is None or report.way == "reset" or (report.way == "advance" and position > before):
                    reported.moved.append((name, topic.id, number, position))
                elif report.way == "advance" and position < before:
                    reported.refused.append((name, topic.id, number, f"already at {before}"))
        rows = [(job, report.owner, topic_id, number, position) for _, topic_id, number, position in reported.moved]
        self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)", rows)
        self._trim_all(topic_id for _, topic_id, *_ in reported.moved)
        return reported

    def forget_job(self, job: str) -> None:
        """Unregister a job: what only it still needed may go."""
        self._write_one(lambda: self._forget_job(job))

    def _forget_job(self, job: str) -> None:
        if not self._db.execute("DELETE FROM positions WHERE job = ?", (job,)).rowcount:
            raise UnknownTopicError(f"there is no job {job}")
        self._tidy()

    # trimming

    def trim(self) -> None:
        """Remove what is no longer needed, and give its space back to the file system."""
        self._write_one(self._tidy)
        with self._writing:
            while self._give_back_pages(FREE_PAGES_KEPT):
                pass

    def _tidy(self) -> None:
        """Remove what every job has committed and whose retention is over, and old client keys."""
        rows = self._query("SELECT topic_id, count(*) FROM partitions GROUP BY topic_id").fetchall()
        self._trim_all(topic_id for topic_id, _ in rows)
        self._db.execute("DELETE FROM client_keys WHERE uptime < ?", (self._uptime() - self.limits.dedup_seconds,))
        for topic_id, partitions in rows:
            self._db.execute(
                "DELETE FROM client_keys WHERE topic_id = ?1 AND uptime <="
                " (SELECT uptime FROM client_keys WHERE topic_id = ?1 ORDER BY uptime DESC LIMIT 1 OFFSET ?2)",
                (topic_id, self.limits.dedup_keys_max * partitions),
            )

    def _trim_all(self, topic_ids: Iterator[str]) -> None:
        for topic_id in set(topic_ids):
            sql = "SELECT id, number FROM partitions WHERE topic_id = ? AND bytes > 0"
            for partition, number in self._query(sql, (topic_id,)).fetchall():
                self._trim(partition, topic_id, number)

    def _trim(self, partition: int, topic_id: str, number: int, needed_bytes: int = 0) -> int:
        """Delete what every job has committed, if its retention is over or its space is needed: how many bytes."""
        [committed] = self._query(
            "SELECT min(coalesce(position, 0)) FROM (SELECT DISTINCT job FROM positions WHERE topic_id = ?1)"
            " LEFT JOIN (SELECT job, position FROM positions WHERE topic_id = ?1 AND number = ?2) USING (job)",
            (topic_id, number),
        ).fetchone()
        if committed is None:
            return 0
        expired_ms = int((self._now() - self.limits.retention_seconds) * 1000)
        first, freed = 0, 0
        query = self._query(
            "SELECT start + count, at_ms, length(body) FROM appends WHERE partition = ?1 AND start < ?2"
            " AND start + count <= ?2 ORDER BY start",
            (partition, committed),
        )
        with closing(query):
            for end, at_ms, size in query:
                if at_ms > expired_ms and freed >= needed_bytes:
                    break
                first, freed = end, freed + size + APPEND_BYTES
        if first:
            self._db.execute("DELETE FROM appends WHERE partition = ? AND start < ?", (partition, first))
            values = (first, freed, partition)
            self._db.execute("UPDATE partitions SET first = ?, bytes = bytes - ? WHERE id = ?", values)
            self._reach("wal_trimmed")
        return freed


def _refuse_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        hint = "1 to 249 letters, digits, . _ -, and no . first"
        raise WalRefusedError(f"invalid name of a {what}: {name[:300]!r}", hint=hint)


def _refuse_position(topic: TopicView, topic_id: str, number: int, position: int) -> None:
    if topic.id != topic_id:
        raise WalRefusedError(f"topic {topic.name} was recreated: its id is {topic.id}")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicError(f"topic {topic.name} has no partition {number}")
    if not 0 <= position <= topic.partitions[number].end:
        end = topic.partitions[number].end
        raise WalRefusedError(f"position {position} of {topic.name}/{number} is beyond its end {end}")
