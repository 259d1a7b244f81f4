"""The staged files of all types and days of a task. What fails while a type is written fails that type alone."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.decode.misfit import clipped
from penstock.flow.route.fanout_flow import FanoutFlow
from penstock.flow.route.footers import Footer, WrittenFile
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.pool import FilePool
from penstock.flow.write.report import UNROUTED, Share
from penstock.flow.write.tally import TypeKey
from penstock.job.kafka_types import place_columns
from penstock.storage import Storage, open_storage

_REASON_CHARACTERS_MAX = 300


class PileKey(NamedTuple):
    type_key: TypeKey
    day: str | None
    """None for the quarantine."""


class TypeFiles(FilePool[PileKey]):
    """Takes rows of every type and day, and turns them into staged files."""

    def __init__(self, flow: FanoutFlow) -> None:
        super().__init__(flow.limits)
        self.failed: dict[TypeKey, str] = {}
        self._flow = flow
        self._spans: dict[PileKey, tuple[int, int]] = {}
        """The first and the last offset of the rows that each file has so far."""
        self._by_type: dict[TypeKey, Share] = {}
        self._storages: dict[str, Storage] = {}
        self._task = uuid.uuid4().hex
        self._totals: Counter[TypeKey] | None = None
        """Files of each in all, once they are known."""

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
        least, most = int(offsets.min()), int(offsets.max())
        first, last = self._spans.get(key, (least, most))
        self._spans[key] = min(first, least), max(last, most)
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
            written = self._written(key.type_key, key.day, *self._spans[key])
            file.note(Footer(job=self._flow.job, written=(written,)).as_metadata)

    def _staged(self, key: PileKey, file: ParquetFile, stats: str) -> None:
        values: dict[str, str | None] = {} if key.day is None else {"day": key.day}
        span = self._spans.pop(key)
        if not stats:
            stats = self._place_stats(key, span, file.rows)
        staged = StagedFile(*key.type_key.partition, file.path, file.rows, file.size_bytes, values, stats, span[1])
        share = Share(quarantine_files=(staged,)) if key.day is None else Share(files=(staged,))
        self._by_type[key.type_key] = self._by_type.get(key.type_key, Share()) + share

    def _place_stats(self, key: PileKey, span: tuple[int, int], rows: int) -> str:
        """Delta statistics of plain files: of the columns that hold the place of a row, which are known anyway."""
        ends = {"partition": (key.type_key.partition[1],) * 2, "offset": span}
        names = {name: ends[part] for part, name in place_columns(self._flow.columns) if part in ends}
        least, most = ({name: pair[end] for name, pair in names.items()} for end in (0, 1))
        stats = {"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(names, 0)}
        return json.dumps(stats)

    def _written(self, type_key: TypeKey, day: str, first: int, last: int) -> WrittenFile:
        """What the footer of a file shows."""
        topic, number = type_key.partition
        piece, run = self._flow.slices[type_key.partition], self._flow.replay_run
        counts = None
        if self._totals is not None and run is None:
            # By type: one that fails after this is left out of the batch, and the others are whole without it.
            of_all = sorted(self._totals.items())
            counts = {other.type: count for other, count in of_all if other.partition == type_key.partition}
        return WrittenFile(
            topic=topic,
            topic_id=piece.topic_id,
            number=number,
            batch=self._flow.batch_id,
            type=type_key.type,
            day=day,
            start=self._start(type_key) if run is None else first,
            end=piece.end if run is None else last + 1,
            last=last,
            after=piece.after.get(type_key.type, 0),
            task=self._task,
            tasks=piece.tasks,
            types=counts,
            run=run or 0,
        )

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
