"""One file of a partition: frames appended in offset order, and where in it an offset is found."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from penstock.logs.log import SliceShrankError
from penstock.logs.wal.errors import WalDamagedError
from penstock.logs.wal.store.files import sync_folder, write_all
from penstock.logs.wal.store.frames import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    SegmentHeader,
    decode_header,
    encode_segment_header,
)

SUFFIX = ".wal"
INDEX_BYTES = 64 * 1024
"""How many bytes lie between two places that the index knows, at least."""


@dataclass(slots=True)
class Segment:
    """The records `[base, end)` of a partition. The last segment is open for appending, the others are sealed."""

    path: Path
    base: int
    end: int
    size: int
    last_at_ms: int = 0
    """When its last record was appended; 0 if it has none."""
    _offsets: array[int] = field(default_factory=lambda: array("q"))
    _places: array[int] = field(default_factory=lambda: array("q"))
    _descriptor: int | None = None

    @classmethod
    def create(cls, folder: Path, base: int, topic_id: bytes) -> Segment:
        """An empty segment; it has its name only once its header is durable."""
        path = folder / f"{base:020d}{SUFFIX}"
        beside = path.with_suffix(".tmp")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(descriptor, encode_segment_header(SegmentHeader(base, topic_id)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.rename(path)
        sync_folder(folder)
        return cls(path, base, base, SEGMENT_HEADER_BYTES)

    @property
    def is_empty(self) -> bool:
        return self.end == self.base

    def note(self, header: FrameHeader) -> None:
        """Count a frame that stands at the end of the file."""
        if not self._places or self.size - self._places[-1] >= INDEX_BYTES:
            self._offsets.append(header.offset)
            self._places.append(self.size)
        self.size += header.size
        self.end = header.end
        self.last_at_ms = header.at_ms

    def append(self, header: FrameHeader, frame: bytes) -> None:
        """Write a frame; if that fails the file is as before, or an error without a number says that it is not."""
        descriptor = self._opened()
        try:
            write_all(descriptor, frame)
        except OSError as first:
            try:
                os.ftruncate(descriptor, self.size)
            except OSError as second:
                raise OSError(f"half an append cannot be taken back: {second}") from first
            raise
        self.note(header)

    def sync(self) -> None:
        os.fsync(self._opened())

    def cut(self, size: int) -> None:
        """Remove a torn tail, durably."""
        os.ftruncate(self._opened(), size)
        self.sync()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def delete(self) -> None:
        self.close()
        self.path.unlink()

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """The frames with records of `[start, end)`, as many as fit, at least one; `end` is durable.

        Opens the file anew: an append and the removal of the segment may run meanwhile.
        """
        try:
            with self.path.open("rb") as file:
                place = self._place(start)
                file.seek(place)
                chunk = file.read(min(bytes_max + INDEX_BYTES, self.size - place))
                first, stop = _span(chunk, start, end, bytes_max)
                if stop > len(chunk):
                    file.seek(place + first)
                    return file.read(stop - first)
                return chunk[first:stop]
        except FileNotFoundError:
            raise SliceShrankError(f"offset {start} is no longer in the log") from None

    def _place(self, offset: int) -> int:
        known = bisect_right(self._offsets, offset) - 1
        return self._places[known] if known >= 0 else SEGMENT_HEADER_BYTES

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND)
        return self._descriptor


def _span(chunk: bytes, start: int, end: int, bytes_max: int) -> tuple[int, int]:
    """Where in a chunk the wanted frames begin and end; the end lies beyond it if the first of them does not fit."""
    at, first = 0, None
    while at + FRAME_HEADER_BYTES <= len(chunk):
        header = decode_header(chunk, at)
        if header is None:
            raise WalDamagedError("a frame of the log is damaged", detail=f"while offsets from {start} on were read")
        if header.offset >= end:
            break
        if first is None and header.end > start:
            first = at
        after = at + header.size
        if first is not None and first < at and (after - first > bytes_max or after > len(chunk)):
            break
        if after > len(chunk):
            # The index has no place after it that is nearer, so this is the first frame that is wanted.
            return at, after
        at = after
    if first is None:
        raise WalDamagedError(f"the log has no frame with offset {start}", detail="it is acknowledged and not trimmed")
    return first, at
