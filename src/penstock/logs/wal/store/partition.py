"""One partition: appends that share an fsync, reads up to the durable end, and trimming below what jobs committed.

An append is written, made durable, noted in the checkpoint, and only then returned. Threads that append at the same
time share an fsync: one of them does it for all that were written before. A failed fsync is never repeated, because the
kernel may have dropped the pages: `fatal` ends the process.
"""

from __future__ import annotations

import errno
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from penstock.failpoints import Reach
from penstock.logs.log import Bounds, SliceShrankError
from penstock.logs.wal.errors import UnknownTopicError, WalDamagedError, WalFullError
from penstock.logs.wal.limits import WalLimits
from penstock.logs.wal.store.checkpoint import Checkpoint
from penstock.logs.wal.store.files import sync_folder
from penstock.logs.wal.store.frames import FRAME_HEADER_BYTES, FrameHeader, WalRecord, encode_body, encode_header
from penstock.logs.wal.store.keys import ClientKeys, refuse_other_content
from penstock.logs.wal.store.recovery import recover
from penstock.logs.wal.store.segment import Segment

STEPS = ("wal_written", "wal_durable", "wal_checkpointed", "wal_rolled", "wal_keys_saved", "wal_trimmed")
"""Where a fault test may end the process, in the order of an append and of a trim."""

Fatal = Callable[[BaseException], NoReturn]


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a partition is given by its process."""

    limits: WalLimits
    now: Callable[[], float]
    reach: Reach
    fatal: Fatal
    """Called when what was written can no longer be made durable: does not return."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets `[start, end)` of an append; `repeated` if they were there before."""

    partition: int
    start: int
    end: int
    repeated: bool


class WalPartition:
    """The records of a partition; any thread may call."""

    def __init__(self, folder: Path, number: int, topic_id: bytes, context: StoreContext) -> None:
        self.number = number
        self._folder = folder
        self._topic_id = topic_id
        self._context = context
        self._limits = context.limits
        self._changed = threading.Condition()
        self._syncing = False
        self._failed = False
        self._closed = False
        self._committed: int | None = None
        self._keys = ClientKeys(self._limits.dedup_keys_max, self._limits.dedup_seconds)
        self._keys.load(folder)
        self._checkpoint = Checkpoint(folder)
        recovered = recover(folder, topic_id, self._checkpoint.end, self._keys)
        self._segments = recovered.segments
        if self._keys.end > self._active.end:
            raise WalDamagedError(
                f"acknowledged offsets [{self._active.end}, {self._keys.end}) are gone",
                detail=f"client keys of {folder} name them",
            )
        self.cut_bytes = recovered.cut_bytes
        # What the dead process wrote may still be in memory of the system only.
        self._active.sync()
        self._checkpoint.write(self._active.end)
        self._durable_end = self._active.end

    @staticmethod
    def create(folder: Path, topic_id: bytes) -> None:
        """The folder of a new partition, with an empty segment."""
        folder.mkdir()
        Segment.create(folder, 0, topic_id)

    def _fail(self, error: OSError) -> NoReturn:
        """End the process; where a test goes on, nothing is acknowledged any more."""
        self._failed = True
        self._context.fatal(error)

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        with self._changed:
            return self._size_bytes()

    def _size_bytes(self) -> int:
        return sum(each.size for each in self._segments)

    def bounds(self) -> Bounds:
        """What readers may see: the durable records that are not trimmed."""
        with self._changed:
            return Bounds(self._segments[0].base, self._durable_end)

    # append

    def append(self, records: Sequence[WalRecord], client_key: str = "") -> Appended:
        """Append records as one; returns once they are durable. A key that is known is answered as the first time."""
        encoded_key = client_key.encode()
        body = encode_body(encoded_key, records)
        checksum = zlib.crc32(body)
        with self._changed:
            self._make_place(FRAME_HEADER_BYTES + len(body))
            self._refuse_if_ended()
            now_ms = int(self._context.now() * 1000)
            known = self._keys.find(client_key, now_ms) if client_key else None
            if known is not None:
                refuse_other_content(known, len(body), checksum)
                start, end = known.start, known.end
            else:
                start, end = self._active.end, self._active.end + len(records)
                header = FrameHeader(
                    start, len(records), now_ms, self._durable_end, len(encoded_key), len(body), checksum
                )
                self._write(header, body)
                if client_key:
                    self._keys.note(client_key, header)
            self._wait_until_durable(end)
        return Appended(self.number, start, end, known is not None)

    def _refuse_if_ended(self) -> None:
        self._refuse_if_failed()
        if self._closed:
            raise UnknownTopicError(f"partition {self.number} is closed: its topic is deleted, or the server stops")

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise WalDamagedError(f"partition {self.number} could not be made durable")

    def _make_place(self, size: int) -> None:
        """Begin a new segment if the present one is full; others may append while this waits for an fsync."""
        while not self._active.is_empty and self._active.size + size > self._limits.segment_bytes:
            if self._syncing:
                self._changed.wait()
            else:
                self._refuse_if_ended()
                self._roll()

    def _write(self, header: FrameHeader, body: bytes) -> None:
        if self._size_bytes() + header.size > self._limits.partition_bytes_max:
            self._trim(self._size_bytes() + header.size - self._limits.partition_bytes_max)
        if self._size_bytes() + header.size > self._limits.partition_bytes_max:
            raise WalFullError(
                f"partition {self.number} is full: {self._size_bytes()} bytes are not yet read by every job",
                hint="send again later; the jobs that read it must go on, or be unregistered",
            )
        try:
            self._active.append(header, encode_header(header) + body)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise WalFullError("the disk of the log is full", detail=str(error)) from error
            self._fail(error)
        self._context.reach("wal_written")

    def _wait_until_durable(self, end: int) -> None:
        while self._durable_end < end:
            self._refuse_if_failed()
            if self._syncing:
                self._changed.wait()
            else:
                self._sync_for_all()

    def _sync_for_all(self) -> None:
        """Make durable what is written up to now, for all threads that wait; they may write on meanwhile."""
        self._syncing = True
        segment, end = self._active, self._active.end
        self._changed.release()
        try:
            segment.sync()
        except OSError as error:
            self._fail(error)
        finally:
            self._changed.acquire()
            self._syncing = False
            self._changed.notify_all()
        self._context.reach("wal_durable")
        self._publish(end)

    def _publish(self, end: int) -> None:
        try:
            self._checkpoint.write(end)
        except OSError as error:
            self._fail(error)
        self._durable_end = end
        self._context.reach("wal_checkpointed")

    def _roll(self) -> None:
        """Seal the segment and begin the next one."""
        try:
            self._active.sync()
            self._publish(self._active.end)
            self._checkpoint.sync()
            following = Segment.create(self._folder, self._active.end, self._topic_id)
        except OSError as error:
            self._fail(error)
        self._active.close()
        self._segments.append(following)
        self._context.reach("wal_rolled")
        self._changed.notify_all()

    # read

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Whole frames with the records from `start` on, below `end` and the durable end; at least one, or nothing."""
        with self._changed:
            end = min(end, self._durable_end)
            if start < self._segments[0].base:
                raise SliceShrankError(f"offset {start} of partition {self.number} is no longer in the log")
            if start >= end:
                return b""
            segment = next(each for each in reversed(self._segments) if each.base <= start)
        found = segment.read(start, end, bytes_max)
        if not found:
            raise WalDamagedError(f"offset {start} of partition {self.number} cannot be read")
        return found

    # trim

    def release(self, committed: int | None) -> None:
        """Every job has committed what lies below; None: there is no job, and nothing may go."""
        with self._changed:
            self._committed = committed
        self.trim()

    def trim(self) -> None:
        """Delete segments that every job has committed and whose retention is over."""
        with self._changed:
            if not self._closed:
                self._trim(0)

    def _trim(self, needed_bytes: int) -> None:
        """Delete what retention lets go of, and further committed segments until so many bytes are free."""
        expired_ms = int((self._context.now() - self._limits.retention_seconds) * 1000)
        if not self._active.is_empty and self._may_go(self._active, expired_ms, needed_bytes) and not self._syncing:
            self._roll()
        gone: list[Segment] = []
        for each in self._segments[:-1]:
            if not self._may_go(each, expired_ms, needed_bytes - sum(other.size for other in gone)):
                break
            gone.append(each)
        if gone:
            self._delete(gone)

    def _may_go(self, segment: Segment, expired_ms: int, needed_bytes: int) -> bool:
        committed = self._committed is not None and segment.end <= self._committed
        return committed and (needed_bytes > 0 or segment.last_at_ms <= expired_ms)

    def _delete(self, gone: Sequence[Segment]) -> None:
        try:
            self._keys.save(self._folder, self._durable_end)
            self._context.reach("wal_keys_saved")
            for each in gone:
                each.delete()
                self._segments.remove(each)
                self._context.reach("wal_trimmed")
            sync_folder(self._folder)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        with self._changed:
            while self._syncing:
                self._changed.wait()
            if self._closed:
                return
            self._closed = True
            try:
                self._active.sync()
                self._publish(self._active.end)
                self._checkpoint.sync()
            except OSError as error:
                self._fail(error)
            for each in self._segments:
                each.close()
            self._checkpoint.close()
