"""The log once more: the newest record of each key that it still has, joined with the row that the table has.

A row may not be older than that record, and has its values if it is of that record. A row that is newer, or whose key
has no record, has to be of a load or of a record that the log has lost: its place in the log tells. What cannot be told
is counted by its reason.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.report import decode_report
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.proof.findings import VALUES_OF_SQL, Check, Unproven, ViolationKind, conclude, violation_at
from penstock.proof.log import UNKNOWN_TOPIC, LogFacts
from penstock.proof.subject import Subject
from penstock.proof.values import column_hashes
from penstock.status.model import RecordedGap
from penstock.tables.keyed.files import chunk_store, files_by_bucket
from penstock.tables.keyed.generations import Transactions, generations_of
from penstock.tables.keyed.layout import (
    HIDDEN,
    OFFSET_BITS,
    SEQUENCES,
    Layout,
    key_frame,
    log_order,
    newer,
    older,
    order_columns,
    order_frame,
    sequences,
    tiebreaks,
)
from penstock.tables.keyed.loading.load import loads_key, overwritten_key
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.merging.fold import fold, merged_rows, newest_rows
from penstock.tables.keyed.merging.merge import read_incoming
from penstock.tables.keyed.merging.runs import KeyedFlow, RunPart, parts_by_bucket
from penstock.tables.keyed.merging.tombstones import newest
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.table import told_by_key, tombstone_policy
from penstock.tables.single.facts import TableFacts, recorded_gaps


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verification has read of a job; the tombstones after the table."""

    subject: Subject
    facts: TableFacts
    spec: KeyedSpec
    tombstones: Table | None


KNOWN, LOST, LOADED = "known", "lost", "loaded"
_RANGES = {"tiebreak": pl.Int64, "start": pl.Int64, "end": pl.Int64, "lost": pl.Boolean}


@dataclass(frozen=True, slots=True)
class Places:
    """The offsets that the table has read, and which of them the log still has."""

    slices: tuple[Slice, ...]
    """Those to read again."""
    ranges: pl.DataFrame
    """By tiebreak the sequences `[start, end)`, and whether records of them are lost."""
    unknown: bool
    """Whether rows may be of other jobs, or of topics whose names are forgotten: then no place tells anything."""

    @property
    def any_lost(self) -> bool:
        return self.unknown or bool(self.ranges["lost"].any())

    def placed(self, layout: Layout, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with their `origin`: `KNOWN` if the log has the record at their place, or never had one."""
        sequence, tiebreak = order_columns(layout)[-2:]
        ranges = self.ranges.rename({"tiebreak": tiebreak, "start": sequence})
        at = rows.sort(sequence).join_asof(ranges, on=sequence, by=tiebreak, check_sortedness=False)
        lost = (pl.col("lost") & (pl.col(sequence) < pl.col("end"))).fill_null(False) | self.unknown
        origin = pl.when(pl.col(sequence) < 0).then(pl.lit(LOADED)).when(lost).then(pl.lit(LOST))
        return at.select(*rows.columns, origin.otherwise(pl.lit(KNOWN)).alias("origin"))

    def exposed(self, layout: Layout, loads: bool) -> pl.Expr:
        """Whether a record that the log has lost, or a load, may have deleted what a retained record gives."""
        if layout.sequence is not None or self.unknown:
            return pl.lit(self.any_lost or (loads and layout.delete is not None))
        lost_end = self.ranges.filter("lost")["end"].max()
        return pl.col(log_order(layout)) < pl.lit(lost_end, pl.Int64)


def places_of(evidence: Evidence, log: Log, said: LogFacts) -> Places:
    job, facts = evidence.subject.job.name, evidence.facts
    numbers = facts.table.transactions()
    slices: list[Slice] = []
    ranges: list[tuple[int, int, int, bool]] = []
    for partition, state in sorted(facts.states.items()):
        if state.position is None or state.origin is None:
            continue
        bounds, low, high = said.bounds.get(partition), state.position, state.position
        if bounds is not None:
            low, high = min(max(state.origin, bounds.first), state.position), min(state.position, bounds.end)
        if low < high:
            slices.append(Slice(partition, low, high, low))
        if bounds is None or log.compacted(partition.topic) is not False:
            low = high = state.position
        for start, end in ((state.origin, low), (low, high), (high, state.position)):
            ranges += _ranges(numbers, job, partition, start, end, (start, end) != (low, high))
    forgotten = any(partition.topic == UNKNOWN_TOPIC for partition in facts.states)
    frame = pl.DataFrame(ranges, _RANGES, orient="row").sort("start")
    return Places(tuple(slices), frame, forgotten or bool(facts.incarnations.others))


def _ranges(
    numbers: Transactions, job: str, partition: Partition, start: int, end: int, lost: bool
) -> Iterator[tuple[int, int, int, bool]]:
    """The offsets `[start, end)` as sequences, cut where generations begin."""
    generations = generations_of(numbers, job, partition)
    tiebreak = tiebreaks(pa.chunked_array([[0]]), partition.topic, partition.number)[0].as_py()
    cuts = sorted({start, end, *(at for at, _ in generations if start < at < end)})
    for first, after in pairwise(cuts):
        sequence = sequences(pa.array([first]), generations)[0].as_py()
        yield tiebreak, sequence, sequence + after - first, lost


FAULTS: Mapping[str, str] = {
    "missing": "keys have no row",
    "stale": "rows are older than the newest record of their key, or deleted by it",
    "altered": "rows have other values than their record",
    "foreign": "rows come from no record",
}
OPEN: Mapping[str, str] = {
    "loaded": "rows of loads",
    "lost": "rows of records that the log no longer has, or of other jobs",
    "merged": "rows with values that are merged from loads, or from records that the log no longer has",
    "forgotten": "keys that the log or a load deleted so long ago that their tombstones are gone",
}
"""What only values are open of, but for the last."""
_GIVEN_UP = Unproven("the records: some were given up, and the history no longer tells which", "verify earlier")
_REPLAYING = Unproven("the records: a replay of the quarantine is unfinished", "verify after the next run")
_OVERWRITTEN = Unproven(
    "which rows the log gives: a load has replaced rows of this table, whatever their records",
    "compare the table with the files that were loaded",
)


def check_records(evidence: Evidence, log: Log, said: LogFacts, *, with_values: bool) -> Check:
    """Fold the records that the log still has, and compare key by key."""
    facts, bounds = evidence.facts, said.bounds
    places = places_of(evidence, log, said)
    given_up = [*recorded_gaps(facts.history, evidence.subject.job.name, "given_up")]
    hindrances = {
        VALUES_OF_SQL: evidence.subject.job.sql is not None,
        _OVERWRITTEN: any(key.endswith(overwritten_key("")) for key in facts.table.transactions()),
        _REPLAYING: facts.replay_unfinished,
        _GIVEN_UP: sum(gap.end - gap.start for gap in given_up)
        != sum(state.totals.given_up for state in facts.states.values()),
    }
    for open_question in (question for question, hinders in hindrances.items() if hinders):
        return conclude("records", "not compared", False, unproven=[open_question], partitions=bounds)
    counts: Counter[str] = Counter()
    first: int | None = None
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        flow = _flow(evidence, places.slices, given_up, Path(folder))
        files = tuple(_runs(flow, log, places.slices)) if places.slices else ()
        for compared in _compared(evidence, flow, files, places, with_values):
            counts.update(compared["verdict"])
            counts["keys"] += len(compared) - compared["gone"].null_count()
            wrong = compared.filter(pl.col("verdict").is_in(list(FAULTS)))["sequence"] % (1 << OFFSET_BITS)
            first = min((offset for offset in (first, wrong.min()) if isinstance(offset, int)), default=None)
    faults = [f"{counts[name]} {text}" for name, text in FAULTS.items() if counts[name]]
    untold = {name: f"{counts[name]} {text}" for name, text in OPEN.items() if counts[name]}
    remedy = "compare the table with the files that were loaded, or verify before the log loses records"
    kind = ViolationKind.ALTERED if counts["altered"] else ViolationKind.MISSING
    return conclude(
        "records",
        "; ".join(faults) or f"{counts['keys']} keys have the row that the newest record in the log gives",
        bool(faults),
        # A sequence tells no partition: where there are several, the first of them stands for all.
        violations=[violation_at(piece.partition, first or 0, kind) for piece in places.slices[:1] if faults],
        unproven=[Unproven(text, remedy) for name, text in untold.items() if with_values or name == "forgotten"],
        warnings=[f"not compared: {text}" for name, text in untold.items() if not with_values and name != "forgotten"],
        facts={"keys": counts["keys"]},
        partitions=bounds,
    )


def _flow(evidence: Evidence, slices: tuple[Slice, ...], given_up: Iterable[RecordedGap], folder: Path) -> KeyedFlow:
    """The flow of the job into a folder of its own; what is in quarantine or was given up stays out."""
    job, facts = evidence.subject.job, evidence.facts
    target = pa.schema([field for field in facts.table.schema if field.name not in HIDDEN])
    plain = flow_of(job, Batch("verify", slices), target, (), str(folder / "bad"))
    partitions = {piece.partition for piece in slices}
    bad = evidence.subject.quarantine.places(partitions)
    left_out = {_key(each): dict.fromkeys(offsets, "in quarantine") for each, offsets in bad.items()}
    for gap in given_up:
        if gap.partition in partitions:
            left_out[_key(gap.partition)] |= dict.fromkeys(range(gap.start, gap.end), "given up")
    known = {field.name: getattr(plain, field.name) for field in fields(plain)} | {
        "on": replace(plain.on, tombstone=tombstone_policy(job, evidence.spec)),
        "table": replace(plain.table, table_url=str(folder / "runs"), storage_options={}),
        "quarantine": replace(plain.quarantine, storage_options={}),
        "poison": left_out,
    }
    numbers = facts.table.transactions()
    generations = {_key(piece.partition): generations_of(numbers, job.name, piece.partition) for piece in slices}
    return KeyedFlow(
        **known, layout=evidence.spec.layout, generations=generations, tombstones_delete=told_by_key(job, evidence.spec)
    )


def _runs(flow: KeyedFlow, log: Log, slices: tuple[Slice, ...]) -> Iterator[StagedFile]:
    for piece in slices:
        records = log.records(piece.partition, piece.read_from, piece.end)
        for report in fused_stage(flow)(records):
            for named in decode_report(report.column(0)[0].as_py()).shares.values():
                yield from (file for share in named.values() for file in share.files)


def _compared(
    evidence: Evidence, flow: KeyedFlow, files: tuple[StagedFile, ...], places: Places, with_values: bool
) -> Iterator[pl.DataFrame]:
    """Bucket by bucket the keys of records and rows, each with what became of it."""
    spec, facts, tombstones = evidence.spec, evidence.facts, evidence.tombstones
    layout, stored = spec.layout, chunk_store(spec, facts.table)
    temporary = replace(stored, table_url=flow.table.table_url, storage_options={})
    rows_of = files_by_bucket(facts.table.active_files())
    dead_of = {} if tombstones is None else files_by_bucket(tombstones.active_files())
    touched = parts_by_bucket(files)
    # Values of partial updates may be of records that the log no longer has.
    tells_values = not layout.merge or (SEQUENCES in stored.schema.names and not places.any_lost)
    loads = any(key.endswith(loads_key("")) for key in facts.table.transactions())
    exposed = places.exposed(layout, loads)
    for bucket in sorted({*touched, *rows_of}):
        records = _records(temporary, touched.get(bucket, ()), with_values and tells_values)
        rows = _rows(stored, rows_of.get(bucket, ()), with_values and tells_values)
        dead = _dead(stored, tombstones, spec, dead_of.get(bucket, ()))
        yield compare(layout, records, places.placed(layout, rows), places.placed(layout, dead), exposed, with_values)


def compare(
    layout: Layout, records: pl.DataFrame, rows: pl.DataFrame, dead: pl.DataFrame, exposed: pl.Expr, with_values: bool
) -> pl.DataFrame:
    """The newest record, the row and the newest tombstone of each key, with the verdict."""
    names = layout.key_names
    joined = records.join(rows, on=names, how="full", coalesce=True, suffix="_there")
    joined = joined.join(dead, on=names, how="left", suffix="_dead")
    gone, origin = pl.col("gone"), pl.col("origin")
    same = pl.all_horizontal([pl.col(name) == pl.col(f"{name}_there") for name in order_columns(layout)])
    of_row = pl.when(origin == KNOWN).then(pl.lit("foreign")).otherwise(origin)
    differs = pl.col("value") != pl.col("value_there")
    of_values = pl.when(~differs | ~pl.lit(with_values)).then(pl.lit("")).when(differs).then(pl.lit("altered"))
    # Of a delete whose tombstone is gone an older record may bring the row back.
    forgotten = gone & ~same & newer(layout, "_dead").fill_null(True)
    deleted_since = older(layout, "_dead") & (pl.col("origin_dead") != KNOWN)
    verdict = (
        pl.when(gone.is_null() | older(layout, "_there"))
        .then(of_row)
        .when(origin.is_not_null() & same & ~gone)
        .then(of_values.otherwise(pl.lit("merged")))
        .when(origin.is_not_null())
        .then(pl.when(forgotten).then(pl.lit("forgotten")).otherwise(pl.lit("stale")))
        .when(gone | deleted_since)
        .then(pl.lit(""))
        .otherwise(pl.when(exposed).then(pl.lit("forgotten")).otherwise(pl.lit("missing")))
    )
    order = log_order(layout)
    return joined.select("gone", pl.coalesce(order, f"{order}_there").alias("sequence"), verdict.alias("verdict"))


def _records(store: ChunkStore, runs: tuple[RunPart, ...], tells_values: bool) -> pl.DataFrame:
    """The newest record of each key of a bucket, and whether it deletes."""
    layout = store.layout
    if not runs:
        return _keyed(layout, store.schema.empty_table()).with_columns(_NO_VALUE, pl.lit(False).alias("gone"))
    incoming = read_incoming(store, runs)
    last = incoming.frame.unique("key", keep="last", maintain_order=True)
    names = [*layout.key_names, *order_columns(layout), "value", "gone"]
    if not tells_values:
        return last.with_columns(_NO_VALUE).select(names)
    puts = fold(incoming.frame)
    combined = merged_rows(layout, incoming.rows, puts) if layout.merge else newest_rows(incoming.rows, puts)
    values = puts.select("key").with_columns(pl.Series("value", _digests(combined.rows)))
    return last.join(values, on="key", how="left").select(names)


def _rows(store: ChunkStore, files: Iterable[ActiveFile], tells_values: bool) -> pl.DataFrame:
    """The keys and the order of the rows of a bucket."""
    frames = [_keyed(store.layout, store.schema.empty_table()).with_columns(_NO_VALUE)]
    for file in files:
        rows = store.read(file.path, None if tells_values else store.layout.columns)
        frame = _keyed(store.layout, rows).with_columns(_NO_VALUE)
        if tells_values:
            value = pl.Series("value", _digests(rows))
            value = value.set(_partly_loaded(store.layout, rows), None) if store.layout.merge else value
            frame = frame.with_columns(value)
        frames.append(frame)
    return pl.concat(frames)


def _dead(store: ChunkStore, tombstones: Table | None, spec: KeyedSpec, files: Iterable[ActiveFile]) -> pl.DataFrame:
    """The newest tombstone of each key of a bucket."""
    empty = _keyed(store.layout, store.schema.empty_table())
    if tombstones is None or not files:
        return empty
    of_dead = chunk_store(spec, tombstones)
    frames = [pl.DataFrame(pl.from_arrow(of_dead.read(file.path))) for file in files]
    return newest(store.layout, pl.concat(frames)).select(empty.columns)


_NO_VALUE = pl.lit(None, pl.UInt64).alias("value")


def _keyed(layout: Layout, rows: pa.Table) -> pl.DataFrame:
    return key_frame(layout, rows).hstack(order_frame(layout, rows))


def _partly_loaded(layout: Layout, rows: pa.Table) -> pl.Series:
    """Rows with a value that no record has: a load brought it."""
    lists = rows.column(SEQUENCES).combine_chunks()
    loaded = pc.less(pc.struct_field(pc.list_flatten(lists), log_order(layout)), 0)
    found = np.zeros(rows.num_rows, np.bool_)
    found[pc.list_parent_indices(lists).filter(loaded).to_numpy()] = True
    return pl.Series(found)


def _digests(rows: pa.Table) -> pl.Series:
    """A hash for each row, out of all of its values."""
    return column_hashes(rows.select(sorted(rows.schema.names))).hash_rows(7)


def _key(partition: Partition) -> PartitionKey:
    return partition.topic, partition.number
