"""Reads the offsets that the files of a table hold: only the columns that matter, one file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import TransientError, UserError
from penstock.log.offsets import Partition
from penstock.storage import NotFoundError, Storage
from penstock.tables.delta.library import library_errors
from penstock.tables.delta.table import Table
from penstock.verify.findings import Offence, OffenceKind
from penstock.verify.owners import OriginColumns, Owners
from penstock.verify.windows import Pass, Window

ROWS_PER_BATCH = 256 * 1024


class GoneError(TransientError):
    """A file that was there a moment ago is gone: vacuum or compaction ran meanwhile, or somebody deleted it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """An active file of a table; `rows` and the span of its offsets are None where it has no statistics."""

    path: str
    rows: int | None
    partition_values: Mapping[str, Any] = field(default_factory=dict)
    offsets: tuple[int, int] | None = None
    """Lowest and highest."""
    numbers: tuple[int, int] | None = None
    topic_id: str | None = None
    """Of all of its rows, where its name or footer tells."""
    moves_to: str | None = None
    """Where a staged file will be found once it is moved, which may happen at any time."""


def active_files(table: Table, columns: OriginColumns | None) -> list[DataFile]:
    """The files of the version that the table has loaded."""
    with library_errors(table.spec.path):
        _refuse_deletion_vectors(table)
        actions = pa.table(table.handle.get_add_actions(flatten=True)).to_pylist()
    return [_file(each, columns) for each in actions]


def _refuse_deletion_vectors(table: Table) -> None:
    """Refuse to count rows of which only some are there."""
    if "deletionVectors" not in (table.handle.protocol().reader_features or ()):
        return
    if any(batch.num_rows for batch in table.handle.deletion_vectors()):
        raise UserError(
            f"the table at {table.spec.path} has files with deletion vectors, which verify does not read",
            detail="another writer deleted single rows",
            hint="run `REORG TABLE ... APPLY (PURGE)` with Spark, then verify again",
        )


def _file(action: Mapping[str, Any], columns: OriginColumns | None) -> DataFile:
    prefix = "partition."
    return DataFile(
        # The library gives the name on disk percent-encoded.
        path=unquote(action["path"]),
        rows=action["num_records"],
        partition_values={key[len(prefix) :]: value for key, value in action.items() if key.startswith(prefix)},
        offsets=_extent(action, columns.offset) if columns else None,
        numbers=_extent(action, columns.partition) if columns else None,
    )


def _extent(action: Mapping[str, Any], column: str) -> tuple[int, int] | None:
    lowest, highest = action.get(f"min.{column}"), action.get(f"max.{column}")
    # A null hides in no extent: files with some are always read.
    if lowest is None or highest is None or action.get(f"null_count.{column}") != 0:
        return None
    return int(lowest), int(highest)


def count_rows(storage: Storage, files: Sequence[DataFile]) -> int:
    """The rows of all files, from statistics or else from their footers."""
    return sum(_open(storage, each).metadata.num_rows if each.rows is None else each.rows for each in files)


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one pass found: offsets by partition, and the first row that belongs to no partition of the job."""

    offsets: Mapping[Partition, pl.Series]
    stranger: Offence | None = None


class OffsetScan:
    """Reads offsets of files, pass by pass; counts the rows that cannot be placed, each file once.

    `ends` are the offsets up to which the files are judged: rows beyond are left out and counted.
    """

    def __init__(
        self,
        storage: Storage,
        files: Sequence[DataFile],
        columns: OriginColumns,
        owners: Owners,
        ends: Mapping[Partition, int] | None = None,
    ) -> None:
        self._storage = storage
        self._files = files
        self._columns = columns
        self._owners = owners
        self._ends = ends or {}
        self._seen: set[str] = set()
        self.unplaced = 0
        self.ahead = 0

    def read(self, wanted: Pass, ignored_ids: frozenset[str]) -> Scanned:
        """The offsets in the windows of one pass; rows of `ignored_ids` are left out."""
        windows = {(each.topic_id, each.number): (each, window) for each, window in wanted.items()}
        found: dict[Partition, list[pl.Series]] = {}
        strangers: list[Offence] = []
        for file in self._files:
            if file.path in self._seen and not _may_hold(file, wanted):
                continue
            unplaced = 0
            for topic_id, group in self._groups(file):
                if topic_id is None:
                    unplaced += len(group.offsets)
                elif topic_id in ignored_ids:
                    continue
                elif (place := windows.get((topic_id, group.number))) is None:
                    strangers.append(
                        Offence(group.topic or topic_id, group.number, group.lowest, OffenceKind.UNKNOWN_PARTITION)
                    )
                else:
                    found.setdefault(place[0], []).append(self._up_to_end(place[0], _within(group.offsets, place[1])))
            if file.path not in self._seen:
                self._seen.add(file.path)
                self.unplaced += unplaced
        return Scanned(
            {each: pl.concat(parts) for each, parts in found.items()},
            min(strangers, key=lambda each: (each.topic, each.partition, each.offset), default=None),
        )

    def _up_to_end(self, partition: Partition, offsets: pl.Series) -> pl.Series:
        """The windows of all passes are apart, so each row is met once."""
        end = self._ends.get(partition)
        if end is None:
            return offsets
        judged = offsets.filter(offsets < end)
        self.ahead += len(offsets) - len(judged)
        return judged

    def _groups(self, file: DataFile) -> Iterator[tuple[str | None, _Group]]:
        """The rows of a file by topic and partition, with the topic id; None where it cannot be told."""
        for frame in _frames(self._storage, file, self._columns):
            keys = [name for name in frame.columns if name != "offset"]
            for part in frame.partition_by(keys, maintain_order=True):
                [values] = part.select(keys).head(1).to_dicts()
                offsets = part["offset"]
                if values["partition"] is None or offsets.null_count():
                    missing = offsets.filter(offsets.is_null()) if values["partition"] is not None else offsets
                    yield None, _Group(None, -1, missing)
                    offsets = offsets.drop_nulls()
                if values["partition"] is not None and len(offsets):
                    topic = values.get("topic")
                    owner = self._owners.owner(file.path, topic, values.get("topic_id") or file.topic_id)
                    yield owner, _Group(topic, values["partition"], offsets)


@dataclass(frozen=True, slots=True)
class _Group:
    topic: str | None
    number: int
    offsets: pl.Series

    @property
    def lowest(self) -> int:
        lowest = self.offsets.min()
        return lowest if isinstance(lowest, int) else 0


def _may_hold(file: DataFile, wanted: Pass) -> bool:
    if file.offsets is None:
        return True
    lowest, highest = file.offsets
    return any(
        window.takes(lowest, highest) and (file.numbers is None or file.numbers[0] <= each.number <= file.numbers[1])
        for each, window in wanted.items()
    )


def _within(offsets: pl.Series, window: Window) -> pl.Series:
    if not window.takes_lower:
        offsets = offsets.filter(offsets >= window.lo)
    if not window.takes_higher:
        offsets = offsets.filter(offsets < window.hi)
    return offsets


def _open(storage: Storage, file: DataFile) -> pq.ParquetFile:
    for path in (file.path, file.moves_to):
        if path is None:
            continue
        try:
            return pq.ParquetFile(storage.open_reader(path))
        except NotFoundError:
            pass
    raise GoneError(
        f"the file {file.path} of {storage.url} is gone",
        detail="the table names it; a vacuum that ran meanwhile may have taken it",
        hint="try again; if it stays, the table is damaged: restore the file",
    )


def _frames(storage: Storage, file: DataFile, columns: OriginColumns) -> Iterator[pl.DataFrame]:
    """The origin columns of a file under the names partition, offset, topic and topic_id."""
    parquet = _open(storage, file)
    roles = {
        role: name
        for role, name in (
            ("partition", columns.partition),
            ("offset", columns.offset),
            ("topic", columns.topic),
            ("topic_id", columns.topic_id),
        )
        if name is not None
    }
    types = {"partition": pl.Int64, "offset": pl.Int64, "topic": pl.String, "topic_id": pl.String}
    present = set(parquet.schema_arrow.names)
    wanted = [name for name in roles.values() if name in present]
    for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
        series = []
        for role, name in roles.items():
            if name in present:
                one = pl.Series(role, pl.from_arrow(batch.column(name)))
            else:
                # A column of the partition values, or one that is younger than the file.
                one = pl.Series(role, [file.partition_values.get(name)], dtype=types[role]).new_from_index(
                    0, len(batch)
                )
            series.append(one.cast(types[role]).rename(role))
        yield pl.DataFrame(series)
