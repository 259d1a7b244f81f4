"""How small files are chosen and merged: groups of neighbours become one file each, and a commit swaps them.

Which files may be grouped, where merged files go and how the commit is made belongs to the kind of table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvariantError
from penstock.flow.columns.fitting import fit_columns, folded
from penstock.flow.write.manifest import RowWriter, StagedFile
from penstock.flow.write.parquet_file import ParquetFile
from penstock.storage import Storage

BATCH_BYTES_MAX = 16 * 1024**2
BATCH_ROWS_MAX = 65_536
Progress = Callable[[int, int], None]
"""Called with how much is done, of how much."""
T = TypeVar("T")


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=Sized)


@dataclass(frozen=True, slots=True)
class CompactionGroup(Generic[F]):
    """Files that become one, in the order of their rows."""

    files: tuple[F, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Merged(Generic[F]):
    """A group and the files that hold its rows, staged and not yet committed."""

    group: CompactionGroup[F]
    outputs: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class Limit(Generic[T]):
    """How much a group may hold; its last item may exceed it, but never a `firm` limit."""

    weight: Callable[[T], int]
    most: int
    firm: bool = False


def gather(items: Iterable[T], *limits: Limit[T]) -> Iterator[tuple[T, ...]]:
    """Neighbours together, until they reach one of the limits."""
    pending: list[T] = []
    sums = [0] * len(limits)
    for item in items:
        weights = [limit.weight(item) for limit in limits]
        more = [total + weight for total, weight in zip(sums, weights, strict=True)]
        if pending and any(limit.firm and total > limit.most for limit, total in zip(limits, more, strict=True)):
            yield tuple(pending)
            pending, more = [], weights
        pending.append(item)
        sums = more
        if any(total >= limit.most for limit, total in zip(limits, sums, strict=True)):
            yield tuple(pending)
            pending, sums = [], [0] * len(limits)
    if pending:
        yield tuple(pending)


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """How much one compaction merges; by default all small files."""

    alike_min: int | None = None
    """Only files of about one size, if there are so many: a row is then written again once for every eightfold growth
    of its file."""
    bytes_max: int | None = None

    def worthwhile(self, files: Sequence[F]) -> list[list[F]]:
        """The files that may be grouped with each other, in their order."""
        if self.alike_min is None:
            return [list(files)]
        sizes: dict[int, list[F]] = {}
        for file in files:
            sizes.setdefault(file.size_bytes.bit_length() // 3, []).append(file)
        return [alike for _, alike in sorted(sizes.items()) if len(alike) >= self.alike_min]

    def within(self, groups: Sequence[CompactionGroup[F]]) -> Sequence[CompactionGroup[F]]:
        """The first groups, until they reach the bound."""
        total = 0
        for number, files in enumerate(groups):
            if self.bytes_max is not None and total >= self.bytes_max:
                return groups[:number]
            total += files.size_bytes
        return groups

    def after(self, size_bytes: int) -> CompactionLimits:
        """The limits that remain after so many bytes."""
        return self if self.bytes_max is None else replace(self, bytes_max=self.bytes_max - size_bytes)


EVERYTHING = CompactionLimits()


def group(files: Iterable[F], target_bytes: int, *limits: Limit[F]) -> Iterator[CompactionGroup[F]]:
    """Groups of neighbouring files up to the target size; a single file is in no group."""
    size: Limit[F] = Limit(lambda file: file.size_bytes, target_bytes)
    return (CompactionGroup(neighbours) for neighbours in gather(files, size, *limits) if len(neighbours) > 1)


@dataclass(frozen=True, slots=True)
class CompactionSource:
    """A file whose rows are copied."""

    path: str
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Columns with one value in all rows, which the log of the table has and the file does not."""


def merge_files(
    storage: Storage, sources: Iterable[CompactionSource], schema: pa.Schema, sink: RowWriter, hint: str = ""
) -> tuple[StagedFile, ...]:
    """Write the rows of all sources, in their order; memory holds one row group and one batch.

    `hint` is for the error about a file that cannot be read. Raises `NotFoundError` for one that does not exist.
    """
    return write_rows(sink, (rows for source in sources for rows in _rows(storage, source, schema, hint)))


def write_rows(sink: RowWriter, batches: Iterable[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    """Write rows to staged files that no version refers to yet; an error leaves no open file."""
    read = 0
    try:
        for rows in batches:
            read += rows.num_rows
            sink.write(rows)
        outputs = sink.finish()
    except BaseException:
        sink.abandon()
        raise
    written = sum(output.rows for output in outputs)
    if read != written:
        paths = ", ".join(output.path for output in outputs)
        raise InvariantError(f"a task read {read} rows and wrote {written}", detail=f"the new files: {paths}")
    return outputs


class OneFile:
    """A sink that is one file; `metadata` is that of its footer."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        compression: str,
        row_group_bytes_max: int,
        metadata: Mapping[str, str],
    ) -> None:
        self._file = ParquetFile(storage, path, schema, compression)
        self._schema = schema
        self._row_group_bytes_max = row_group_bytes_max
        self._metadata = metadata
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._row_group_bytes_max:
            self._write_waiting()

    def finish(self) -> tuple[StagedFile, ...]:
        self._write_waiting()
        self._file.note(self._metadata)
        footer = self._file.complete()
        return (StagedFile("", 0, self._file.path, footer.num_rows, self._file.size_bytes),)

    def abandon(self) -> None:
        self._file.abandon()

    def _write_waiting(self) -> None:
        if self._waiting:
            self._file.write(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_bytes = [], 0


def _rows(storage: Storage, source: CompactionSource, schema: pa.Schema, hint: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the columns of the schema."""
    # Files of another writer may have columns that are partition values, or were dropped: no reader sees them.
    visible = {folded(name) for name in schema.names if name not in source.values}
    read = 0
    with storage.open_reader(source.path) as file:
        try:
            # Without a pre-buffer only the column chunks of one row group are in memory.
            parquet = pq.ParquetFile(file, pre_buffer=False, coerce_int96_timestamp_unit="us")
            for number in range(parquet.num_row_groups):
                count = batch_rows(parquet.metadata.row_group(number))
                for batch in parquet.iter_batches(count, row_groups=[number]):
                    read += batch.num_rows
                    shown = batch.select([at for at, name in enumerate(batch.schema.names) if folded(name) in visible])
                    for name, value in source.values.items():
                        shown = shown.append_column(name, pa.repeat(value, batch.num_rows))
                    yield fit_columns(shown, schema)
            complete = read == parquet.metadata.num_rows
        except pa.ArrowException as error:
            raise InvariantError(f"cannot read {source.path} of {storage.url}", detail=str(error), hint=hint) from error
    if not complete:
        raise InvariantError(f"{source.path} of {storage.url} has {read} rows, its footer states another number")


def batch_rows(row_group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group are read at a time, so that a batch stays within bounds."""
    row_bytes = row_group.total_byte_size / max(1, row_group.num_rows)
    return max(1, min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / max(1.0, row_bytes))))
