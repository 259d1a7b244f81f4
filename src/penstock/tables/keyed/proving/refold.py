"""The log once more: what its records come to by key, next to what the table holds.

Where the log still has every record, this proves the table whole: every key has the row of its newest record, and no
other is there. Where retention or compaction took some, it proves what the rest of the log tells.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.manifest import PartitionKey, StagedFile
from penstock.flow.write.report import decode_report
from penstock.job.spec import JobSpec
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.proof.findings import VALUES_OF_SQL, Check, Unproven, Violation, ViolationKind, conclude, violation_at
from penstock.proof.footers import QuarantineFiles
from penstock.proof.invariants import LogFacts
from penstock.proof.offsets.owners import QUARANTINE_COLUMNS
from penstock.proof.offsets.table import origin_frames
from penstock.proof.values.digests import column_digests
from penstock.tables.keyed.files import ActiveFiles, read_active
from penstock.tables.keyed.generations import generations_of
from penstock.tables.keyed.layout import (
    HIDDEN,
    OFFSET_BITS,
    SEQUENCES,
    Layout,
    key_frame,
    log_order,
    order_columns,
    order_frame,
)
from penstock.tables.keyed.loading.load import overwritten_key
from penstock.tables.keyed.merger import Runs
from penstock.tables.keyed.merging.chunks import ChunkStore
from penstock.tables.keyed.merging.fold import fold, merged_rows, newest_rows
from penstock.tables.keyed.merging.merge import read_incoming
from penstock.tables.keyed.merging.plan import BucketPlan, MergeFlow, Naming
from penstock.tables.keyed.merging.runs import KeyedFlow
from penstock.tables.keyed.proving.stored import stored_store
from penstock.tables.keyed.spec import KeyedSpec
from penstock.tables.keyed.writer import told_by_key, tombstone_policy
from penstock.tables.single.facts import TableFacts


@dataclass(frozen=True, slots=True)
class Retained:
    """The offsets that the table has read and the log still has."""

    slices: tuple[Slice, ...]
    whole: bool
    """Whether these are all records that the table was made of."""


@dataclass(slots=True)
class Tally:
    """What was compared."""

    keys: int = 0
    missing: int = 0
    """Keys without the row that their newest record gives."""
    stale: int = 0
    """Keys with another row, or one that should be deleted."""
    altered: int = 0
    """Rows whose values are not those of their record."""
    foreign: int = 0
    """Rows that no record gives."""
    first: int | None = None
    """The least offset of a record whose key is wrong."""

    @property
    def wrong(self) -> int:
        return self.missing + self.stale + self.altered + self.foreign

    def note(self, offsets: pl.Series) -> None:
        least = offsets.min()
        if isinstance(least, int):
            self.first = least if self.first is None else min(self.first, least)


def check_records(
    job: JobSpec[KeyedSpec],
    facts: TableFacts,
    quarantine: QuarantineFiles,
    log: Log,
    said: LogFacts,
    *,
    with_values: bool,
) -> Check:
    """Fold the records that the log still has, and compare key by key."""
    held = _retained(facts, log, said)
    given_up = sum(each.totals.given_up for each in facts.states.values())
    if job.sql is not None:
        return conclude("records", "not compared", False, unproven=[VALUES_OF_SQL], partitions=said.bounds)
    if facts.table.transaction(overwritten_key(job.name)):
        what = "which rows the log gives: a load has replaced rows of this table, whatever their records"
        open_question = Unproven(what, "compare the table with the files that were loaded")
        return conclude("records", "not compared", False, unproven=[open_question], partitions=said.bounds)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        flow = _flow(job, facts, held.slices, quarantine, Path(folder))
        files = tuple(_runs(flow, log, held.slices)) if held.slices else ()
        _compare(job, facts, flow, files, held.whole and not given_up, tally, with_values)
    violations = _violations(held.slices, tally)
    whole = "every record of the log" if held.whole else "the records that the log still has"
    fault = (
        f"{tally.missing} keys have no row, {tally.stale} another than that of their newest record, "
        f"{tally.altered} rows have other values, {tally.foreign} rows come from no record"
    )
    detail = fault if tally.wrong else f"{tally.keys} keys have the row that {whole} gives"
    return conclude(
        "records",
        detail,
        bool(tally.wrong),
        violations=violations,
        unproven=_open_questions(job, with_values, held.whole and not given_up),
        warnings=[] if held.whole else ["rows of records that the log no longer has are not compared"],
        facts={"keys": tally.keys},
        partitions=said.bounds,
    )


def _open_questions(job: JobSpec[KeyedSpec], with_values: bool, whole: bool) -> list[Unproven]:
    if whole or not (with_values and job.table.layout.merge):
        return []
    what = "the values of rows that are merged from several records: the log no longer has all of them"
    return [Unproven(what, "compare a query of the table with the records of a key")]


def _violations(slices: tuple[Slice, ...], tally: Tally) -> list[Violation]:
    """A sequence tells no partition: where there are several, the first of them stands for all."""
    if not tally.wrong or not slices:
        return []
    kind = ViolationKind.ALTERED if tally.altered else ViolationKind.MISSING
    return [violation_at(slices[0].partition, tally.first or 0, kind)]


def _retained(facts: TableFacts, log: Log, said: LogFacts) -> Retained:
    slices = []
    whole = not facts.incarnations.retired and not facts.incarnations.others
    for partition, state in sorted(facts.states.items()):
        bounds = said.bounds.get(partition)
        if bounds is None or state.position is None or state.origin is None:
            whole = False
            continue
        low, high = max(state.origin, bounds.first), min(state.position, bounds.end)
        whole = whole and low == state.origin and log.compacted(partition.topic) is False
        if low < high:
            slices.append(Slice(partition, low, high, low))
    return Retained(tuple(slices), whole)


def _flow(
    job: JobSpec[KeyedSpec], facts: TableFacts, slices: tuple[Slice, ...], quarantine: QuarantineFiles, folder: Path
) -> KeyedFlow:
    """The flow of the job into a folder of its own; what is in quarantine stays out."""
    target = pa.schema([each for each in facts.table.schema if each.name not in HIDDEN])
    plain = flow_of(job, Batch("verify", slices), target, ())
    known = {each.name: getattr(plain, each.name) for each in fields(plain)} | {
        "on": replace(plain.on, tombstone=tombstone_policy(job, job.table)),
        "table": replace(plain.table, table_url=str(folder / "runs"), storage_options={}),
        "quarantine": replace(plain.quarantine, table_url=str(folder / "bad"), storage_options={}),
        "poison": _quarantined(job, quarantine, slices),
    }
    numbers = facts.table.transactions()
    generations = {_key(each.partition): generations_of(numbers, job.name, each.partition) for each in slices}
    return KeyedFlow(
        **known,
        layout=job.table.layout,
        generations=generations,
        tombstones_delete=told_by_key(job, job.table),
    )


def _quarantined(
    job: JobSpec[KeyedSpec], quarantine: QuarantineFiles, slices: tuple[Slice, ...]
) -> Mapping[PartitionKey, Mapping[int, str]]:
    ids = {each.partition.topic_id: each.partition for each in slices}
    found: dict[PartitionKey, dict[int, str]] = {_key(each.partition): {} for each in slices}
    for file in quarantine.files:
        for frame in origin_frames(quarantine.storage, file, QUARANTINE_COLUMNS, job.name):
            for row in frame.iter_rows(named=True):
                partition = ids.get(row["topic_id"])
                key = None if partition is None else (partition.topic, row["partition"])
                if key in found:
                    found[key][row["offset"]] = "in quarantine"
    return found


def _runs(flow: KeyedFlow, log: Log, slices: tuple[Slice, ...]) -> Iterator[StagedFile]:
    for piece in slices:
        records = log.records(piece.partition, piece.read_from, piece.end)
        for report in fused_stage(flow)(records):
            for named in decode_report(report.column(0)[0].as_py()).shares.values():
                yield from (file for share in named.values() for file in share.files)


def _compare(
    job: JobSpec[KeyedSpec],
    facts: TableFacts,
    flow: KeyedFlow,
    files: tuple[StagedFile, ...],
    whole: bool,
    tally: Tally,
    with_values: bool,
) -> None:
    stored = stored_store(job.table, facts.table.schema)
    temporary = replace(stored, table_url=flow.table.table_url, storage_options={})
    active = read_active(facts.table, job.table.layout)
    touched = Runs(Naming.of(flow), files).by_bucket() if files else {}
    # Values of partial updates may be of records that the log no longer has.
    with_values = with_values and (not job.table.layout.merge or (whole and SEQUENCES in stored.schema.names))
    for bucket in sorted({*touched, *active.by_bucket}):
        wanted = None
        if bucket in touched:
            plan = BucketPlan(bucket, tuple(part for _, part in touched[bucket]))
            wanted = _wanted(MergeFlow(temporary, Naming.of(flow), ""), plan, with_values)
        there = _there(stored, active, bucket, with_values)
        _compare_bucket(job.table.layout, wanted, there, whole, tally)


def _wanted(flow: MergeFlow, plan: BucketPlan, with_values: bool) -> pl.DataFrame:
    """What each key of a bucket comes to: its newest record, and whether that deletes it."""
    layout = flow.store.layout
    incoming = read_incoming(flow, plan)
    last = incoming.frame.unique("key", keep="last", maintain_order=True)
    names = [*layout.key_names, *order_columns(layout), "gone"]
    if not with_values:
        return last.select(names)
    puts = fold(incoming.frame)
    combined = merged_rows(layout, incoming.rows, puts) if layout.merge else newest_rows(incoming.rows, puts)
    values = puts.select("key").with_columns(pl.Series("value", _digests(combined.rows)))
    return last.join(values, on="key", how="left").select(*names, "value")


def _there(store: ChunkStore, active: ActiveFiles, bucket: int, with_values: bool) -> pl.DataFrame | None:
    frames = []
    for file in active.of(bucket):
        rows = store.read(file.path, None if with_values else store.layout.columns)
        frame = key_frame(store.layout, rows).hstack(order_frame(store.layout, rows))
        if with_values:
            value = pl.Series("value", _digests(rows))
            value = value.set(_partly_loaded(store.layout, rows), None) if store.layout.merge else value
            frame = frame.with_columns(value)
        frames.append(frame)
    return pl.concat(frames) if frames else None


def _partly_loaded(layout: Layout, rows: pa.Table) -> pl.Series:
    """Rows with a value that no record has: a load brought it."""
    lists = rows.column(SEQUENCES).combine_chunks()
    loaded = pc.less(pc.struct_field(pc.list_flatten(lists), log_order(layout)), 0)
    found = np.zeros(rows.num_rows, np.bool_)
    found[pc.list_parent_indices(lists).filter(loaded).to_numpy()] = True
    return pl.Series(found)


def _digests(rows: pa.Table) -> np.typing.NDArray[np.uint64]:
    """A number for each row, out of all of its values."""
    total = np.zeros(rows.num_rows, np.uint64)
    for number, name in enumerate(sorted(rows.schema.names)):
        column = rows.column(name).combine_chunks()
        whole = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        total = (total ^ column_digests(whole)) * np.uint64(0x9E3779B97F4A7C15 + 2 * number)
    return total


def _compare_bucket(
    layout: Layout, wanted: pl.DataFrame | None, there: pl.DataFrame | None, whole: bool, tally: Tally
) -> None:
    if wanted is None:
        tally.foreign += len(_of_log(layout, there)) if whole and there is not None else 0
        return
    tally.keys += len(wanted)
    # Rows of a load are older than every record, and come from none.
    loaded = (layout.sequence is not None) and there is not None and (there[log_order(layout)] < 0).any()
    whole = whole and not loaded
    alive = wanted.filter(~pl.col("gone"))
    if there is None:
        tally.missing += len(alive)
        tally.note(_offsets(layout, alive))
        return
    both = wanted.join(there, on=layout.key_names, how="inner", suffix="_there")
    same = pl.all_horizontal([pl.col(name) == pl.col(f"{name}_there") for name in order_columns(layout)])
    # With a column as the sequence, a record that the log has lost may be the newest.
    other = both.filter(~same | pl.col("gone")) if whole or layout.sequence is None else both.clear()
    tally.stale += len(other)
    tally.note(_offsets(layout, other))
    missing = alive.join(there, on=layout.key_names, how="anti")
    if whole or layout.sequence is None:
        tally.missing += len(missing)
        tally.note(_offsets(layout, missing))
    if whole:
        tally.foreign += len(_of_log(layout, there).join(wanted, on=layout.key_names, how="anti"))
    if "value" in both.columns and "value_there" in both.columns:
        changed = both.filter(same & ~pl.col("gone") & (pl.col("value") != pl.col("value_there")))
        tally.altered += len(changed)
        tally.note(_offsets(layout, changed))


def _of_log(layout: Layout, rows: pl.DataFrame) -> pl.DataFrame:
    """Without the rows of loads."""
    return rows.filter(pl.col(log_order(layout)) >= 0)


def _offsets(layout: Layout, frame: pl.DataFrame) -> pl.Series:
    return frame[log_order(layout)] % (1 << OFFSET_BITS)


def _key(partition: Partition) -> PartitionKey:
    return partition.topic, partition.number
