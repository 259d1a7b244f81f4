"""Closed windows against the topic that they are published to: each row once, and nothing else of the job.

Rows are encoded once more and joined with the committed records on key and value. What is left of a series are earlier
revisions of its rows, at most as many as the rows state, or records of other writers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.table import Table
from penstock.logs.log import Bounds, Log, Partition
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Check, Unproven
from penstock.publish.formats import ENCODERS
from penstock.publish.spec import PublishSpec
from penstock.storage import NotFoundError
from penstock.tables.rollup.files import read_batches, with_partition_columns
from penstock.tables.rollup.numbers import PUBLISHED, number_of
from penstock.tables.rollup.spec import RollupSpec

ROWS_PER_PASS_MAX = 4_000_000
_RECORD = {"key": pl.Binary, "value": pl.Binary}
_HASHES = {"record": pl.UInt64, "series": pl.UInt64}
_ROWS = {**_HASHES, "revision": pl.Int32, "due": pl.Boolean, "old": pl.Boolean}


def check_published(job: JobSpec[RollupSpec], spec: PublishSpec, windows: Table, open_log: OpenLog) -> Check:
    """Compare table and topic, in passes over the series so that memory is bounded."""
    noted = {bucket: number_of(windows, PUBLISHED, bucket) for bucket in range(spec.buckets)}
    counts: Counter[str] = Counter()
    with closing(open_log(replace(job, log=spec.reading(job.log)))) as topic:
        bounds = topic.bounds(topic.partitions())
        # After the end of the topic is known: its records are rows of this version, or earlier revisions of them.
        windows.refresh()
        records = sum(bound.end - bound.first for bound in bounds.values())
        passes = max(1, -(-max(sum(file.rows or 0 for file in windows.active_files()), records) // ROWS_PER_PASS_MAX))
        try:
            for number in range(passes):
                counts.update(_Pass(spec, windows, topic, bounds, number, passes).compare(noted))
        except (NotFoundError, InvariantError) as error:
            return Check("published", error.primary, True)
        trimmed = topic.compacted(spec.topic) or any(bound.first for bound in bounds.values())
    lost = counts["missing"] if trimmed else 0
    faults = {
        "published rows are not": counts["missing"] - lost,
        "rows are more than once": counts["twice"],
        "records that are no revision of a row of their series are": counts["surplus"],
    }
    unproven = {
        ("published rows: the topic no longer has all its records", "verify within its retention"): lost,
        ("published rows: a column was added since", "verify before aggregates change"): counts["old"],
        ("records of no window in the table: whose they are", "no other writer in this topic"): counts["foreign"],
    }
    earlier = f"{counts['revisions']} records are earlier revisions of rows, which the table no longer has"
    texts = [f"{number} {what} in topic {spec.topic}" for what, number in faults.items() if number]
    return Check(
        "published",
        "; ".join(texts) or f"{counts['once']} rows are in topic {spec.topic} once",
        bool(texts),
        unproven=[Unproven(f"{number} {what}", remedy) for (what, remedy), number in unproven.items() if number],
        warnings=[earlier] if counts["revisions"] else [],
        facts={"published": counts["once"]},
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """A share of the series, by the hash of their names."""

    spec: PublishSpec
    windows: Table
    topic: Log
    bounds: Mapping[Partition, Bounds]
    number: int
    passes: int

    def compare(self, noted: Mapping[int, int]) -> dict[str, int]:
        """Rows and records by what became of them; `noted`: by bucket, the last close whose rows are all published."""
        rows, records = pl.concat([*self._rows(noted)]), pl.concat([*self._records()])
        both = rows.join(records.group_by("record").agg(times=pl.len()), on="record", how="left")
        missing = both.filter("due", pl.col("times").is_null())
        # Of its own rows a series has as many earlier revisions at most; fewer, if they were corrected before.
        known = rows.group_by("series").agg(pl.col("revision").sum().cast(pl.Int64))
        old = missing.filter("old").group_by("series").agg(old=pl.len().cast(pl.Int64))
        left = records.join(rows, on="record", how="anti").group_by("series").agg(left=pl.len().cast(pl.Int64))
        left = left.join(known, on="series", how="left").join(old, on="series", how="left")
        others = left.drop_nulls("revision").select("revision", left=pl.col("left") - pl.col("old").fill_null(0))
        return {
            "once": both.filter(pl.col("times") == 1).height,
            "twice": both.filter(pl.col("times") > 1).height,
            "missing": missing.filter(~pl.col("old")).height,
            "old": missing.filter("old").height,
            "foreign": int(left.filter(pl.col("revision").is_null())["left"].sum()),
            "surplus": int(others.select((pl.col("left") - pl.col("revision")).clip(0).sum()).item()),
            "revisions": int(others.select(pl.min_horizontal("left", "revision").clip(0).sum()).item()),
        }

    def _rows(self, noted: Mapping[int, int]) -> Iterator[pl.DataFrame]:
        """The rows of the table as their records would be now.

        `due`: they must be in the topic. `old`: a column may be younger than their record.
        """
        schema, partition_by = self.windows.schema, self.windows.spec.partition_by
        inside = pa.schema([column for column in schema if column.name not in partition_by])
        yield pl.DataFrame(schema=_ROWS)
        for file in self.windows.active_files():
            for batch in read_batches(self.windows.storage(), file.path, inside):
                rows = pa.Table.from_batches([with_partition_columns(batch, partition_by, file.scalars, schema)])
                rows = rows.filter(self._ours(pl.Series(rows["series"]).cast(pl.Binary)).to_arrow())
                encoded = ENCODERS[self.spec.format](rows)
                pairs = {"key": [record.key for record in encoded], "value": [record.value for record in encoded]}
                bucket = pl.Series(rows["bucket"]) % self.spec.buckets
                last = bucket.replace_strict(noted, default=0, return_dtype=pl.Int64)
                nulls = pl.DataFrame(pl.from_arrow(rows.drop_columns(["tags"]))).select(pl.all().is_null())
                yield _hashed(pl.DataFrame(pairs, schema=_RECORD)).with_columns(
                    pl.Series(rows["revision"]).alias("revision"),
                    (pl.Series(rows["close"]) <= last).alias("due"),
                    nulls.max_horizontal().cast(pl.Boolean).alias("old"),
                )

    def _records(self) -> Iterator[pl.DataFrame]:
        yield pl.DataFrame(schema=_HASHES)
        for partition, bounds in sorted(self.bounds.items()):
            for batch in self.topic.records(partition, bounds.first, bounds.end):
                records = pl.DataFrame({name: pl.Series(batch.column(name)) for name in _RECORD}, schema=_RECORD)
                yield _hashed(records.filter(self._ours(records["key"])))

    def _ours(self, keys: pl.Series) -> pl.Series:
        return keys.hash() % self.passes == self.number


def _hashed(records: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"record": records.hash_rows(), "series": records["key"].hash()})
