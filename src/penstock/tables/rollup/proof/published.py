"""Closed windows against the topic that they are published to: each row once, and nothing else of the job.

Rows are encoded once more and compared with the committed records by their hashes. Only records that are no row of the
table are decoded: earlier revisions of a row may be among them, and records of other writers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Bounds, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Unproven, conclude
from penstock.publish.formats.avro import MARKER, avro_fingerprint, avro_schema
from penstock.publish.formats.encoders import ENCODERS
from penstock.publish.spec import PublishSpec
from penstock.tables.rollup.closing.portion.scan import read_batches, with_partition_columns
from penstock.tables.rollup.publishing.publishing import published_key
from penstock.tables.rollup.spec import RollupSpec

ROWS_PER_PASS_MAX = 4_000_000
_HEAD = ["series", "metric", "tags", "interval", "window_start"]
"""The first columns of the table, which it always had: enough to tell the window of a record."""
_RECORD = {"key": pl.Binary, "value": pl.Binary}
_ROWS = {"record": pl.UInt64, "window": pl.UInt64, "revision": pl.Int32, "due": pl.Boolean}
_OTHERS = {"window": pl.UInt64, "other_columns": pl.Boolean}


@dataclass(slots=True)
class _Found:
    """Rows and records by what became of them."""

    once: int = 0
    missing: int = 0
    twice: int = 0
    altered: int = 0
    revisions: int = 0
    other_columns: int = 0
    foreign: int = 0


def check_published(job: JobSpec[RollupSpec], spec: PublishSpec, windows: Table, open_log: OpenLog) -> Check:
    """Compare table and topic, in passes over the series so that memory is bounded."""
    noted = {bucket: windows.transaction(published_key(job.name, bucket)) or 0 for bucket in range(spec.buckets)}
    found = _Found()
    with closing(open_log(replace(job, log=spec.reading(job.log)))) as topic:
        bounds = topic.bounds(topic.partitions())
        # After the end of the topic is known: its records are rows of this version, or earlier revisions of them.
        windows.refresh()
        records = sum(bound.end - bound.first for bound in bounds.values())
        rows = sum(file.rows or 0 for file in windows.active_files())
        passes = max(1, -(-max(rows, records) // ROWS_PER_PASS_MAX))
        try:
            for number in range(passes):
                _Pass(spec, windows, topic, bounds, noted, number, passes).compare(found)
        except (NotFoundError, InvariantError) as error:
            return conclude("published", error.primary, True)
        trimmed = topic.compacted(spec.topic) or any(bound.first for bound in bounds.values())
    lost = found.missing if trimmed else 0
    faults = {
        "published rows are not": found.missing - lost,
        "rows are more than once": found.twice,
        "records that are no revision of their row are": found.altered,
    }
    unproven = {
        ("published rows: the topic no longer has all its records", "verify within its retention"): lost,
        ("records: other columns than the table has now", "verify before aggregates change"): found.other_columns,
        ("records of no window in the table: whose they are", "no other writer in this topic"): found.foreign,
    }
    earlier = f"{found.revisions} records are earlier revisions of their rows, which the table no longer has"
    texts = [f"{number} {what} in topic {spec.topic}" for what, number in faults.items() if number]
    return conclude(
        "published",
        "; ".join(texts) or f"{found.once} rows are in topic {spec.topic} once",
        bool(texts),
        unproven=[Unproven(f"{number} {what}", remedy) for (what, remedy), number in unproven.items() if number],
        warnings=[earlier] if found.revisions else [],
        facts={"published": found.once},
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """A share of the series, by the hash of their names."""

    spec: PublishSpec
    windows: Table
    topic: Log
    bounds: Mapping[Partition, Bounds]
    noted: Mapping[int, int]
    """By bucket, the last close whose rows are all published."""
    number: int
    passes: int

    def compare(self, found: _Found) -> None:
        rows = pl.concat([pl.DataFrame(schema=_ROWS), *self._rows()])
        seen, others = [pl.DataFrame(schema={"record": pl.UInt64})], [pl.DataFrame(schema=_OTHERS)]
        for records in self._records():
            seen.append(records.join(rows, on="record", how="semi").select("record"))
            others.append(self._windows_of(records.join(rows, on="record", how="anti")))
        both = rows.join(pl.concat(seen).group_by("record").agg(times=pl.len()), on="record", how="left")
        # A row whose columns were others when it was published cannot be encoded as it was.
        rest = pl.concat(others)
        old = rest.filter("other_columns").join(rows, on="window", how="semi")
        found.once += both.filter(pl.col("times") == 1).height
        found.twice += both.filter(pl.col("times") > 1).height
        found.missing += both.filter("due", pl.col("times").is_null()).join(old, on="window", how="anti").height
        found.other_columns += old.height
        counts = rest.join(old, on=["window", "other_columns"], how="anti").group_by("window").agg(times=pl.len())
        # A row has as many earlier revisions at most; fewer are published if it was corrected before.
        counts = counts.join(rows.group_by("window").agg(pl.col("revision").max()), on="window", how="left")
        surplus = pl.col("times").cast(pl.Int64) - pl.col("revision")
        found.foreign += int(counts.filter(pl.col("revision").is_null())["times"].sum())
        found.altered += int(counts.select(surplus.clip(0).sum()).item())
        found.revisions += int(counts.select(pl.min_horizontal("times", "revision").sum()).item())

    def _rows(self) -> Iterator[pl.DataFrame]:
        """The rows of the table as their records would be now; `due`: they must be in the topic."""
        schema, partition_by = self.windows.schema, self.windows.spec.partition_by
        inside = pa.schema([column for column in schema if column.name not in partition_by])
        for file in self.windows.active_files():
            for batch in read_batches(self.windows.storage(), file.path, inside):
                rows = pa.Table.from_batches([with_partition_columns(batch, partition_by, file.scalars, schema)])
                rows = rows.filter(self._ours(pl.Series(rows["series"]).cast(pl.Binary)).to_arrow())
                encoded = ENCODERS[self.spec.format](rows)
                keys, values = [record.key for record in encoded], [record.value for record in encoded]
                records = pl.DataFrame({"key": keys, "value": values}, schema=_RECORD)
                buckets = pl.Series(rows["bucket"]) % self.spec.buckets
                columns = {
                    "record": records.hash_rows(),
                    "window": _window_hashes(
                        records["key"], pl.Series(rows["interval"]), pl.Series(rows["window_start"]).dt.epoch("s")
                    ),
                    "revision": pl.Series(rows["revision"]),
                    "due": pl.Series(rows["close"])
                    <= buckets.replace_strict(self.noted, default=0, return_dtype=pl.Int64),
                }
                yield pl.DataFrame(columns, schema=_ROWS)

    def _records(self) -> Iterator[pl.DataFrame]:
        for partition, bounds in sorted(self.bounds.items()):
            for batch in self.topic.records(partition, bounds.first, bounds.end):
                records = pl.DataFrame({name: pl.Series(batch.column(name)) for name in _RECORD}, schema=_RECORD)
                records = records.filter(self._ours(records["key"]))
                yield records.with_columns(record=records.hash_rows())

    def _ours(self, keys: pl.Series) -> pl.Series:
        return keys.hash() % self.passes == self.number

    def _windows_of(self, records: pl.DataFrame) -> pl.DataFrame:
        """The windows of records that are no row of the table; those that cannot be read are of none."""
        columns = self.windows.schema
        head = parse_schema(avro_schema(pa.schema([columns.field(name) for name in _HEAD])))
        mark = MARKER + avro_fingerprint(avro_schema(columns)) if self.spec.format == "avro" else b""

        def window_of(value: bytes) -> tuple[str | None, int, bool]:
            try:
                if self.spec.format == "avro":
                    row: Any = schemaless_reader(BytesIO(value[len(mark) :]), head, None)
                    return row["interval"], int(row["window_start"].timestamp()), not value.startswith(mark)
                row = msgspec.json.decode(value)
                if self.spec.format == "opentsdb":
                    return (
                        str(row[0]["interval"]),
                        int(datetime.fromtimestamp(row[0]["timestamp"], UTC).timestamp()),
                        False,
                    )
                start = datetime.fromisoformat(row["window_start"])
                return str(row["interval"]), int(start.timestamp()), list(row) != columns.names
            except (ValueError, TypeError, AttributeError, LookupError, EOFError, OverflowError, OSError):
                return None, 0, False

        read = [window_of(value or b"") for value in records["value"]]
        intervals, starts, others = zip(*read, strict=True) if read else ((), (), ())
        hashes = _window_hashes(
            records["key"], pl.Series(intervals, dtype=pl.String), pl.Series(starts, dtype=pl.Int64)
        )
        return pl.DataFrame({"window": hashes, "other_columns": others}, schema=_OTHERS)


def _window_hashes(keys: pl.Series, intervals: pl.Series, starts: pl.Series) -> pl.Series:
    return pl.DataFrame({"key": keys, "interval": intervals, "start": starts}).hash_rows()
