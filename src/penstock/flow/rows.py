"""What passes between the stages of a task: decoded rows with the Kafka rows that they came from, and bad rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.seen_types import NewFields

RowNumbers = Sequence[int] | npt.NDArray[np.int64]
_NO_ERRORS = pa.nulls(0, pa.string())


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Good rows in offset order: row `i` of `columns` was decoded from row `i` of `kafka`."""

    columns: pa.RecordBatch
    kafka: pa.RecordBatch

    def __post_init__(self) -> None:
        if self.columns.num_rows != self.kafka.num_rows:
            raise InvariantError(f"{self.columns.num_rows} decoded rows for {self.kafka.num_rows} Kafka rows")

    def take(self, rows: Sequence[int]) -> DecodedRows:
        """The named rows, in the order given; the same value if that is all of them."""
        return DecodedRows(take(self.columns, rows), take(self.kafka, rows))


@dataclass(frozen=True, slots=True)
class BadRows:
    """Kafka rows as they came, each with the reason (`errors`) why it cannot be a row."""

    kafka: pa.RecordBatch
    errors: pa.Array

    def __post_init__(self) -> None:
        if len(self.errors) != self.kafka.num_rows:
            raise InvariantError(f"{len(self.errors)} errors for {self.kafka.num_rows} bad rows")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of one batch: `len(rows) + len(bad) + filtered + len(rest)` is the number of rows that came in."""

    rows: DecodedRows
    bad: BadRows
    filtered: int
    new_fields: NewFields
    rest: pa.RecordBatch | None = None
    """Its last rows, to be decoded next: the payloads of the others are as large unpacked as one batch may be."""


class InParts(Protocol):
    @property
    def rest(self) -> pa.RecordBatch | None: ...


PartT = TypeVar("PartT", bound=InParts)


def in_parts(decode: Callable[[pa.RecordBatch], PartT], batch: pa.RecordBatch) -> Iterator[PartT]:
    """Decode all rows of a batch, as many at a time as memory allows."""
    waiting: pa.RecordBatch | None = batch
    while waiting is not None:
        decoded = decode(waiting)
        yield decoded
        waiting = decoded.rest


def with_columns(rows: pa.RecordBatch, more: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of both."""
    if not more.num_columns:
        return rows
    return pa.RecordBatch.from_arrays([*rows.columns, *more.columns], schema=pa.schema([*rows.schema, *more.schema]))


def bad_rows(kafka: pa.RecordBatch, errors: Mapping[int, str]) -> BadRows:
    """The rows of `kafka` that `errors` names by their number, in offset order."""
    if not errors:
        return BadRows(kafka.slice(0, 0), _NO_ERRORS)
    numbers = sorted(errors)
    return BadRows(take(kafka, numbers), pa.array([errors[number] for number in numbers], pa.string()))


def rows_without(count: int, dropped: Mapping[int, str]) -> Sequence[int]:
    """The numbers below `count` that are not dropped: a `range` if none is."""
    return [number for number in range(count) if number not in dropped] if dropped else range(count)


def take(batch: pa.RecordBatch, rows: RowNumbers) -> pa.RecordBatch:
    """The named rows, ascending; no copy if they are all rows or none."""
    if len(rows) == batch.num_rows:
        return batch
    if not len(rows):
        return batch.slice(0, 0)
    if isinstance(rows, np.ndarray) and 2 * len(rows) > batch.num_rows:
        # Where most are kept, a filter copies whole stretches at once.
        kept = np.zeros(batch.num_rows, np.bool_)
        kept[rows] = True
        return batch.filter(pa.array(kept))
    return batch.take(pa.array(rows, pa.int64()))


def groups(codes: npt.NDArray[np.signedinteger]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """The rows of each code, ascending."""
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        yield int(codes[rows[0]]), rows
