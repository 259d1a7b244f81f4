"""What a commit of ours says of itself, in the metadata of a Delta table under `penstock`; others say nothing there.

Positions and tokens are app transactions (`lake.delta.keys`), not this: Delta may clean a commit up, and only what
happened is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from penstock.errors import InvariantError
from penstock.flow.write.manifest import Ranges, StagedFile
from penstock.lake.state import TOTAL_NAMES, Totals
from penstock.logs.log import Partition, Slice

VERSION = 1
_NAME = "penstock"


class _Placed(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    topic_id: str
    partition: int

    @property
    def place(self) -> Partition:
        return Partition(self.topic, self.topic_id, self.partition)


class CommitStart(_Placed, frozen=True):
    offset: int


class ListedFile(msgspec.Struct, frozen=True):
    """A file that waits to be appended to the quarantine (RULES Q1)."""

    path: str
    rows: int
    size_bytes: int
    stats: str


class CommitSlice(_Placed, frozen=True, omit_defaults=True):
    """A slice of the log that the commit holds, with what it adds to the totals."""

    start: int
    end: int
    token: int
    read: int = 0
    written: int = 0
    quarantined: int = 0
    filtered: int = 0
    skipped: int = 0
    holes: int = 0
    gap: int = 0
    replayed: int = 0
    deferred: int = 0
    vanished: int = 0
    restored: int = 0
    quarantine: tuple[ListedFile, ...] = ()

    @classmethod
    def of(cls, piece: Slice, token: int, added: Totals, files: tuple[StagedFile, ...] = ()) -> CommitSlice:
        counts = {name: getattr(added, name) for name in TOTAL_NAMES}
        listed = tuple(ListedFile(file.path, file.rows, file.size_bytes, file.stats) for file in files)
        return cls(*placed(piece.partition), piece.start, piece.end, token, **counts, quarantine=listed)

    @property
    def totals(self) -> Totals:
        return Totals(**{name: getattr(self, name) for name in TOTAL_NAMES})

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """The quarantine files, as they were staged."""
        return tuple(
            StagedFile(self.topic, self.partition, item.path, item.rows, item.size_bytes, {}, item.stats)
            for item in self.quarantine
        )


class ReplayedOffsets(_Placed, frozen=True):
    """What a replay run took out of quarantine (RULES Q2)."""

    ranges: Ranges


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one commit did; `kind` is a word for people."""

    kind: str
    job: str
    batch: str = ""
    slices: tuple[CommitSlice, ...] = ()
    starts: tuple[CommitStart, ...] = ()
    run: int = 0
    """Of a replay: its number."""
    until_ms: int | None = None
    """Of the beginning of a close, whose number is `batch`: the windows that end at or before it are closed."""
    offsets: tuple[ReplayedOffsets, ...] = ()
    rows: int | None = None
    size_bytes: int = 0
    files_removed: int = 0
    files_added: int = 0

    @property
    def metadata(self) -> dict[str, Any]:
        return {_NAME: {"v": VERSION, **msgspec.to_builtins(self)}}


def placed(partition: Partition) -> tuple[str, str, int]:
    return partition.topic, partition.topic_id, partition.number


def provenance_of(record: Mapping[str, Any]) -> Provenance | None:
    """What an entry of a table's history says; None for a commit of another program."""
    body = record.get(_NAME)
    if not isinstance(body, dict) or "v" not in body:
        return None
    version = body["v"]
    if version != VERSION:
        raise InvariantError(
            f"commit {record.get('version')} of a table speaks version {version} of Penstock's records, not {VERSION}",
            hint="it was written by a newer Penstock: use that one",
        )
    try:
        return msgspec.convert(body, Provenance)
    except msgspec.ValidationError as error:
        raise InvariantError(
            f"what commit {record.get('version')} of a table says of itself cannot be read", detail=str(error)
        ) from error


def commits_of(history: Iterable[Mapping[str, Any]], job: str) -> Iterator[tuple[int, Provenance]]:
    """The commits of a job among the history of a table, in its order, with their versions."""
    for record in history:
        result = provenance_of(record)
        if result is not None and result.job == job:
            yield int(record["version"]), result
