"""Reading the quarantine table: its files one row group at a time, the newest rows, one row by its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.quarantine import error_kinds
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.table import DeltaLog

KINDS_MAX = 1000
OTHER_KINDS = "other errors"
PLACE = ("topic_id", "partition", "offset")


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One line of the listing."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    quarantined_at: datetime
    error: str
    size_bytes: int | None
    """The size of the value; None for a tombstone."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The newest rows, and how many there are of each kind of error, the most frequent first."""

    rows: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    newest: tuple[QuarantineEntry, ...] = ()


def files_of(table: DeltaLog) -> list[ActiveFile]:
    """The files of the loaded version, oldest first."""
    files = table.active_files(("partition", "offset"))
    return sorted(files, key=lambda file: (file.modified_at_ms, file.spans["offset"] or (0, 0), file.path))


def may_hold(file: ActiveFile, partition: int, first: int, last: int) -> bool:
    """Whether the file can have an offset of `[first, last]` of that partition number, by its statistics."""
    ranges = (file.spans["partition"], (partition, partition)), (file.spans["offset"], (first, last))
    return all(span is None or (span[0] <= high and low <= span[1]) for span, (low, high) in ranges)


def read_file(table: DeltaLog, file: ActiveFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file, one row group at a time, in the table's types; a column that the file lacks is null."""
    schema = table.schema if columns is None else pa.schema([table.schema.field(name) for name in columns])
    with table.storage().open_reader(file.path) as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
        names = [name for name in parquet.schema_arrow.names if name in schema.names]
        for group in range(parquet.num_row_groups):
            # No Arrow threads, also none for read-ahead: one that still runs at exit aborts a short command.
            rows = parquet.read_row_group(group, columns=names, use_threads=False)
            yield pa.Table.from_batches([fit_columns(batch, schema) for batch in rows.to_batches()], schema)


def read_rows(table: DeltaLog, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of the loaded version, one row group at a time, oldest files first."""
    for file in files_of(table):
        yield from read_file(table, file, columns)


def count_rows(table: DeltaLog) -> int:
    """The number of rows by the log of the table; files without a number in the log are read."""
    counts = [file.rows for file in table.active_files()]
    if None in counts:
        return sum(rows.num_rows for rows in read_rows(table, ["offset"]))
    return sum(count or 0 for count in counts)


def list_rows(table: DeltaLog, limit: int, kind: str | None = None, skip: int = 0) -> Listing:
    """Read all rows once, and keep the newest `limit` of them after `skip` newer ones, of one kind of error or of all.

    Values are read of these rows only.
    """
    kinds: Counter[str] = Counter()
    newest: pa.Table | None = None
    count = 0
    for rows in read_rows(table, [item.name for item in fields(QuarantineEntry) if item.name in table.schema.names]):
        count += rows.num_rows
        named = error_kinds(rows.column("error"))
        for counted in named.value_counts().to_pylist():
            name = counted["values"]
            kinds[name if name in kinds or len(kinds) < KINDS_MAX else OTHER_KINDS] += counted["counts"]
        if kind is not None:
            unlisted = pc.invert(pc.is_in(named, value_set=pa.array(list(kinds), pa.string())))
            rows = rows.filter(unlisted if kind == OTHER_KINDS else pc.equal(named, kind))
        newest = _newest(newest, rows, skip + limit)
    places = [] if newest is None else newest.slice(skip).to_pylist()
    sizes = {_place(row): row["size_bytes"] for row in _read_at(table, places, ["value"], 0)} if places else {}
    entries = tuple(QuarantineEntry(**row, size_bytes=sizes.get(_place(row))) for row in places)
    return Listing(count, dict(kinds.most_common()), entries)


def read_records(table: DeltaLog, entries: Sequence[QuarantineEntry], bytes_max: int) -> list[dict[str, Any]]:
    """The rows of these entries in their order, with at most so many bytes of their values and keys."""
    columns = [name for name in table.schema.names if name != "job"]
    rows = {_place(row): row for row in _read_at(table, [asdict(entry) for entry in entries], columns, bytes_max)}
    return [rows[place] for entry in entries if (place := _place(asdict(entry))) in rows]


def find_rows(
    table: DeltaLog, topic: str, partition: int, first: int, last: int | None = None, columns: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows at these offsets, all columns by default, newest first: a recreated topic may have a place twice."""
    last = first if last is None else last
    named = list(dict.fromkeys([*columns, "topic", "partition", "offset", "quarantined_at"])) if columns else None
    files = [file for file in files_of(table) if may_hold(file, partition, first, last)]
    tables = (rows for file in files for rows in read_file(table, file, named))
    matching = (rows.filter(where(rows, topic=topic, partition=partition)) for rows in tables)
    return sorted(
        (row for rows in matching for row in rows.filter(_between(rows, first, last)).to_pylist()),
        key=lambda row: row["quarantined_at"],
        reverse=True,
    )


def _between(rows: pa.Table, first: int, last: int) -> pa.ChunkedArray:
    offsets = rows.column("offset")
    return pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))


def at_places(rows: pa.Table, places: pa.Array) -> pa.ChunkedArray:
    """Which rows are at these places, each `<topic id>/<partition>/<offset>`."""
    numbers = [pc.cast(rows.column(name), pa.string()) for name in ("partition", "offset")]
    return pc.is_in(pc.binary_join_element_wise(rows.column("topic_id"), *numbers, "/"), value_set=places)


def where(rows: pa.Table, **values: object) -> pa.ChunkedArray:
    """Which rows have these values in the columns of these names."""
    return reduce(pc.and_, (pc.equal(rows.column(name), value) for name, value in values.items()))


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*PLACE, "quarantined_at"))


def _read_at(
    table: DeltaLog, places: Sequence[Mapping[str, Any]], columns: Sequence[str], bytes_max: int
) -> Iterator[dict[str, Any]]:
    """The rows at these places, values and keys cut to so many bytes, with the size of the whole value."""
    texts = pa.array([f"{row['topic_id']}/{row['partition']}/{row['offset']}" for row in places], pa.string())
    for file in files_of(table):
        if not any(may_hold(file, row["partition"], row["offset"], row["offset"]) for row in places):
            continue
        for rows in read_file(table, file, list(dict.fromkeys([*PLACE, "quarantined_at", *columns]))):
            chosen = rows.filter(at_places(rows, texts))
            sizes = pc.cast(pc.binary_length(chosen.column("value")), pa.int64())
            for name in {"key", "value"} & {*chosen.schema.names}:
                cut = pc.binary_slice(chosen.column(name), 0, bytes_max)
                chosen = chosen.set_column(chosen.schema.get_field_index(name), name, cut)
            yield from chosen.append_column("size_bytes", sizes).to_pylist()


def _newest(before: pa.Table | None, rows: pa.Table, limit: int) -> pa.Table:
    together = rows if before is None else pa.concat_tables([before, rows])
    up, down = "ascending", "descending"
    order = [("quarantined_at", down), ("topic", up), ("partition", up), ("offset", down)]
    return together.take(pc.sort_indices(together, order)[:limit])
