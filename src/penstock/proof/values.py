"""`verify --values`: records of the log are decoded again with the job's own flow and joined with the rows on places.

A sample by default, drawn with a seed and stated; on request every record that the log still has. Rows are compared by
64-bit hashes of their columns, which are equal by accident once in 2^64.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.manifest import Ranges
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.logs.log import Bounds, Log, Partition, Slice
from penstock.proof.findings import Check, Unproven, Violation, ViolationKind, earliest, violation_at
from penstock.proof.subject import (
    PLACE_REMEDY,
    DataFile,
    Depth,
    NoPartition,
    OffsetRanges,
    Rewrite,
    RowSource,
    Sample,
    Subject,
    staged_files,
    windows_of,
)
from penstock.storage import open_storage

OFFSETS_PER_PASS_MAX = 250_000
"""About 16 bytes for each offset and column."""
BLOCK_RECORDS = 250
"""A sample is made of blocks of neighbouring records: each costs a consumer of its own."""
RAW = pa.schema([QUARANTINE_SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")])
"""The fields of a quarantined record that must be as in the log."""

PlaceRanges = Mapping[Partition, Ranges]


def column_hashes(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """A hash per value as `=<column>`: the same for the same value wherever it is, good within one process."""
    names = rows.schema.names
    return pl.DataFrame([pl.Series(pl.from_arrow(rows.column(name))).hash(7).alias(f"={name}") for name in names])


def check_values(subject: Subject, depth: Depth, log: Log, bounds: Mapping[Partition, Bounds]) -> Check:
    """Whether rows are what their records give, and quarantined records what they are in the log."""
    sample, rewrite = depth.values or Sample(), subject.rewrite
    if any(source.place is None for source in subject.sources):
        what = "the values: rows do not carry their partition and offset, so no record can be found for them"
        rewrite = Unproven(what, PLACE_REMEDY)
    if isinstance(rewrite, Unproven):
        return Check("values", "not compared", False, unproven=[rewrite])
    ranges: dict[Partition, tuple[int, int]] = {}
    unproven: list[Unproven] = []
    for partition, (origin, position) in subject.ranges.items():
        retained = bounds.get(partition, Bounds(position, position))
        lo, hi = max(origin, retained.first), min(position, retained.end)
        if lo < hi:
            ranges[partition] = (lo, hi)
        if origin < position and lo > subject.spans[partition][0].read_from:
            what = f"{partition}: the values of rows below offset {lo}: the log no longer has their records"
            unproven.append(Unproven(what, "compare values within the topic's retention"))
    total = sum(hi - lo for lo, hi in ranges.values())
    join = ValueJoin(subject, rewrite, log)
    passes: Iterable[PlaceRanges] = [sampled(ranges, sample)]
    if sample.records is None:
        windows = windows_of(ranges, OFFSETS_PER_PASS_MAX)
        passes = ({partition: (offsets,) for partition, offsets in window.items()} for window in windows)
    try:
        for sample_ranges in passes:
            join.compare(sample_ranges)
            depth.report("values", join.records, total if sample.records is None else sample.records)
    except (pa.ArrowException, OSError) as error:
        return Check("values", f"rows cannot be read or decoded: {error}", True)
    if join.unplaced:
        what = f"the values of {join.unplaced} rows without a place in one incarnation of their topic"
        unproven.append(Unproven(what, "verify between recreating a topic and the next compaction"))
    first = earliest(join.violations)
    share = "all" if sample.records is None else f"a sample of {join.records} (seed {sample.seed}) out of"
    equal = f"{share} {total} offsets of the log: {join.rows} rows are what their records give"
    # A sample proves only what it compared; what the log no longer has is not proven if all was requested.
    all_requested = sample.records is None or not join.records
    return Check(
        "values",
        equal if first is None else f"{first}; {join.altered} in all",
        first is not None,
        violation=first,
        unproven=unproven if all_requested else [],
        warnings=[] if all_requested else [f"not compared: {question.what}" for question in unproven],
        facts={"compared": join.records, "of_offsets": total, "seed": sample.seed},
    )


def sampled(ranges: OffsetRanges, sample: Sample) -> dict[Partition, Ranges]:
    """Blocks of offsets drawn over all partitions, in proportion to what they hold."""
    blocks = [
        (partition, start, min(hi, start + BLOCK_RECORDS))
        for partition, (lo, hi) in sorted(ranges.items())
        for start in range(lo, hi, BLOCK_RECORDS)
    ]
    count = min(len(blocks), max(1, (sample.records or 0) // BLOCK_RECORDS))
    drawn: dict[Partition, list[tuple[int, int]]] = {}
    for partition, lo, hi in sorted(random.Random(sample.seed).sample(blocks, count)):
        drawn.setdefault(partition, []).append((lo, hi))
    return {partition: tuple(blocks) for partition, blocks in drawn.items()}


@dataclass(slots=True)
class ValueJoin:
    """Joins rows with what their records give, on places."""

    subject: Subject
    rewrite: Rewrite
    log: Log
    violations: list[Violation] = field(default_factory=list)
    altered: int = 0
    records: int = 0
    """Of the log."""
    rows: int = 0
    unplaced: int = 0
    """Rows of the table without a place of one incarnation of their topic; every pass meets them again."""

    def compare(self, places: PlaceRanges) -> None:
        """Compare the rows at these offsets."""
        table, self.unplaced = self._read(self.subject.sources, places)
        quarantine, _ = self._read([self.subject.quarantine], places)
        every = self.subject.every_record_has_a_row and not self.unplaced
        for partition, ranges in sorted(places.items()):
            rows, bad = table[partition], quarantine[partition]
            raw, again = [bad.clear()], [rows.clear()]
            for lo, hi in ranges:
                piece = Slice(partition, lo, hi, lo)
                good = self._good_records(piece, bad["offset"], rows["offset"], raw)
                with TemporaryDirectory(prefix="penstock-verify-", ignore_cleanup_errors=True) as folder:
                    sources = self._rewritten(piece, good, Path(folder))
                    again.append(self._read(sources, {partition: ranges})[0][partition])
            self._join(partition, rows, pl.concat(again, how="diagonal"), every)
            self._join(partition, bad, pl.concat(raw, how="diagonal"), every=False)

    def _rewritten(self, piece: Slice, records: Iterable[pa.RecordBatch], folder: Path) -> list[RowSource]:
        """The rows that the job would write for these records."""
        url = str(folder / "rows")
        files: dict[str, list[DataFile]] = {}
        for name, file in staged_files(self.rewrite(piece, url, str(folder / "bad")), records):
            files.setdefault(name, []).append(DataFile(file.path, file.rows, partition_values=file.partition_values))
        storage = open_storage(url, {})
        return [replace(source, storage=storage, files=files.get(source.name, ())) for source in self.subject.sources]

    def _good_records(
        self, piece: Slice, bad: pl.Series, rows: pl.Series, raw: list[pl.DataFrame]
    ) -> Iterator[pa.RecordBatch]:
        """The records that are not only in quarantine; `raw` collects the hashes of those that are there."""
        for batch in self.log.records(piece.partition, piece.start, piece.end):
            self.records += batch.num_rows
            offsets = pl.Series(pl.from_arrow(batch.column("offset")))
            is_bad = offsets.is_in(bad.implode())
            if is_bad.any():
                fitted = fit_columns(batch.select([name for name in RAW.names if name in batch.schema.names]), RAW)
                raw.append(column_hashes(fitted).with_columns(offset=offsets).filter(is_bad))
                batch = batch.filter((~is_bad | offsets.is_in(rows.implode())).to_arrow())
            if batch.num_rows:
                yield batch

    def _join(self, partition: Partition, rows: pl.DataFrame, given: pl.DataFrame, every: bool) -> None:
        """Compare rows with what records give; a column that a file lacks is younger than its rows."""
        given = given.with_columns(given=True)
        joined = rows.with_columns(row=True).join(given, on="offset", how="full", suffix="_log", coalesce=True)
        common = [name for name in rows.columns if f"{name}_log" in joined.columns]
        differs = pl.any_horizontal(pl.lit(False), *(pl.col(name) != pl.col(f"{name}_log") for name in common))
        exact = self.log.compacted(partition.topic) is False
        unlike = pl.when("given").then(differs.fill_null(False)).otherwise(pl.lit(exact))
        self.rows += joined.filter("row", "given").height
        for kind, wrong in (
            (ViolationKind.ALTERED, pl.col("row") & unlike),
            (ViolationKind.MISSING, pl.col("row").is_null() & pl.lit(every)),
        ):
            offsets = joined.filter(wrong)["offset"]
            if len(offsets):
                self.altered += len(offsets)
                self.violations.append(violation_at(partition, int(offsets.to_numpy().min()), kind))

    def _read(self, sources: Iterable[RowSource], places: PlaceRanges) -> tuple[dict[Partition, pl.DataFrame], int]:
        """The hashes of the rows at these places by partition, and how many rows without a place were read."""
        frames = {partition: [pl.DataFrame(schema={"offset": pl.Int64})] for partition in places}
        unplaced = 0
        offsets = tuple(span for ranges in places.values() for span in ranges)
        files = [(source, file) for source in sources for file in source.files]
        for source, file in files:
            for batch, placed in self.subject.placed_rows(source, file, source.schema.names, offsets):
                hashes = _row_hashes(source, file, batch)
                for partition, rows in placed:
                    if isinstance(partition, Partition) and partition in places:
                        inside = (pl.col("offset").is_between(lo, hi - 1) for lo, hi in places[partition])
                        rows = rows.filter(pl.any_horizontal(inside))
                        frames[partition].append(hashes[rows["row"]].with_columns(rows["offset"]))
                    unplaced += len(rows) if partition is NoPartition.NO_PLACE else 0
        return {partition: pl.concat(parts, how="diagonal") for partition, parts in frames.items()}, unplaced


def _row_hashes(source: RowSource, file: DataFile, batch: pa.RecordBatch) -> pl.DataFrame:
    """Of the columns that the file has but for the topic, by which they are placed, partition values, and the type."""
    names = {*batch.schema.names} - {(source.place or {}).get("topic")}
    schema = pa.schema([column for column in source.schema if column.name in names])
    constants = {**file.partition_values, "": source.name}
    return column_hashes(fit_columns(batch.select(schema.names), schema)).with_columns(
        pl.lit(value, pl.String).hash(7).alias(f"={name}") for name, value in constants.items()
    )
