"""Which end of a partition was durable last: the proof that tells a torn tail from damage.

It is written after every fsync of the log and before the acknowledgement, so after the death of the process it says
exactly what may have been acknowledged. It is not fsynced itself each time: after a loss of power it may be older than
the truth, never newer. Frames therefore carry the durable end too (`FrameHeader.durable_end`): a bad frame that a later
one counts as durable is damage, whatever this file says.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

_SLOT = struct.Struct(">4sHQQI")
_MAGIC = b"PWCP"
VERSION = 1
NAME = "durable"
SLOTS = 2
"""Written in turn: if one is torn, the other holds the end before it."""


class Checkpoint:
    """The file with the durable end, open for writing."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._turn, self.end = _read(os.pread(self._descriptor, SLOTS * _SLOT.size, 0))

    def write(self, end: int) -> None:
        """Note a durable end; seen by the next process, also if this one is killed."""
        self._turn += 1
        start = _SLOT.pack(_MAGIC, VERSION, self._turn, end, 0)[:-4]
        slot = start + zlib.crc32(start).to_bytes(4, "big")
        os.pwrite(self._descriptor, slot, (self._turn % SLOTS) * _SLOT.size)
        self.end = end

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _read(content: bytes) -> tuple[int, int]:
    """The newest slot that is whole: its turn and the end; zeros if there is none."""
    found = [(0, 0)]
    for at in range(0, len(content) - _SLOT.size + 1, _SLOT.size):
        magic, version, turn, end, checksum = _SLOT.unpack_from(content, at)
        if magic == _MAGIC and version == VERSION and zlib.crc32(content[at : at + _SLOT.size - 4]) == checksum:
            found.append((turn, end))
    return max(found)
