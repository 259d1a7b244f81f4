"""The envelope of a Garmadon event, opened for a whole array of records at once.

int32 type marker | int64 timestamp, ms | int32 header size | int32 body size | header | body      (big endian)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.spans import BufferSpans, Mask, spans_of

_FRAME = np.dtype([("marker", ">i4"), ("timestamp", ">i8"), ("header_size", ">i4"), ("body_size", ">i4")])
FRAME_BYTES = _FRAME.itemsize


@dataclass(frozen=True, slots=True)
class Envelopes:
    """The envelopes that could be opened, and by row the reason why another could not."""

    rows: Sequence[int]
    """Ascending; row `rows[i]` of the array gave element `i` of each of the four below."""
    markers: pa.Array
    timestamps: pa.Array
    headers: pa.Array
    bodies: pa.Array
    errors: Mapping[int, str]


def open_envelopes(values: pa.Array) -> Envelopes:
    """Open an array of type binary without nulls."""
    frames, whole = _frames(values)
    lengths = pc.binary_length(values)
    errors = {row: _error(lengths[row].as_py(), frames[row]) for row in np.flatnonzero(~whole).tolist()}
    if errors:
        values, frames = values.filter(pa.array(whole)), frames[whole]
    spans = spans_of(values)
    headers = spans.starts + FRAME_BYTES
    bodies = headers + frames["header_size"]
    return Envelopes(
        np.flatnonzero(whole).tolist() if errors else range(len(values)),
        pa.array(frames["marker"].astype(np.int32)),
        pa.array(frames["timestamp"].astype(np.int64)),
        BufferSpans(spans.data, headers, bodies).binaries(),
        BufferSpans(spans.data, bodies, spans.ends).binaries(),
        errors,
    )


def markers(values: pa.Array) -> pa.Array:
    """The type marker of each record as decimal text; null where the value is null or its envelope is broken."""
    frames, whole = _frames(values)
    coded = pa.array(frames["marker"].astype(np.int32), mask=~whole).dictionary_encode()
    # Markers are few and records are many: only the distinct ones are written as text.
    return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string())).dictionary_decode()


def _frames(values: pa.Array) -> tuple[npt.NDArray[np.void], Mask]:
    """The first bytes of each value read as a frame (zeros where there are too few), and whether its sizes fit."""
    spans = spans_of(values)
    lengths = spans.ends - spans.starts
    frames = np.zeros(len(values), _FRAME)
    long_enough = lengths >= FRAME_BYTES
    if values.null_count:
        long_enough &= values.is_valid().to_numpy(zero_copy_only=False)
    if not long_enough.any():
        return frames, long_enough
    # A frame may begin at any byte, so all that could are laid over each other; only those that do are copied.
    shape = (spans.data.size - FRAME_BYTES + 1,)
    overlaid: npt.NDArray[np.void] = np.ndarray(shape, _FRAME, buffer=spans.data, strides=(1,))
    frames[long_enough] = overlaid[spans.starts[long_enough]]
    # In 64 bits the sum of two sizes of 32 bits cannot wrap round.
    header_sizes, body_sizes = frames["header_size"].astype(np.int64), frames["body_size"].astype(np.int64)
    fits = (header_sizes >= 0) & (body_sizes >= 0) & (FRAME_BYTES + header_sizes + body_sizes == lengths)
    return frames, long_enough & fits


def _error(length: int, frame: np.void) -> str:
    if length < FRAME_BYTES:
        return f"envelope is broken: {length} bytes, its frame alone has {FRAME_BYTES}"
    header, body = int(frame["header_size"]), int(frame["body_size"])
    if header < 0 or body < 0:
        return f"envelope is broken: a header of {header} and a body of {body} bytes cannot be"
    return f"envelope is broken: {length} bytes, its frame announces {FRAME_BYTES + header + body}"
