"""What Penstock records of each of its commits, in the commit's metadata under `penstock`.

Positions and tokens are app transactions (`lake.delta.keys`) and not here: Delta deletes old commits, and only
history may be lost with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from penstock.errors import InvariantError
from penstock.flow.write.manifest import Ranges, StagedFile
from penstock.lake.state import Totals
from penstock.logs.log import Partition

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


class CommitSlice(_Placed, frozen=True, omit_defaults=True):
    """A slice of the log that the commit holds, with what it adds to the totals."""

    start: int
    end: int
    token: int
    totals: Totals = msgspec.field(default_factory=Totals)
    files: tuple[StagedFile, ...] = ()
    """Those that wait to be appended to the quarantine (RULES Q1)."""
    log_end: int | None = None
    """Where the log ended when the batch was planned."""


class ReplayedOffsets(_Placed, frozen=True, omit_defaults=True):
    """What a replay run took out of quarantine (RULES Q2)."""

    ranges: Ranges
    type: str = ""
    """Of an export, whose job log lists the rows by type."""
    files: tuple[StagedFile, ...] = ()
    """Of an export: what the log of the type takes from there."""


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one commit did; `kind` is for people who read the history."""

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
    quarantined: int = 0
    """Of an export, in the logs of its types; those of the slices are in their totals. So is `filtered`."""
    filtered: int = 0
    files_removed: int = 0
    files_added: int = 0
    steps: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The seconds of a batch's steps up to its commit."""

    @property
    def metadata(self) -> dict[str, Any]:
        return {_NAME: {"v": VERSION, **msgspec.to_builtins(self)}}


def placed(partition: Partition) -> tuple[str, str, int]:
    return partition.topic, partition.topic_id, partition.number


def provenance_of(record: Mapping[str, Any]) -> Provenance | None:
    """What an entry of a table's history records; None for a commit of another program."""
    body = record.get(_NAME)
    if not isinstance(body, dict) or "v" not in body:
        return None
    version = body["v"]
    if version != VERSION:
        raise InvariantError(
            f"commit {record.get('version')} of a table has a record of version {version}, expected {VERSION}",
            hint="it was written by a newer Penstock: use that version",
        )
    try:
        return msgspec.convert(body, Provenance)
    except msgspec.ValidationError as error:
        raise InvariantError(
            f"the record in commit {record.get('version')} of a table cannot be read", detail=str(error)
        ) from error


def commits_of(history: Iterable[Mapping[str, Any]], job: str) -> Iterator[tuple[int, Provenance]]:
    """The commits of a job among the history of a table, in its order, with their versions."""
    for record in history:
        commit = provenance_of(record)
        if commit is not None and commit.job == job:
            yield int(record["version"]), commit
