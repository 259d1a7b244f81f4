"""The identity of a row in a keyed table: its key, and which of two rows of a key is newer. Pure.

A key is the values of the partition key, then those of the row key. The bucket of a row is a hash of its partition key,
or of its row key if there is no partition key. It must never change, because rows are looked up there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvariantError
from penstock.flow.columns.conditions import matches
from penstock.flow.rows import DecodedRows
from penstock.job.conditions import Condition, read_condition
from penstock.job.values import Key, Parsed, Texts, one_of, positive, within
from penstock.job.values import text as as_text

BUCKET = "_bucket"
SEQUENCE = "_sequence"
TIEBREAK = "_tiebreak"
"""Decides between records of two partitions that have the same offset."""
SEQUENCES = "_sequences"
"""Only with partial updates: the columns whose value is older than the row, with the order of the value."""
HIDDEN = (SEQUENCE, TIEBREAK, SEQUENCES, BUCKET)
"""Columns that Penstock adds; readers do not see them."""
DELETE = "_delete"
"""The column of a run that states whether a row deletes its key."""
RESERVED = frozenset((*HIDDEN, DELETE))
"""Names, in lower case, that no column of a record may have."""
KEY_BYTES_MAX = 32 * 1024
OFFSET_BITS = 48
"""The low bits of a sequence; the bits above them are the generation of the log."""
TOPIC_BITS = 32
"""The low bits of a tiebreak; the bits above them are the partition. More would rarely pack with offsets."""
HASHES_CACHED_MAX = 4_096
"""Values whose hash a process caches."""

BUCKETS_MAX = 4096
LOG_ORDER = "log"
"""The value of `sequence` for the order of the log."""

Numbers: TypeAlias = npt.NDArray[np.uint64]


_MERGES = one_of(Literal["replace", "merge"])


def _merges(value: object) -> bool:
    return _MERGES.read(value) == "merge"


def _sequence(value: object) -> str | None:
    return None if as_text(value) == LOG_ORDER else as_text(value)


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of a table, and how a record changes the row of its key."""

    row_keys: Texts
    partition_keys: Texts = ()
    sequence: Annotated[str | None, Parsed(_sequence)] = None
    """The column that orders the records of a key; None: the order of the log."""
    delete: Annotated[Condition | None, Parsed(read_condition)] = None
    """Which records delete their row."""
    merge: Annotated[bool, Key("partial_updates"), Parsed(_merges)] = False
    """Whether a null in an update keeps the existing value."""
    buckets: Annotated[int, within(positive, f"at most {BUCKETS_MAX}", most=BUCKETS_MAX)] = 16

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return (*self.partition_keys, *self.row_keys)

    @property
    def key_names(self) -> list[str]:
        """The names of these columns in a frame of keys."""
        return [f"key{number}" for number in range(len(self.keys))]

    @property
    def order_names(self) -> list[str]:
        """The columns that order the rows of one key, the most significant first."""
        return [*([] if self.sequence is None else [self.sequence]), SEQUENCE, TIEBREAK]

    @property
    def columns(self) -> list[str]:
        """The columns that give the key of a row and its order."""
        return list(dict.fromkeys([*self.keys, *self.order_names]))

    def __str__(self) -> str:
        """The settings that a table stores: equal texts mean that rows are in the same buckets."""
        keys, rows = ", ".join(self.partition_keys), ", ".join(self.row_keys)
        order = self.sequence or "the log"
        return f"partition_keys [{keys}], row_keys [{rows}], sequence {order}, buckets {self.buckets}"


def key_frame(layout: Layout, rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """The keys of rows, a column for each part; null where a part has no value."""
    columns = zip(layout.key_names, layout.keys, strict=True)
    return pl.DataFrame([_series(rows.column(column)).alias(name) for name, column in columns])


def order_frame(layout: Layout, rows: pa.Table | pa.RecordBatch, *, within_partition: bool = False) -> pl.DataFrame:
    """The order of the rows of a key, as columns `order0`, `order1`, ...; one partition needs no tiebreak."""
    names = layout.order_names[: -1 if within_partition else None]
    return pl.DataFrame([_series(rows.column(name)).alias(f"order{number}") for number, name in enumerate(names)])


def order_columns(layout: Layout) -> list[str]:
    return [f"order{number}" for number in range(len(layout.order_names))]


def sequences_type(layout: Layout, columns: pa.Schema) -> pa.DataType:
    """The type of `_sequences`: names of columns, each with the order of its value."""
    kinds = [columns.field(name).type for name in layout.order_names]
    orders = zip(order_columns(layout), kinds, strict=True)
    return pa.list_(pa.struct([("column", pa.string()), *orders]))


def newer(layout: Layout, than: str) -> pl.Expr:
    """Whether a row comes after the one whose order is in the columns with this suffix."""
    return _comes_after(layout, "", than)


def older(layout: Layout, than: str) -> pl.Expr:
    """Whether a row comes before the one whose order is in the columns with this suffix."""
    return _comes_after(layout, than, "")


def _comes_after(layout: Layout, one: str, other: str) -> pl.Expr:
    after: pl.Expr = pl.lit(False)
    for name in reversed(order_columns(layout)):
        left, right = pl.col(f"{name}{one}"), pl.col(f"{name}{other}")
        after = (left > right) | ((left == right) & after)
    return after


def buckets_of(layout: Layout, keys: pl.DataFrame) -> pl.Series:
    """The bucket of each key; without partition keys the row key decides. No part may be null."""
    total = np.zeros(len(keys), np.uint64)
    for name in layout.key_names[: len(layout.partition_keys) or None]:
        total = _mixed(total + stable_hash(keys[name]))
    return pl.Series(BUCKET, (total % np.uint64(layout.buckets)).astype(np.int32))


def stable_hash(column: pl.Series) -> Numbers:
    """A number for each value, the same in every process and every version of every library."""
    if column.dtype in (pl.String, pl.Binary):
        codes = column.to_arrow().dictionary_encode()
        distinct = [_bytes_hash(value) for value in codes.dictionary.cast(pa.large_binary()).to_pylist()]
        hashes = np.array([*distinct, 0], np.uint64)
        taken: Numbers = hashes[codes.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]
        return taken
    whole = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
    return _mixed(whole.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def key_faults(layout: Layout, rows: pa.RecordBatch) -> dict[int, str]:
    """The rows that the table cannot take, by number, with the reason."""
    keys = key_frame(layout, rows)
    faults: dict[int, str] = {}

    def note(bad: pl.Series, reason: str) -> None:
        faults.update({row: reason for row in bad.arg_true() if row not in faults})

    for name, column in zip(layout.key_names, layout.keys, strict=True):
        if keys[name].null_count():
            kind = "partition" if column in layout.partition_keys else "row"
            note(keys[name].is_null(), f"{column} is null, which is a part of the {kind} key")
    if layout.sequence is not None and rows.column(layout.sequence).null_count:
        note(_series(rows.column(layout.sequence)).is_null(), f"{layout.sequence}: the sequence is null")
    texts = [column.cast(pl.Binary).bin.size() for column in keys if column.dtype in (pl.String, pl.Binary)]
    if texts:
        note(pl.DataFrame(texts).sum_horizontal() > KEY_BYTES_MAX, f"the key is longer than {KEY_BYTES_MAX} bytes")
    return faults


def is_key_type(kind: pa.DataType) -> bool:
    """Whether equal values always compare as equal: floats and decimals have several forms of one number."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_boolean)
    return any(test(kind) for test in (*tests, pa.types.is_date32, pa.types.is_timestamp))


def sequences(offsets: pa.Array, generations: Sequence[tuple[int, int]]) -> pa.Array:
    """The place of records in the log as one number (RULES K2): the generation in the bits above the offset.

    `generations`: pairs of a first offset and its generation, ascending.
    """
    numbers = offsets.to_numpy(zero_copy_only=False)
    if len(numbers) and int(numbers.max()) >= 1 << OFFSET_BITS:
        raise InvariantError(f"offset {numbers.max()} does not fit into {OFFSET_BITS} bits of a sequence")
    starts = np.array([start for start, _ in generations] or [0], np.int64)
    values = np.array([number for _, number in generations] or [0], np.int64)
    at = np.maximum(np.searchsorted(starts, numbers, side="right") - 1, 0)
    return pa.array((values[at] << OFFSET_BITS) | numbers, pa.int64())


def tiebreaks(sequence: pa.Array, topic: str, partition: int) -> pa.Array:
    """The order of records with the same offset: by partition, then by topic. Rows of loads have none."""
    of_topic = int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "little") >> (64 - TOPIC_BITS)
    of_log = partition << TOPIC_BITS | of_topic
    return pa.array(np.where(sequence.to_numpy() < 0, 0, of_log), pa.int64())


def deletions(layout: Layout, rows: DecodedRows) -> pa.Array:
    """Whether each row deletes: by the job's condition, or because its record is a tombstone."""
    deletes = pa.repeat(False, rows.columns.num_rows)
    if "value" in rows.kafka.schema.names:
        deletes = pc.is_null(rows.kafka.column("value"))
    return deletes if layout.delete is None else pc.or_(deletes, matches(layout.delete, rows))


def _series(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    return pl.Series(pl.from_arrow(column))


@lru_cache(HASHES_CACHED_MAX)
def _bytes_hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mixed(numbers: Numbers) -> Numbers:
    """The finaliser of splitmix64."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    final: Numbers = mixed ^ (mixed >> np.uint64(31))
    return final
