"""`verify --values`: records of the log are decoded again with the job's own flow and compared with the table.

A sample by default, drawn with a seed and stated; on request every record that the log still has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.flow.write.offset_ranges import Ranges
from penstock.logs.log import Partition
from penstock.proof.findings import Check, Unproven, conclude, earliest
from penstock.proof.subject import Sample
from penstock.tables.export.old_proof.invariants import KEEP_PLACES, Span
from penstock.tables.export.old_proof.offsets.owners import OriginColumns
from penstock.tables.export.old_proof.offsets.scan_passes import passes
from penstock.tables.export.old_proof.values.rows import Compared, ValueSources, compare_places, quarantined_rows
from penstock.tables.export.old_proof.values.slices import Unit, compare_unit, cut_by_slice

OFFSETS_PER_PASS_MAX = 1_000_000
"""About 64 bytes each: offset, digest and columns of the row, offset and digest of the record."""
BLOCK_RECORDS = 250
"""A sample is made of blocks of neighbouring records: each costs a consumer of its own."""

Extents = Mapping[Partition, tuple[int, int]]
"""Per partition, the offsets `[lo, hi)` that can be compared."""


def check_values(sources: ValueSources) -> Check:
    """Whether rows are what their records give, and quarantined records what they are in the log."""
    sample = sources.sample
    ranges, open_questions = _comparable(sources)
    compared = Compared()
    try:
        if sources.held.columns is None:
            open_questions += _compare_slices(sources, ranges, compared)
        else:
            _compare_places(sources, sources.held.columns, ranges, compared)
    except (pa.ArrowException, OSError) as error:
        return conclude("values", f"rows cannot be read or decoded: {error}", True, partitions=ranges)
    if compared.unplaced:
        what = f"the values of {compared.unplaced} rows that tell no partition and offset of one life of a topic"
        remedy = f"{KEEP_PLACES}; verify between recreating a topic and the next compaction"
        open_questions.append(Unproven(what, remedy))
    if compared.gone:
        what = "the values of rows whose records retention took while they were read"
        open_questions.append(Unproven(what, "verify again", frozenset(compared.gone)))
    total = sum(hi - lo for lo, hi in ranges.values())
    first = earliest(compared.violations)
    share = "all" if sample.records is None else f"a sample of {compared.records} (seed {sample.seed}) out of"
    equal = f"{share} {total} offsets of the log: {compared.rows} rows are what their records give"
    detail = equal if first is None else f"{first}; {compared.altered} in all"
    # A sample proves what it says of itself; what the log no longer has is only then a question if all was asked for.
    left = open_questions if sample.records is None or not compared.records else []
    return conclude(
        "values",
        detail,
        first is not None,
        violations=compared.violations,
        unproven=left,
        warnings=[] if left else [f"not compared: {each.what}" for each in open_questions],
        facts={"compared": compared.records, "of_offsets": total, "seed": sample.seed},
        partitions=ranges,
    )


def _comparable(sources: ValueSources) -> tuple[dict[Partition, tuple[int, int]], list[Unproven]]:
    """The offsets of each partition that the log still has, and why others cannot be compared."""
    ranges: dict[Partition, tuple[int, int]] = {}
    found: list[Unproven] = []
    for partition, spans in sorted(sources.subject.spans.items()):
        if not spans or spans[0].lo == spans[-1].hi:
            continue
        bounds = sources.bounds.get(partition)
        if bounds is None:
            what = f"the values of rows from an earlier life of the topic ({partition.topic_id}): their log is gone"
            found.append(Unproven(what, "compare values before a topic is deleted", frozenset({partition})))
            continue
        leave = sources.subject.leaves.get(partition)
        below = (leave.twice_below if leave else None) or 0
        lo, hi = max(spans[0].lo, bounds.first, below), min(spans[-1].hi, bounds.end)
        if lo < hi:
            ranges[partition] = (lo, hi)
        if lo > spans[0].read_from:
            what = f"the values of rows below offset {lo}: the log no longer has their records"
            found.append(Unproven(what, "compare values within the topic's retention", frozenset({partition})))
    return ranges, found


def _compare_places(sources: ValueSources, columns: OriginColumns, ranges: Extents, compared: Compared) -> None:
    if sources.sample.records is not None:
        compare_places(sources, columns, sampled(ranges, sources.sample), compared)
        return
    for parts in passes(ranges, OFFSETS_PER_PASS_MAX):
        compare_places(sources, columns, {each: ((part.lo, part.hi),) for each, part in parts.items()}, compared)


def sampled(ranges: Extents, sample: Sample) -> dict[Partition, Ranges]:
    """Blocks of offsets drawn over all partitions, in proportion to what they hold."""
    blocks = [
        (partition, start, min(hi, start + BLOCK_RECORDS))
        for partition, (lo, hi) in sorted(ranges.items())
        for start in range(lo, hi, BLOCK_RECORDS)
    ]
    count = min(len(blocks), max(1, (sample.records or 0) // BLOCK_RECORDS))
    chosen = random.Random(sample.seed).sample(blocks, count)
    found: dict[Partition, list[tuple[int, int]]] = {}
    for partition, lo, hi in sorted(chosen):
        found.setdefault(partition, []).append((lo, hi))
    return {each: tuple(bounds) for each, bounds in found.items()}


def _compare_slices(sources: ValueSources, ranges: Extents, compared: Compared) -> list[Unproven]:
    sample = sources.sample
    cut = cut_by_slice(sources.rows.files, _spans_within(sources, ranges), sources.subject.replayed)
    quarantined = quarantined_rows(sources, {each: (bounds,) for each, bounds in ranges.items()})
    for unit in _chosen(cut.slices, sample):
        compare_unit(sources, unit, quarantined, compared)
    if sample.records is not None or not (cut.rest.files or cut.rest.places):
        return []
    whole = all(
        each in ranges and ranges[each] == (spans[0].read_from, spans[-1].hi)
        for each, spans in sources.subject.spans.items()
        if spans and spans[0].lo < spans[-1].hi
    )
    if cut.rest_is_mixed and (not whole or sources.subject.incarnations.others):
        what = f"the values of rows in {len(cut.rest.files)} compacted or replayed files"
        why = "not all of their records are in the log"
        return [Unproven(f"{what}: {why}", f"{KEEP_PLACES}, or compare values before compacting")]
    compare_unit(sources, cut.rest, quarantined, compared)
    return []


def _chosen(units: Sequence[Unit], sample: Sample) -> Sequence[Unit]:
    if sample.records is None:
        return units
    chosen: list[Unit] = []
    for unit in random.Random(sample.seed).sample(units, len(units)):
        if sum(each.offsets for each in chosen) >= sample.records:
            break
        chosen.append(unit)
    return chosen


def _spans_within(sources: ValueSources, ranges: Extents) -> list[tuple[Partition, Span]]:
    """The spans that the log still has as a whole."""
    return [
        (partition, span)
        for partition, (lo, hi) in ranges.items()
        for span in sources.subject.spans[partition]
        if lo <= span.read_from and span.hi <= hi
    ]
