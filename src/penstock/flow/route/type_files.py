"""The staged files of all types and days of a task. What fails while a type is written fails that type alone."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.decode.misfit import clipped
from penstock.flow.route.fanout_flow import FanoutFlow, RoutedSlice
from penstock.flow.write.manifest import PartitionKey, StagedFile, ranges_of
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.pool import FilePool
from penstock.flow.write.report import UNROUTED, Share
from penstock.flow.write.tally import TypeKey
from penstock.job.kafka_types import place_columns
from penstock.storage import Storage, open_storage

FOOTER_KEY = "penstock"
REPLAYED = "replayed"
"""The kind of a footer, which the files of a slice do not have."""
_REASON_CHARACTERS_MAX = 300


class PileKey(NamedTuple):
    type_key: TypeKey
    day: str | None
    """None for the quarantine."""


@dataclass(slots=True)
class _OffsetRange:
    """Which records the rows of a file, or of all files of a type, come from."""

    first: int
    last: int
    offsets: list[int] = field(default_factory=list)
    """All of them, in a replay."""

    def cover(self, first: int, last: int) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)


class TypeFiles(FilePool[PileKey]):
    """Takes rows of every type and day, and turns them into staged files."""

    def __init__(self, flow: FanoutFlow) -> None:
        super().__init__(flow.limits)
        self.failed: dict[TypeKey, str] = {}
        self._flow = flow
        self._spans: dict[PileKey, _OffsetRange] = {}
        self._by_type: dict[TypeKey, Share] = {}
        self._storages: dict[str, Storage] = {}
        self._first_offsets: dict[PartitionKey, int] = {}
        self._totals: Counter[TypeKey] | None = None
        """Files of each in all, once they are known."""

    def begin(self, partition: PartitionKey, first_offset: int) -> None:
        """Note the first record of the task's piece of the partition."""
        self._first_offsets.setdefault(partition, first_offset)

    @contextmanager
    def isolated(self, type_key: TypeKey) -> Iterator[None]:
        """What fails inside the block fails that type alone; what belongs to no type fails the task."""
        try:
            yield
        except (PenstockError, OSError, pa.ArrowException) as error:
            if type_key.type == UNROUTED:
                raise
            self.failed.setdefault(type_key, clipped(" ".join(str(error).split()), _REASON_CHARACTERS_MAX))
            self._drop(lambda key: key.type_key == type_key)
            self._by_type.pop(type_key, None)

    def add(self, type_key: TypeKey, day: str | None, rows: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> None:
        """Take rows in the columns of their file, with the offsets of their records."""
        if type_key in self.failed or not rows.num_rows:
            return
        key = PileKey(type_key, day)
        ends = int(offsets.min()), int(offsets.max())
        span = self._spans.setdefault(key, _OffsetRange(*ends))
        span.cover(*ends)
        if self._flow.replay_run is not None:
            span.offsets.extend(offsets.tolist())
        self._add(key, rows)

    def finish(self) -> dict[TypeKey, Share]:
        """Complete every file and report all that were staged."""
        self._totals = Counter(
            {type_key: len(staged.files) for type_key, staged in self._by_type.items() if staged.files}
        )
        self._totals.update(key.type_key for key in self._piles if key.day is not None)
        self._complete()
        return self._by_type

    def _isolated(self, key: PileKey) -> AbstractContextManager[None]:
        return self.isolated(key.type_key)

    def _open_file(self, key: PileKey, schema: pa.Schema) -> ParquetFile:
        url = self._flow.quarantine_url if key.day is None else self._flow.root_url
        if url not in self._storages:
            self._storages[url] = open_storage(url, self._flow.storage_options)
        return ParquetFile(self._storages[url], self._path(key), schema, self._flow.compression)

    def _has_stats(self, key: PileKey) -> bool:
        # The quarantine is a Delta table, whatever the types are.
        return key.day is None or self._flow.statistics

    def _before_end(self, key: PileKey, file: ParquetFile) -> None:
        if key.day is not None:
            file.note({FOOTER_KEY: json.dumps(self._facts(key, self._spans[key], file.path))})

    def _staged(self, key: PileKey, file: ParquetFile, stats: str) -> None:
        values: dict[str, str | None] = {} if key.day is None else {"day": key.day}
        span = self._spans.pop(key)
        last = span.last
        if not stats:
            stats = self._place_stats(key, span, file.rows)
        staged = StagedFile(*key.type_key.partition, file.path, file.rows, file.size_bytes, values, stats, last)
        share = Share(quarantine_files=(staged,)) if key.day is None else Share(files=(staged,))
        self._by_type[key.type_key] = self._by_type.get(key.type_key, Share()) + share

    def _place_stats(self, key: PileKey, span: _OffsetRange, rows: int) -> str:
        """Delta statistics of plain files: of the columns that hold the place of a row, which are known anyway."""
        ends = {"partition": (key.type_key.partition[1],) * 2, "offset": (span.first, span.last)}
        names = {name: ends[part] for part, name in place_columns(self._flow.columns) if part in ends}
        least, most = ({name: pair[end] for name, pair in names.items()} for end in (0, 1))
        stats = {"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(names, 0)}
        return json.dumps(stats)

    def _facts(self, key: PileKey, span: _OffsetRange, path: str) -> dict[str, Any]:
        """What the footer shows, enough to rebuild positions from files alone (RULES E6)."""
        type_key = key.type_key
        piece = self._flow.slices[type_key.partition]
        place: dict[str, Any] = {
            "v": 1,
            "job": self._flow.job,
            "topic": type_key.partition[0],
            "topic_id": piece.topic_id,
            "partition": type_key.partition[1],
            "batch": self._flow.batch_id,
            "type": type_key.type,
            "day": key.day,
            "first": span.first,
            "last": span.last,
            "after": piece.after.get(type_key.type),
        }
        if self._flow.replay_run is not None:
            offsets = ranges_of(span.offsets)
            replay = {"kind": REPLAYED, "run": self._flow.replay_run, "offsets": offsets, "source": path}
            return place | replay
        facts: dict[str, Any] = {
            **place,
            "slice": [piece.start, piece.end],
            "piece": _piece_of(piece, self._first_offsets.get(type_key.partition, span.first)),
            "pieces": max(1, len(piece.pieces)),
            "main": piece.main,
            "from": self._start(type_key),
        }
        if self._totals is not None:
            # By type: one that fails after this is left out of the batch, and the others are whole without it.
            counts = sorted(self._totals.items())
            facts["types"] = {other.type: count for other, count in counts if other.partition == type_key.partition}
        return facts

    def _start(self, type_key: TypeKey) -> int:
        """From which offset on the records of the type belong to this slice."""
        piece = self._flow.slices[type_key.partition]
        return max(piece.start, piece.takes.get(type_key.type, piece.start))

    def _path(self, key: PileKey) -> str:
        type_key = key.type_key
        name = self._flow.new_file_name(type_key.partition, self._start(type_key))
        if key.day is None:
            return name
        if not self._flow.staged_folder:
            return f"{type_key.type}/{partition_folder({'day': key.day})}{name}"
        return f"{self._flow.staged_folder}/{type_key.type}/{name}"


def _piece_of(piece: RoutedSlice, first_offset: int) -> list[int]:
    """The task's piece of the slice: the one that holds its first offset."""
    begins = piece.pieces or (piece.start,)
    number = max(0, bisect_right(begins, first_offset) - 1)
    end = begins[number + 1] if number + 1 < len(begins) else piece.end
    return [begins[number], end]
