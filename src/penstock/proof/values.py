"""`verify --values`: records of the log are decoded again with the job's own flow and joined with the rows on places.

A sample by default, drawn with a seed and stated; on request every record that the log still has. Rows are compared by
64-bit hashes of their columns, which are equal by accident once in 2^64.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa

from penstock.flow.columns.fitting import fit_columns
from penstock.flow.write.offset_ranges import Ranges
from penstock.flow.write.quarantine import QUARANTINE_SCHEMA
from penstock.lake.maintenance.merge import batch_rows
from penstock.logs.log import Bounds, Log, Partition, Slice, SliceShrankError
from penstock.proof.files import DataFile, RowSource, extent, open_file, place_frame
from penstock.proof.findings import Check, Unproven, Violation, ViolationKind, conclude, earliest, violation_at
from penstock.proof.subject import Depth, NoPartition, Rewrite, Sample, Subject

OFFSETS_PER_PASS_MAX = 250_000
"""About 16 bytes for each offset and column."""
BLOCK_RECORDS = 250
"""A sample is made of blocks of neighbouring records: each costs a consumer of its own."""
RAW = pa.schema([QUARANTINE_SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")])
"""What of a quarantined record must be as it is in the log."""

Wanted = Mapping[Partition, Ranges]


@cache
def _null_hash() -> int:
    """The hash of a text that is null; at first use, because Polars starts threads with its first call."""
    return int(pl.Series([None], dtype=pl.String).hash(7)[0])


def column_hashes(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """A hash per value as `=<column>`: the same for the same value wherever it is, good within one process."""
    names = rows.schema.names
    return pl.DataFrame([pl.Series(pl.from_arrow(rows.column(name))).hash(7).alias(f"={name}") for name in names])


@dataclass(slots=True)
class _Compared:
    violations: list[Violation] = field(default_factory=list)
    altered: int = 0
    records: int = 0
    """Of the log."""
    rows: int = 0
    unplaced: int = 0
    """Rows of the table without a place of one incarnation of their topic; every pass meets them again."""
    shrunk: set[Partition] = field(default_factory=set)
    """Partitions of which the log lost records while they were read."""

    def join(
        self, partition: Partition, rows: pl.DataFrame, records: list[pl.DataFrame], exact: bool, every: bool
    ) -> None:
        """Compare rows with what records give; a column that a file lacks is younger than its rows."""
        given = pl.concat(records, how="diagonal").with_columns(given=True)
        joined = rows.with_columns(row=True).join(given, on="offset", how="full", suffix="_log", coalesce=True)
        common = [name for name in rows.columns if f"{name}_log" in joined.columns]
        differs = pl.any_horizontal(pl.lit(False), *(pl.col(name) != pl.col(f"{name}_log") for name in common))
        unlike = pl.when("given").then(differs.fill_null(False)).otherwise(pl.lit(exact))
        self._note(partition, joined.filter(pl.col("row") & unlike)["offset"], ViolationKind.ALTERED)
        self.rows += joined.filter("row", "given").height
        if every:
            self._note(partition, joined.filter(pl.col("row").is_null())["offset"], ViolationKind.MISSING)

    def _note(self, partition: Partition, offsets: pl.Series, kind: ViolationKind) -> None:
        if len(offsets):
            self.altered += len(offsets)
            self.violations.append(violation_at(partition, int(offsets.to_numpy().min()), kind))


def check_values(subject: Subject, depth: Depth, log: Log, bounds: Mapping[Partition, Bounds]) -> Check:
    """Whether rows are what their records give, and quarantined records what they are in the log."""
    sample, rewrite = depth.values or Sample(), subject.rewrite
    if any(source.place is None for source in subject.sources):
        what = "the values: rows do not carry their partition and offset, so no record can be found for them"
        rewrite = Unproven(what, subject.place_remedy)
    if isinstance(rewrite, Unproven):
        return conclude("values", "not compared", False, unproven=[rewrite], partitions=bounds)
    ranges, left = _comparable(subject, bounds)
    total = sum(hi - lo for lo, hi in ranges.values())
    compared = _Compared()
    try:
        for wanted in _passes(ranges, sample):
            _compare(subject, rewrite, log, wanted, compared)
            depth.tell("values", compared.records, total if sample.records is None else sample.records)
    except (pa.ArrowException, OSError) as error:
        return conclude("values", f"rows cannot be read or decoded: {error}", True, partitions=ranges)
    if compared.unplaced:
        what = f"the values of {compared.unplaced} rows that tell no place of one incarnation of their topic"
        left.append(Unproven(what, "verify between recreating a topic and the next compaction"))
    if compared.shrunk:
        what = "the values of rows whose records retention took while they were read"
        left.append(Unproven(what, "verify again", frozenset(compared.shrunk)))
    first = earliest(compared.violations)
    share = "all" if sample.records is None else f"a sample of {compared.records} (seed {sample.seed}) out of"
    equal = f"{share} {total} offsets of the log: {compared.rows} rows are what their records give"
    # A sample proves what it says of itself; what the log no longer has is open only if all was asked for.
    asked = sample.records is None or not compared.records
    return conclude(
        "values",
        equal if first is None else f"{first}; {compared.altered} in all",
        first is not None,
        violations=compared.violations,
        unproven=left if asked else [],
        warnings=[] if asked else [f"not compared: {question.what}" for question in left],
        facts={"compared": compared.records, "of_offsets": total, "seed": sample.seed},
        partitions=ranges,
    )


def _comparable(
    subject: Subject, bounds: Mapping[Partition, Bounds]
) -> tuple[dict[Partition, tuple[int, int]], list[Unproven]]:
    """The offsets of each partition that the log still has, and why others cannot be compared."""
    ranges: dict[Partition, tuple[int, int]] = {}
    left: list[Unproven] = []
    for partition, spans in sorted(subject.spans.items()):
        if not spans or spans[0].lo == spans[-1].hi:
            continue
        held = bounds.get(partition)
        lo, hi = (spans[-1].hi, 0) if held is None else (max(spans[0].lo, held.first), min(spans[-1].hi, held.end))
        if lo < hi:
            ranges[partition] = (lo, hi)
        if lo > spans[0].read_from:
            what = f"the values of rows below offset {lo}: the log no longer has their records"
            left.append(Unproven(what, "compare values within the topic's retention", frozenset({partition})))
    return ranges, left


def _passes(ranges: Mapping[Partition, tuple[int, int]], sample: Sample) -> Iterator[Wanted]:
    if sample.records is not None:
        yield sampled(ranges, sample)
        return
    count = max(1, -(-sum(hi - lo for lo, hi in ranges.values()) // OFFSETS_PER_PASS_MAX))
    for number in range(count):
        yield {
            partition: ((lo + (hi - lo) * number // count, lo + (hi - lo) * (number + 1) // count),)
            for partition, (lo, hi) in ranges.items()
        }


def sampled(ranges: Mapping[Partition, tuple[int, int]], sample: Sample) -> dict[Partition, Ranges]:
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


def _compare(subject: Subject, rewrite: Rewrite, log: Log, wanted: Wanted, compared: _Compared) -> None:
    table, compared.unplaced = _rows(subject, subject.sources, wanted)
    quarantine, _ = _rows(subject, [subject.quarantine.source], wanted)
    for partition, ranges in sorted(wanted.items()):
        bad, exact = quarantine[partition], log.compacted(partition.topic) is False
        raw, again = [bad.clear()], [table[partition].clear()]
        try:
            for lo, hi in ranges:
                places = (bad["offset"], table[partition]["offset"])
                good = _good_records(log, Slice(partition, lo, hi, lo), *places, raw, compared)
                with TemporaryDirectory(prefix="penstock-verify-", ignore_cleanup_errors=True) as folder:
                    sources = list(rewrite(Slice(partition, lo, hi, lo), good, Path(folder)))
                    again.append(_rows(subject, sources, {partition: ranges})[0][partition])
        except SliceShrankError:
            compared.shrunk.add(partition)
            continue
        compared.join(
            partition, table[partition], again, exact, subject.every_record_has_a_row and not compared.unplaced
        )
        compared.join(partition, bad, raw, exact, every=False)


def _good_records(
    log: Log, piece: Slice, bad: pl.Series, rows: pl.Series, raw: list[pl.DataFrame], compared: _Compared
) -> Iterator[pa.RecordBatch]:
    """The records that are not only in quarantine; `raw` collects the hashes of those that are there.

    A type that was added later may have rows of records that had been quarantined.
    """
    for batch in log.records(piece.partition, piece.start, piece.end):
        compared.records += batch.num_rows
        offsets = pl.Series(pl.from_arrow(batch.column("offset")))
        is_bad = offsets.is_in(bad.implode())
        if is_bad.any():
            fitted = fit_columns(batch.select([name for name in RAW.names if name in batch.schema.names]), RAW)
            raw.append(column_hashes(fitted).with_columns(offset=offsets).filter(is_bad))
            batch = batch.filter((~is_bad | offsets.is_in(rows.implode())).to_arrow())
        if batch.num_rows:
            yield batch


def _rows(subject: Subject, sources: Sequence[RowSource], wanted: Wanted) -> tuple[dict[Partition, pl.DataFrame], int]:
    """The hashes of the rows at wanted places by partition, and how many rows without a place were met."""
    frames = {partition: [pl.DataFrame(schema={"offset": pl.Int64})] for partition in wanted}
    unplaced = 0
    for source in sources:
        for file, places, hashes in (batch for each in source.files for batch in _read(source, each, wanted)):
            for partition, rows in subject.rows_by_partition(file, places.with_row_index("row")):
                if isinstance(partition, Partition) and partition in wanted:
                    parts = wanted[partition]
                    inside = rows.filter(pl.any_horizontal(pl.col("offset").is_between(lo, hi - 1) for lo, hi in parts))
                    frames[partition].append(hashes[inside["row"]].with_columns(inside["offset"]))
                unplaced += len(rows) if partition is NoPartition.NO_PLACE else 0
    return {partition: pl.concat(parts, how="diagonal") for partition, parts in frames.items()}, unplaced


def _read(source: RowSource, file: DataFile, wanted: Wanted) -> Iterator[tuple[DataFile, pl.DataFrame, pl.DataFrame]]:
    """The places and the hashes of rows, of row groups that may hold wanted offsets."""
    place = source.place
    if place is None:
        return
    parquet = open_file(source, file)
    schema = pa.schema([column for column in source.schema if column.name in set(parquet.schema_arrow.names)])
    common = {**file.partition_values, "": source.name}
    constants = [pl.lit(value, pl.String).hash(7).alias(f"={name}") for name, value in common.items()]
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        span = extent(parquet.metadata, place.offset, [number])
        if span and not any(lo <= span[1] and span[0] < hi for ranges in wanted.values() for lo, hi in ranges):
            continue
        for batch in parquet.iter_batches(batch_rows(group), row_groups=[number], columns=schema.names):
            fitted = fit_columns(batch, schema)
            places = place_frame(fitted, place, file)
            hashes = column_hashes(fitted).with_columns(constants)
            if place.topic is not None and (topic := f"={place.topic}") in hashes.columns:
                # Rows from before the column was kept do not tell their topic.
                hashes = hashes.with_columns(pl.when(pl.col(topic) != _null_hash()).then(pl.col(topic)))
            yield file, places, hashes
