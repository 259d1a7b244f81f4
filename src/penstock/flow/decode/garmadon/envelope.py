"""The envelope of a Garmadon event, opened for a whole array of records at once.

int32 type marker | int64 timestamp, ms | int32 header size | int32 body size | header | body      (big endian)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FRAME = np.dtype([("marker", ">i4"), ("timestamp", ">i8"), ("header_size", ">i4"), ("body_size", ">i4")])
FRAME_BYTES = _FRAME.itemsize


@dataclass(frozen=True, slots=True)
class Envelopes:
    """The envelopes that could be opened, and for the others, by row, one sentence that says why not."""

    rows: Sequence[int]
    """Ascending; row `rows[i]` of the array gave element `i` of each of the four below."""
    markers: pa.Array
    timestamps: pa.Array
    headers: pa.Array
    bodies: pa.Array
    errors: Mapping[int, str]


def open_envelopes(values: pa.Array) -> Envelopes:
    """Open an array of type binary without nulls."""
    starts, lengths = _extents(values)
    frames, whole = _frames(values, starts, lengths)
    errors = {row: _error(int(lengths[row]), frames[row]) for row in np.flatnonzero(~whole).tolist()}
    if errors:
        values, frames = values.filter(pa.array(whole)), frames[whole]
        starts, lengths = _extents(values)
    headers, bodies = _parts(values, frames, starts, lengths)
    return Envelopes(
        np.flatnonzero(whole).tolist() if errors else range(len(values)),
        pa.array(frames["marker"].astype(np.int32)),
        pa.array(frames["timestamp"].astype(np.int64)),
        headers,
        bodies,
        errors,
    )


def markers(values: pa.Array) -> pa.Array:
    """The type marker of each record as decimal text; null where the value is null or its envelope is broken."""
    frames, whole = _frames(values, *_extents(values))
    coded = pa.array(frames["marker"].astype(np.int32), mask=~whole).dictionary_encode()
    # Markers are few and records are many: only the distinct ones are written as text.
    return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string())).dictionary_decode()


def _extents(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each value begins in the data buffer, and its length."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32, values.offset + len(values) + 1)[values.offset :]
    edges = offsets.astype(np.int64)
    return edges[:-1], np.diff(edges)


def _frames(
    values: pa.Array, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """The first bytes of each value read as a frame (zeros where there are too few), and whether its sizes fit."""
    frames = np.zeros(len(values), _FRAME)
    long_enough = lengths >= FRAME_BYTES
    if values.null_count:
        long_enough &= values.is_valid().to_numpy(zero_copy_only=False)
    if not long_enough.any():
        return frames, long_enough
    data = values.buffers()[2]
    # A frame may begin at any byte, so all that could are laid over each other; only those that do are copied.
    overlaid: npt.NDArray[np.void] = np.ndarray((data.size - FRAME_BYTES + 1,), _FRAME, buffer=data, strides=(1,))
    frames[long_enough] = overlaid[starts[long_enough]]
    # In 64 bits the sum of two sizes of 32 bits cannot wrap round.
    header_sizes, body_sizes = frames["header_size"].astype(np.int64), frames["body_size"].astype(np.int64)
    fits = (header_sizes >= 0) & (body_sizes >= 0) & (FRAME_BYTES + header_sizes + body_sizes == lengths)
    return frames, long_enough & fits


def _parts(
    values: pa.Array, frames: npt.NDArray[np.void], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[pa.Array, pa.Array]:
    """Headers and bodies."""
    count = len(values)
    if not count:
        return pa.array([], pa.binary()), pa.array([], pa.binary())
    # Values touch each other in their buffer, so frame, header and body of all of them are one array over it.
    edges = np.empty(3 * count + 1, np.int32)
    edges[0:-1:3] = starts
    edges[1::3] = starts + FRAME_BYTES
    edges[2::3] = starts + FRAME_BYTES + frames["header_size"]
    edges[-1] = starts[-1] + lengths[-1]
    parts = pa.Array.from_buffers(pa.binary(), 3 * count, [None, pa.py_buffer(edges), values.buffers()[2]])
    return parts.take(pa.array(np.arange(1, 3 * count, 3))), parts.take(pa.array(np.arange(2, 3 * count, 3)))


def _error(length: int, frame: np.void) -> str:
    if length < FRAME_BYTES:
        return f"envelope is broken: {length} bytes, its frame alone has {FRAME_BYTES}"
    header, body = int(frame["header_size"]), int(frame["body_size"])
    if header < 0 or body < 0:
        return f"envelope is broken: a header of {header} and a body of {body} bytes cannot be"
    return f"envelope is broken: {length} bytes, its frame announces {FRAME_BYTES + header + body}"
