"""Parts of the values of a whole batch, cut by position: nothing is copied before it is known to be needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BufferSpans:
    """Parts of a buffer, in order and apart from each other: part `i` is `[starts[i], ends[i])`."""

    data: pa.Buffer
    starts: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The whole buffer, where the positions point into."""
        return np.frombuffer(self.data, np.uint8) if self.data.size else np.empty(0, np.uint8)

    def texts(self) -> pa.Array:
        """The parts as strings, if the buffer holds UTF-8."""
        return self._cut(pa.string())

    def binaries(self) -> pa.Array:
        return self._cut(pa.binary())

    def _cut(self, kind: pa.DataType) -> pa.Array:
        count = len(self)
        if not count:
            return pa.array([], kind)
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2], offsets[1::2] = self.starts, self.ends
        # Parts and the gaps between them, of which the parts are taken.
        both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), self.data])
        return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))

    def where(self, kept: Mask) -> BufferSpans:
        return BufferSpans(self.data, self.starts[kept], self.ends[kept])


def spans_of(texts: pa.Array) -> BufferSpans:
    """The places of strings or binaries in their buffer."""
    if not len(texts):
        return BufferSpans(pa.py_buffer(b""), np.empty(0, np.int64), np.empty(0, np.int64))
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset).astype(np.int64)
    return BufferSpans(data if data is not None else pa.py_buffer(b""), places[:-1], places[1:])
