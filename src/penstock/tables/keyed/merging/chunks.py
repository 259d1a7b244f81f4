"""Chunks: the files of a keyed table, sorted by key, of `chunk_rows` rows, named after their content (RULES K4).

The name has a hash of 128 bits over keys, values and sequences, the same in every version of every library. Different
rows never give the same bytes to hash: each name and type is preceded by its length, each null mask by a byte that
states whether it is present, and every other length follows from the bytes before it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import Content, with_content
from penstock.flow.write.parquet_file import ParquetFile
from penstock.flow.write.stats import FileStats
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.vectors import Rows, read_vector
from penstock.storage import Storage, open_storage
from penstock.tables.keyed.layout import BUCKET, Layout, key_frame
from penstock.tables.keyed.merging.open_chunk import OpenChunk, joined
from penstock.tables.keyed.merging.packing import packed

ROW_GROUP_ROWS_MAX = 16_384
"""Measured with 500,000 narrow rows: seven keys take 8 ms of CPU instead of 28 with 131,072, a file is written as fast.
With 4,096 they take 4 ms, but the file takes 18 % more CPU to write, and half more to read as a whole."""
DIGEST_BYTES = 16

NewName = Callable[[], str]
"""Returns a new file name at each call."""


def fresh(name: Callable[..., str], *parts: object) -> str:
    """A unique name of this shape; `partial(fresh, ...)` is a `NewName` that can be sent to tasks."""
    return name(*parts, uuid.uuid4().hex)


@dataclass(frozen=True)
class ChunkStore:
    """Reads and writes the files of a table."""

    table_url: str
    storage_options: Mapping[str, str]
    schema: pa.Schema
    """The columns of the files: all but the bucket."""
    layout: Layout
    chunk_rows: int

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.table_url, self.storage_options)

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file."""
        with self.opened(path) as chunk:
            return chunk.read(columns)

    @contextmanager
    def opened(self, path: str) -> Iterator[OpenChunk]:
        with self.storage.open_reader(path) as file:
            yield OpenChunk(file, self.schema)

    def read_at(self, path: str, rows: Rows) -> pa.Table:
        """These rows of a file, in their order."""
        with self.opened(path) as chunk:
            return chunk.read_at(rows)

    def deleted(self, file: ActiveFile) -> Rows:
        """The numbers of the deleted rows of a file."""
        if file.vector is None:
            return np.array([], np.int64)
        with self.storage.open_reader(file.vector.path) as vectors:
            return read_vector(file.vector, vectors)

    def left(self, file: ActiveFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file that are not deleted."""
        rows = self.read(file.path, columns)
        return (
            rows
            if file.vector is None
            else rows.take(pa.array(np.delete(np.arange(rows.num_rows), self.deleted(file))))
        )

    def sorted(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The rows of tables in the order of their keys."""
        rows = joined(tables)
        numbers = packed(key_frame(self.layout, rows).get_columns())
        return rows.take(pa.array(np.argsort(numbers, kind="stable")))

    def write(self, rows: pa.Table, bucket: int, name: NewName) -> Iterator[StagedFile]:
        """Write sorted rows of one bucket as chunks."""
        for first in range(0, rows.num_rows, self.chunk_rows):
            yield self._write_one(rows.slice(first, self.chunk_rows), bucket, name())

    def _write_one(self, rows: pa.Table, bucket: int, name: str) -> StagedFile:
        values = {BUCKET: str(bucket)}
        path = partition_folder(values) + with_content(name, Content(rows.num_rows, digest_of(rows)))
        stats = FileStats(self.schema)
        stats.note(rows)
        file = ParquetFile(self.storage, path, self.schema, "snappy")
        try:
            file.write(rows, ROW_GROUP_ROWS_MAX)
            footer = file.complete()
        except BaseException:
            file.abandon()
            raise
        return StagedFile("", 0, path, rows.num_rows, file.size_bytes, values, stats.as_json(footer))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the files of a table."""
    return pa.schema([field for field in schema if field.name != BUCKET])


def digest_of(rows: pa.Table) -> str:
    """The digest of rows in their order, as hex. It ignores all-null columns, which may have been added later."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(rows.num_rows.to_bytes(8, "little"))
    _add_fields(digest, ((name, rows.column(name).combine_chunks()) for name in sorted(rows.schema.names)))
    return digest.hexdigest()


def _add_fields(digest: hashlib.blake2b, fields: Iterable[tuple[str, pa.Array]]) -> None:
    """Add columns, or the members of a struct, in the order of their names, without all-null ones."""
    for name, values in fields:
        if values.null_count < len(values):
            _add_text(digest, name)
            _add(digest, values)
    # An empty name ends the list of fields.
    _add_text(digest, "")


def _add_text(digest: hashlib.blake2b, text: str) -> None:
    data = text.encode()
    digest.update(len(data).to_bytes(4, "little") + data)


def _add(digest: hashlib.blake2b, values: pa.Array) -> None:
    """Add values; the bytes before them give their number."""
    kind = values.type
    # Readers name the parts of nested types differently.
    _add_text(digest, "struct" if pa.types.is_struct(kind) else "list" if pa.types.is_nested(kind) else str(kind))
    if values.null_count:
        digest.update(b"\x01" + np.packbits(values.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    else:
        digest.update(b"\x00")
    if pa.types.is_struct(kind):
        numbers = sorted(range(kind.num_fields), key=lambda number: kind.field(number).name)
        _add_fields(digest, ((kind.field(number).name, pc.struct_field(values, number)) for number in numbers))
        return
    present = values.drop_null()
    if pa.types.is_nested(kind):
        _add_lists(digest, present)
    elif pa.types.is_decimal(kind):
        _add(digest, present.cast(pa.string()))
    elif pa.types.is_boolean(kind):
        digest.update(np.packbits(present.to_numpy(zero_copy_only=False)).tobytes())
    elif pa.types.is_primitive(kind):
        if pa.types.is_temporal(kind):
            present = present.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        digest.update(np.ascontiguousarray(present.to_numpy(zero_copy_only=False)).tobytes())
    else:
        _add_bytes(digest, present.cast(pa.large_binary()))


def _add_lists(digest: hashlib.blake2b, values: pa.Array) -> None:
    if pa.types.is_map(values.type):
        pairs = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
        values = values.cast(pa.list_(pairs))
    digest.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
    _add(digest, pc.list_flatten(values))


def _add_bytes(digest: hashlib.blake2b, values: pa.Array) -> None:
    """The lengths of all values, then all values in a row."""
    digest.update(pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
    offsets, data = values.buffers()[1], values.buffers()[2]
    if data is not None and len(values):
        ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
        digest.update(bytes(data[int(ends[0]) : int(ends[-1])]))
