"""The staged files of all types and days of a task, within named limits (I6).

Rows wait in memory, a pile for each file to be; a file is opened only when a pile is written: because it makes a row
group, because all piles together pass their bound and it is the largest, or because the task ends. So hundreds of
(type, day) pairs cost no more than their rows. What fails while a type is written fails that type alone.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.decode.misfit import clipped
from penstock.flow.route.closing import Closer
from penstock.flow.route.type_counts import UNROUTED, FanoutFlow, RoutedSlice
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.names import owner_tag, replayed_name, staged_name
from penstock.flow.write.offset_ranges import ranges_of
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.flow.write.stats import Leaf, Path, TextBounds, delta_stats, indexed_leaves, nan_paths, note_long_texts
from penstock.lake.storage import Storage, open_storage

FOOTER_KEY = "penstock"
REPLAYED = "replayed"
"""The kind of a footer, which the files of a slice do not have."""
INDEXED_COLUMNS_MAX = 32
_REASON_CHARACTERS_MAX = 300


class Owner(NamedTuple):
    """Whose rows they are: a type, or `UNROUTED`, of a partition."""

    partition: PartitionKey
    type: str


class PileKey(NamedTuple):
    owner: Owner
    day: str | None
    """None for the quarantine."""


@dataclass(slots=True)
class _Pile:
    """Rows that wait for a row group, and the file that they go to once it is opened."""

    schema: pa.Schema
    first: int
    last: int
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    file: ParquetFile | None = None
    with_nan: set[Path] = field(default_factory=set)
    long_texts: TextBounds = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    """Of its rows, in a replay."""


@dataclass(slots=True)
class Staged:
    """The complete files of an owner."""

    files: list[StagedFile] = field(default_factory=list)
    quarantine_files: list[StagedFile] = field(default_factory=list)


class FilePool:
    """Takes rows of every owner and day, and turns them into staged files."""

    def __init__(self, flow: FanoutFlow) -> None:
        self._flow = flow
        self._piles: dict[PileKey, _Pile] = {}
        self._open: OrderedDict[PileKey, _Pile] = OrderedDict()
        """Those with a file, the least recently written first."""
        self._waiting_bytes = 0
        self._staged: dict[Owner, Staged] = {}
        self._closer = Closer[Owner]()
        self._failed: dict[Owner, str] = {}
        self._storages: dict[str, Storage] = {}
        self._leaves: dict[str, tuple[Leaf, ...]] = {}
        self._first_offsets: dict[PartitionKey, int] = {}
        self._extents: dict[Owner, tuple[int, int]] = {}
        """The least and the greatest offset of each owner's rows."""
        self._totals: Counter[Owner] | None = None
        """Files of each owner in all, once they can be told."""

    def begin(self, partition: PartitionKey, first_offset: int) -> None:
        """Tell where the task's piece of the partition begins to have records."""
        self._first_offsets.setdefault(partition, first_offset)

    def failure(self, owner: Owner) -> str | None:
        return self._failed.get(owner)

    @contextmanager
    def isolated(self, owner: Owner) -> Iterator[None]:
        """What fails inside the block fails the owner alone; what belongs to no type has nobody else to fail."""
        try:
            yield
        except (PenstockError, OSError, pa.ArrowException) as error:
            if owner.type == UNROUTED:
                raise
            self._fail(owner, error)

    def add(
        self,
        owner: Owner,
        day: str | None,
        rows: pa.RecordBatch,
        first: int,
        last: int,
        offsets: Sequence[int] = (),
    ) -> None:
        """Take rows in the columns of their file, with the least and the greatest of their offsets; in a replay all."""
        if owner in self._failed or not rows.num_rows:
            return
        key = PileKey(owner, day)
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = _Pile(rows.schema, first, last)
        if day is not None:
            least, greatest = self._extents.get(owner, (first, last))
            self._extents[owner] = min(least, first), max(greatest, last)
        size_bytes = rows.nbytes
        pile.first, pile.last = min(pile.first, first), max(pile.last, last)
        pile.offsets.extend(offsets)
        pile.waiting.append(rows)
        pile.waiting_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if pile.waiting_bytes >= self._flow.row_group_bytes_max:
            self._write(key)
        while self._waiting_bytes > self._flow.pending_bytes_max:
            self._write(max(self._piles, key=lambda each: self._piles[each].waiting_bytes))

    def finish(self) -> dict[Owner, Staged]:
        """Complete every file and tell of all that were staged."""
        self._totals = Counter({owner: len(staged.files) for owner, staged in self._staged.items() if staged.files})
        self._totals.update(key.owner for key in self._piles if key.day is not None)
        for key in [*self._open, *(key for key in sorted(self._piles, key=_order) if key not in self._open)]:
            if key in self._piles:
                self._stage(key)
        while self._await_closed():
            pass
        self._closer.stop()
        return self._staged

    def abandon(self) -> None:
        """Let go of every open file after an error."""
        self._closer.stop()
        for pile in self._open.values():
            if pile.file is not None:
                pile.file.abandon()
        self._open.clear()
        self._piles.clear()

    def _fail(self, owner: Owner, error: Exception) -> None:
        self._failed.setdefault(owner, clipped(" ".join(str(error).split()), _REASON_CHARACTERS_MAX))
        for key in [key for key in self._piles if key.owner == owner]:
            pile = self._piles.pop(key)
            self._open.pop(key, None)
            self._waiting_bytes -= pile.waiting_bytes
            if pile.file is not None:
                pile.file.abandon()
        self._staged.pop(owner, None)

    def _write(self, key: PileKey) -> None:
        """Write what waits, into the pile's open file or a new one."""
        pile = self._piles[key]
        if pile.file is None and len(self._open) >= self._flow.open_writers_max:
            self._stage(next(iter(self._open)))
        if key not in self._piles:
            # Its owner failed with the file that had to be closed.
            return
        with self.isolated(key.owner):
            self._write_waiting(key, pile)
            self._open.move_to_end(key)

    def _write_waiting(self, key: PileKey, pile: _Pile) -> None:
        if pile.file is None:
            pile.file = ParquetFile(self._storage(key), self._path(key), pile.schema, self._flow.compression)
            self._open[key] = pile
        if not pile.waiting:
            return
        rows = pa.Table.from_batches(pile.waiting, pile.schema)
        if self._has_statistics(key):
            pile.with_nan |= nan_paths(rows, self._indexed(key, pile))
            note_long_texts(pile.long_texts, rows, self._indexed(key, pile))
        pile.file.write(rows)
        pile.waiting.clear()
        self._waiting_bytes -= pile.waiting_bytes
        pile.waiting_bytes = 0

    def _await_closed(self) -> bool:
        """Wait for the file that has been closing longest; False if there is none. Its owner fails with it."""
        closing = self._closer.next()
        if closing is None:
            return False
        owner, closed = closing
        with self.isolated(owner):
            closed.result()
        return True

    def _stage(self, key: PileKey) -> None:
        """Complete the pile's file; further rows of its owner and day go to another."""
        if self._closer.is_full:
            self._await_closed()
        if key not in self._piles:
            # Its owner failed with the file that was awaited.
            return
        pile = self._piles[key]
        with self.isolated(key.owner):
            self._write_waiting(key, pile)
            assert pile.file is not None
            if key.day is not None:
                pile.file.note({FOOTER_KEY: json.dumps(self._facts(key, pile, pile.file.path))})
            footer = pile.file.end()
            stats = ""
            if self._has_statistics(key):
                stats = delta_stats(footer, self._indexed(key, pile), frozenset(pile.with_nan), pile.long_texts)
            file = StagedFile(
                *key.owner.partition,
                path=pile.file.path,
                rows=pile.file.rows,
                size_bytes=pile.file.size_bytes,
                partition_values={} if key.day is None else {"day": key.day},
                stats=stats,
                last_offset=pile.last,
            )
            # Only now: a file that failed to end is still there to be abandoned.
            del self._piles[key], self._open[key]
            self._closer.begin(key.owner, pile.file)
            staged = self._staged.setdefault(key.owner, Staged())
            (staged.quarantine_files if key.day is None else staged.files).append(file)

    def _facts(self, key: PileKey, pile: _Pile, path: str) -> dict[str, Any]:
        """What the footer tells, enough to rebuild positions from files alone (RULES L6)."""
        owner = key.owner
        piece = self._flow.slices[owner.partition]
        place: dict[str, Any] = {
            "v": 1,
            "job": self._flow.job,
            "topic": owner.partition[0],
            "topic_id": piece.topic_id,
            "partition": owner.partition[1],
            "batch": self._flow.batch_id,
            "type": owner.type,
            "day": key.day,
            "first": pile.first,
            "last": pile.last,
        }
        if self._flow.replay_run is not None:
            offsets = ranges_of(pile.offsets)
            return {**place, "kind": REPLAYED, "run": self._flow.replay_run, "offsets": offsets, "source": path}
        facts: dict[str, Any] = {
            **place,
            "slice": [piece.start, piece.end],
            "piece": _piece_of(piece, self._first_offsets.get(owner.partition, pile.first)),
            "pieces": max(1, len(piece.pieces)),
            "main": piece.main,
            "from": self._start(owner),
        }
        if self._totals is not None:
            # By type: one that fails after this is left out of the batch, and the others are whole without it.
            facts["types"] = {
                each.type: {"files": count, "first": self._extents[each][0], "last": self._extents[each][1]}
                for each, count in sorted(self._totals.items())
                if each.partition == owner.partition
            }
        return facts

    def _start(self, owner: Owner) -> int:
        """From which offset on the owner's records belong to this slice."""
        piece = self._flow.slices[owner.partition]
        return max(piece.start, piece.takes.get(owner.type, piece.start))

    def _path(self, key: PileKey) -> str:
        owner = key.owner
        piece = self._flow.slices[owner.partition]
        place = (piece.topic_id, owner.partition[1], self._start(owner), piece.end)
        if key.day is None:
            return staged_name(*place, uuid.uuid4().hex, owner_tag(self._flow.job))
        name = staged_name(*place, uuid.uuid4().hex)
        if self._flow.replay_run is not None:
            name = replayed_name(str(self._flow.replay_run), uuid.uuid4().hex)
        if not self._flow.staged_folder:
            return f"{owner.type}/{partition_folder({'day': key.day})}{name}"
        return f"{self._flow.staged_folder}/{owner.type}/{name}"

    def _storage(self, key: PileKey) -> Storage:
        url = self._flow.quarantine_url if key.day is None else self._flow.root_url
        if url not in self._storages:
            self._storages[url] = open_storage(url, self._flow.storage_options)
        return self._storages[url]

    def _has_statistics(self, key: PileKey) -> bool:
        # The quarantine is a Delta table, whatever the types are.
        return self._flow.statistics or key.day is None

    def _indexed(self, key: PileKey, pile: _Pile) -> tuple[Leaf, ...]:
        if key.day is None:
            return indexed_leaves(QUARANTINE_SCHEMA, INDEXED_COLUMNS_MAX)
        name = key.owner.type
        if name not in self._leaves:
            self._leaves[name] = indexed_leaves(pile.schema, INDEXED_COLUMNS_MAX)
        return self._leaves[name]


def _order(key: PileKey) -> tuple[Owner, str]:
    return key.owner, key.day or ""


def _piece_of(piece: RoutedSlice, first_offset: int) -> list[int]:
    """The task's piece of the slice: the one that holds its first offset."""
    begins = piece.pieces or (piece.start,)
    number = max(0, bisect_right(begins, first_offset) - 1)
    end = begins[number + 1] if number + 1 < len(begins) else piece.end
    return [begins[number], end]
