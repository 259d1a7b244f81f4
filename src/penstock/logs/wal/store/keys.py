"""Which client keys a partition has seen, and where their records are: a repeated append is answered, not appended.

The window is rebuilt from the frames when a partition is opened. What lies in segments that are deleted is kept in a
file beside them, written before the deletion.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import msgspec

from penstock.logs.wal.errors import WalDamagedError, WalRefusedError
from penstock.logs.wal.store.files import write_whole
from penstock.logs.wal.store.frames import FrameHeader

NAME = "keys.json"
VERSION = 1


class KeyEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where the append with a key is, and what it was."""

    key: str
    start: int
    end: int
    at_ms: int
    body_bytes: int
    body_checksum: int


class _KeyFile(msgspec.Struct, frozen=True):
    version: int
    entries: list[KeyEntry]


class ClientKeys:
    """The keys of the newest appends, bounded by number and age."""

    def __init__(self, keys_max: int, seconds_max: float) -> None:
        self._keys_max = keys_max
        self._age_ms_max = int(seconds_max * 1000)
        self._entries: OrderedDict[str, KeyEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def end(self) -> int:
        """The offset after the last append that has a key here."""
        return max((each.end for each in self._entries.values()), default=0)

    def find(self, key: str, now_ms: int) -> KeyEntry | None:
        """The append with this key, if it is in the window."""
        found = self._entries.get(key)
        return found if found is not None and found.at_ms >= now_ms - self._age_ms_max else None

    def note(self, key: str, header: FrameHeader) -> None:
        """Remember an append; the oldest ones beyond the window are forgotten."""
        entry = KeyEntry(key, header.offset, header.end, header.at_ms, header.body_bytes, header.body_checksum)
        self._entries.pop(key, None)
        self._entries[key] = entry
        while len(self._entries) > self._keys_max or self._oldest().at_ms < header.at_ms - self._age_ms_max:
            self._entries.popitem(last=False)

    def _oldest(self) -> KeyEntry:
        return next(iter(self._entries.values()))

    def save(self, folder: Path, durable_end: int) -> None:
        """Write the keys of durable appends: one that a crash still takes back must not be answered afterwards."""
        durable = [each for each in self._entries.values() if each.end <= durable_end]
        write_whole(folder / NAME, msgspec.json.encode(_KeyFile(VERSION, durable)))

    def load(self, folder: Path) -> None:
        """Take in what was saved, before the frames of the segments that are left."""
        path = folder / NAME
        if not path.exists():
            return
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WalDamagedError("the file of client keys cannot be read", detail=f"{path}: {error}") from None
        if saved.version != VERSION:
            raise WalDamagedError(f"{path} is of version {saved.version}, this program reads {VERSION}")
        self._entries = OrderedDict((each.key, each) for each in saved.entries)


def refuse_other_content(entry: KeyEntry, body_bytes: int, body_checksum: int) -> None:
    """A key stands for one append: other records under it are a mistake of the client."""
    if (entry.body_bytes, entry.body_checksum) != (body_bytes, body_checksum):
        raise WalRefusedError(
            f"the key {entry.key!r} was used for other records",
            detail=f"they have the offsets [{entry.start}, {entry.end})",
            hint="give each append a key of its own, and send exactly the same records when you repeat it",
        )
