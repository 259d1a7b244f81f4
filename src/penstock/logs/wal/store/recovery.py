"""Opening a partition after a stop of any kind: what was acknowledged is there, a torn tail is cut, damage is told.

Only the last segment can have a torn tail: a segment is durable before the next one is begun. Its first bad frame is
the tail of appends that nobody was told of, unless there is proof that it was durable once: the checkpoint, or a later
frame that counts it as durable. Then acknowledged records are damaged, and the partition is not opened.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.logs.wal.errors import WalDamagedError
from penstock.logs.wal.store.frames import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    body_is_whole,
    decode_header,
    decode_segment_header,
)
from penstock.logs.wal.store.keys import ClientKeys
from penstock.logs.wal.store.segment import SUFFIX, Segment


@dataclass(frozen=True, slots=True)
class Recovered:
    """The segments of a partition, the last one open for appending, and what was cut from it."""

    segments: list[Segment]
    cut_bytes: int


def recover(folder: Path, topic_id: bytes, durable_end: int, keys: ClientKeys) -> Recovered:
    """Read the segments of a folder; `keys` hears of every frame with a client key.

    Sealed segments are walked from header to header; their records are checked when they are read.
    """
    for left in folder.glob("*.tmp"):
        left.unlink()
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise WalDamagedError("a partition has no segment", detail=str(folder))
    segments: list[Segment] = []
    cut_bytes = 0
    for path in paths:
        last = path == paths[-1]
        segment, whole_bytes = _walked(path, topic_id, keys, check_bodies=last)
        if segments and segments[-1].end != segment.base:
            raise WalDamagedError(
                f"offsets [{segments[-1].end}, {segment.base}) are missing between two segments", detail=str(path)
            )
        if whole_bytes > segment.size:
            if not last:
                raise WalDamagedError(f"a sealed segment ends after offset {segment.end}", detail=str(path))
            _refuse_damage(segment, durable_end)
            cut_bytes = whole_bytes - segment.size
            segment.cut(segment.size)
        segments.append(segment)
    if segments[-1].end < durable_end:
        raise WalDamagedError(
            f"acknowledged offsets [{segments[-1].end}, {durable_end}) are gone", detail=str(segments[-1].path)
        )
    return Recovered(segments, cut_bytes)


def _walked(path: Path, topic_id: bytes, keys: ClientKeys, check_bodies: bool) -> tuple[Segment, int]:
    """The segment with all its good frames, and the size of the file."""
    with _mapped(path) as data:
        header = decode_segment_header(data[:SEGMENT_HEADER_BYTES])
        if header is None or header.topic_id != topic_id or path.stem != f"{header.base:020d}":
            raise WalDamagedError("the header of a segment is damaged", detail=str(path))
        segment = Segment(path, header.base, header.base, SEGMENT_HEADER_BYTES)
        while (frame := decode_header(data, segment.size)) is not None and frame.offset == segment.end:
            if segment.size + frame.size > len(data) or (check_bodies and not body_is_whole(frame, data, segment.size)):
                break
            if frame.client_key_bytes:
                start = segment.size + FRAME_HEADER_BYTES
                keys.note(str(data[start : start + frame.client_key_bytes], "utf-8"), frame)
            segment.note(frame)
        return segment, len(data)


def _refuse_damage(segment: Segment, durable_end: int) -> None:
    """Raise if the bad frame at the end of the good ones was durable."""
    proof = f"the checkpoint says that all below {durable_end} was durable" if segment.end < durable_end else ""
    with _mapped(segment.path) as data:
        for later in _frames_after(data, segment.size):
            if later.durable_end > segment.end:
                proof = f"the append at offset {later.offset} says that all below {later.durable_end} was durable"
                break
    if proof:
        raise WalDamagedError(
            f"acknowledged records from offset {segment.end} on are damaged",
            detail=f"{segment.path} at byte {segment.size}: {proof}",
            hint="nothing was changed: restore the folder from a copy of its disk",
        )


def _frames_after(data: mmap.mmap, at: int) -> Iterator[FrameHeader]:
    """Every header of a frame that can be found after a place, wherever it begins."""
    while (at := data.find(FRAME_MAGIC, at + 1)) >= 0:
        header = decode_header(data, at)
        if header is not None:
            yield header


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise WalDamagedError("a segment is empty", detail=str(path)) from None
        with data:
            yield data
