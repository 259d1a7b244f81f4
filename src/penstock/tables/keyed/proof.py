"""Verifies a keyed table: its files are as committed, each key occurs once, and rows agree with the log.

The newest retained record of each key is joined with the row of the table. A row must not be older than that record,
and must have its values if it comes from that record. A newer row, or one whose key has no record, must come from a
load or from a record that the log has deleted: its sequence shows which. Rows that cannot be proven are counted.
"""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.compile import flow_of
from penstock.flow.task import fused_stage
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.names import content_of
from penstock.job.spec import JobSpec
from penstock.lake.delta.files import ActiveFile
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vectors import has_own_name, read_vector
from penstock.logs.log import Batch, Bounds, Log, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, VALUES_OF_SQL, Check, Proof, Unproven
from penstock.proof.frame import prove, rows_check
from penstock.proof.numbers import UNKNOWN_TOPIC, LogFacts
from penstock.proof.subject import Depth, Subject, named_paths, staged_files, table_source
from penstock.proof.values import column_hashes
from penstock.storage import NotFoundError
from penstock.tables.keyed.files import chunk_store, files_by_bucket, has_foreign_changes
from penstock.tables.keyed.generations import generations_of
from penstock.tables.keyed.layout import (
    HIDDEN,
    SEQUENCES,
    Layout,
    buckets_of,
    key_frame,
    newer,
    older,
    order_columns,
    order_frame,
    sequences,
    tiebreaks,
)
from penstock.tables.keyed.loading.load import loads_key, overwritten_key
from penstock.tables.keyed.merging.chunks import ChunkStore, digest_of
from penstock.tables.keyed.merging.fold import fold, merged_rows, newest_rows
from penstock.tables.keyed.merging.merge import read_incoming
from penstock.tables.keyed.merging.runs import KeyedFlow, RunPart, keyed_flow, parts_by_bucket
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, decode_layout
from penstock.tables.keyed.tombstones import newest, tombstones_faults
from penstock.tables.single.facts import TableFacts, read_table


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of a verification; tombstones are read after the table."""

    job: JobSpec[KeyedSpec]
    subject: Subject
    facts: TableFacts
    tombstones: DeltaLog | None


def prove_keyed(job: JobSpec[KeyedSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check one version of the table against itself and its log; read-only."""
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    # A table of an earlier format lacks these numbers.
    decode_layout(facts.table.handle.metadata().configuration.get(LAYOUT_PROPERTY) or "")
    tombstones = find_table(job.table.tombstones_place, job.name, facts.table.environment)
    evidence = Evidence(job, facts.subject(job), facts, tombstones)
    tables = [table for table in (facts.table, tombstones) if table is not None]
    faults = [fault for table in tables for fault in table_source(table, None, reads_vectors=True).faults]
    faults += _vector_faults(facts.table)
    readable = not faults and not evidence.subject.quarantine.faults
    faults += [fault for table in tables for fault in _foreign_faults(table)]
    faults += tombstones_faults(job.table, facts.table, tombstones)
    if readable:
        faults += [
            fault for table in tables for fault in _content_faults(job.table, table, of_keys=table is facts.table)
        ]
    count = sum(file.rows_left for file in facts.table.active_files())
    detail = f"{count} rows, each key once, in files that are sorted and have the content of their names"
    rows = rows_check(evidence.subject, count, faults, detail)

    def log_checks(log: Log, log_facts: LogFacts) -> Iterator[Check]:
        if depth.deep and readable:
            yield check_records(evidence, log, log_facts, with_values=depth.values is not None)

    return prove(evidence.subject, depth, open_log, [rows], log_checks)


def _vector_faults(table: DeltaLog) -> Iterator[str]:
    """Deletion vectors that are not those that a commit has written."""
    storage, files = table.storage(), [file for file in table.active_files() if file.vector is not None]
    for path, of_path in groupby(sorted(files, key=lambda file: file.paths[1]), lambda file: file.paths[1]):
        try:
            data = storage.read(path)
        except NotFoundError:
            yield f"{path}: the deletion vectors are missing"
            continue
        if not has_own_name(path, data):
            yield f"{path}: the deletion vectors are not those of its name"
            continue
        for file in of_path:
            assert file.vector is not None
            try:
                rows = read_vector(file.vector, io.BytesIO(data))
            except InvariantError as error:
                yield error.primary
                continue
            if rows[-1] >= (file.rows or 0):
                yield f"{path}: deletes rows that {file.path} does not have"


def _foreign_faults(table: DeltaLog) -> Iterator[str]:
    """Changes by other writers to the files of a table."""
    foreign = [file.path for file in table.active_files() if content_of(file.path) is None]
    if foreign:
        yield named_paths("files were not written by Penstock", foreign)
    elif has_foreign_changes(table):
        yield f"files of {table.spec.path} differ from those of its commits: changed by another writer?"


def _content_faults(spec: KeyedSpec, table: DeltaLog, *, of_keys: bool) -> Iterator[str]:
    """Faults of the rows of a table, or of tombstones, which may have a key several times."""
    store, layout = chunk_store(spec, table), spec.layout
    for bucket, files in files_by_bucket(table.active_files(tuple(store.schema.names))).items():
        frames = []
        for file in files:
            rows = store.read(file.path)
            yield from (f"{file.path}: {fault}" for fault in _file_faults(file, rows))
            if of_keys:
                keys = key_frame(layout, rows)
                if not keys.equals(keys.sort(layout.key_names, maintain_order=True)):
                    yield f"{file.path}: rows are not in the order of their keys"
                frames.append(keys[np.delete(np.arange(len(keys)), store.deleted(file))])
        keys = pl.concat(frames) if frames else pl.DataFrame()
        whole = keys.drop_nulls()
        if of_keys and (len(whole) < len(keys) or (buckets_of(layout, whole) != bucket).any()):
            yield f"bucket {bucket}: rows have no whole key, or one of another bucket"
        if twice := len(keys) - keys.n_unique():
            yield f"bucket {bucket}: {twice} rows have a key that another row has too"


def _file_faults(file: ActiveFile, rows: pa.Table) -> Iterator[str]:
    """Whether a file has the rows that its name states, within its statistics."""
    content = content_of(file.path)
    if content is not None and digest_of(rows) != content.digest:
        yield "its rows are not those of its name"
    for name, span in file.spans.items():
        values = pl.Series(pl.from_arrow(rows.column(name)))
        outside = span is not None and ((values < span[0]) | (values > span[1])).any()
        if outside or file.nulls[name] not in (None, values.null_count()):
            yield f"{name} has values outside the statistics"


KNOWN, LOST, LOADED = "known", "lost", "loaded"


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The offsets that the table has read, and which of them the log still has."""

    slices: tuple[Slice, ...]
    """The retained offsets, to read again."""
    lost: pl.DataFrame
    """The sequences `[start, end)` whose records the log no longer has, by tiebreak."""

    @property
    def any_lost(self) -> bool:
        return not self.lost.is_empty()

    def placed(self, layout: Layout, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with their `origin`: `KNOWN` if the log has the record of their sequence, or never had one."""
        sequence, tiebreak = order_columns(layout)[-2:]
        lost_ranges = self.lost.rename({"tiebreak": tiebreak, "start": sequence})
        at = rows.sort(sequence).join_asof(lost_ranges, on=sequence, by=tiebreak, check_sortedness=False)
        lost = (pl.col(sequence) < pl.col("end")).fill_null(False)
        origin = pl.when(pl.col(sequence) < 0).then(pl.lit(LOADED)).when(lost).then(pl.lit(LOST))
        return at.select(*rows.columns, origin.otherwise(pl.lit(KNOWN)).alias("origin"))

    def exposed(self, layout: Layout, loads: bool) -> pl.Expr:
        """Whether a record that the log has lost, or a load, may have deleted the row of a retained record."""
        if layout.sequence is not None:
            return pl.lit(self.any_lost or (loads and layout.delete is not None))
        return pl.col(order_columns(layout)[-2]) < pl.lit(self.lost["end"].max(), pl.Int64)


def places_of(facts: TableFacts, job: str, log: Log, bounds_of: Mapping[Partition, Bounds]) -> RowPlaces:
    numbers = facts.table.transactions()
    slices: list[Slice] = []
    lost: list[tuple[int, int, int]] = []
    for partition, state in sorted(facts.states.items()):
        if state.position is None or state.origin is None:
            continue
        bounds, low, high = bounds_of.get(partition), state.position, state.position
        if bounds is not None:
            low, high = min(max(state.origin, bounds.first), state.position), min(state.position, bounds.end)
        if low < high:
            slices.append(Slice(partition, low, high, low))
        if bounds is None or log.compacted(partition.topic) is not False:
            low = high = state.position
        tiebreak = tiebreaks(pa.chunked_array([[0]]), partition.topic, partition.number)[0].as_py()
        for start, end in ((state.origin, low), (high, state.position)):
            if start < end:
                ends = sequences(pa.array([start, end - 1]), generations_of(numbers, job, partition)).to_pylist()
                lost.append((tiebreak, ends[0], ends[1] + 1))
    frame = pl.DataFrame(lost, dict.fromkeys(("tiebreak", "start", "end"), pl.Int64), orient="row")
    return RowPlaces(tuple(slices), frame.sort("start"))


FAULTS: Mapping[str, str] = {
    "missing": "keys have no row",
    "stale": "rows are older than the newest record of their key, or deleted by it",
    "altered": "rows have other values than their record",
    "foreign": "rows come from no record",
}
OPEN: Mapping[str, str] = {
    "loaded": "rows of loads",
    "lost": "rows of records that the log no longer has",
    "merged": "rows with values that are merged from loads, or from records that the log no longer has",
    "forgotten": "keys that the log or a load deleted so long ago that their tombstones were removed",
}
"""What is not proven. For all but the last, only the values are unproven."""


def check_records(evidence: Evidence, log: Log, log_facts: LogFacts, *, with_values: bool) -> Check:
    """Fold the records that the log still has, and compare key by key."""
    if reason := _why_not_compared(evidence):
        return Check("records", "not compared", False, unproven=[reason])
    places = places_of(evidence.facts, evidence.job.name, log, log_facts.bounds)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        flow = _flow(evidence, places.slices, Path(folder))
        files = tuple(_runs(flow, log, places.slices)) if places.slices else ()
        for compared in _compared(evidence, flow, files, places, with_values):
            counts.update(compared["verdict"])
            counts["keys"] += len(compared) - compared["gone"].null_count()
    faults = [f"{counts[name]} {text}" for name, text in FAULTS.items() if counts[name]]
    unproven = {name: f"{counts[name]} {text}" for name, text in OPEN.items() if counts[name]}
    remedy = "compare the table with the files that were loaded, or verify before the log loses records"
    return Check(
        "records",
        "; ".join(faults) or f"{counts['keys']} keys have the row that the newest record in the log gives",
        bool(faults),
        unproven=[Unproven(text, remedy) for name, text in unproven.items() if with_values or name == "forgotten"],
        warnings=[
            f"not compared: {text}" for name, text in unproven.items() if not with_values and name != "forgotten"
        ],
        facts={"keys": counts["keys"]},
    )


def _why_not_compared(evidence: Evidence) -> Unproven | None:
    """Why records cannot be compared at all."""
    facts, earlier = evidence.facts, "verify before the history of the table is cleaned up"
    overwritten = any(key.endswith(overwritten_key("")) for key in facts.table.transactions())
    forgotten = any(partition.topic == UNKNOWN_TOPIC for partition in facts.states)
    for applies, what, remedy in (
        (overwritten, "a load has replaced rows, whatever their records", "compare the table with the loaded files"),
        (facts.replay_unfinished, "a replay of the quarantine is unfinished", "verify after the next run"),
        (facts.incarnations.other_ids, "other jobs write to this table too", "give each job a table of its own"),
        (forgotten, "the table no longer has the name of an earlier topic", earlier),
    ):
        if applies:
            return Unproven(f"the records: {what}", remedy)
    return VALUES_OF_SQL if evidence.job.sql is not None else None


def _flow(evidence: Evidence, slices: tuple[Slice, ...], folder: Path) -> KeyedFlow:
    """The flow of the job into a temporary folder, without records in quarantine."""
    job, table = evidence.job, evidence.facts.table
    target = pa.schema([field for field in table.schema if field.name not in HIDDEN])
    plain = flow_of(job, Batch("verify", slices), target, (), str(folder / "bad"))
    partitions = [piece.partition for piece in slices]
    bad = evidence.subject.quarantined_offsets()
    return replace(
        keyed_flow(job, plain, table.transactions(), partitions),
        table=replace(plain.table, table_url=str(folder / "runs"), storage_options={}),
        quarantine=replace(plain.quarantine, storage_options={}),
        poison={(place.topic, place.number): dict.fromkeys(bad[place], "in quarantine") for place in partitions},
    )


def _runs(flow: KeyedFlow, log: Log, slices: tuple[Slice, ...]) -> Iterator[StagedFile]:
    for piece in slices:
        records = log.records(piece.partition, piece.read_from, piece.end)
        yield from (file for _, file in staged_files(fused_stage(flow), records))


def _compared(
    evidence: Evidence, flow: KeyedFlow, files: tuple[StagedFile, ...], places: RowPlaces, with_values: bool
) -> Iterator[pl.DataFrame]:
    """The keys of records and rows with their verdicts, one frame per bucket."""
    spec, facts, tombstones = evidence.job.table, evidence.facts, evidence.tombstones
    layout, stored = spec.layout, chunk_store(spec, facts.table)
    temporary = replace(stored, table_url=flow.table.table_url, storage_options={})
    rows_of = files_by_bucket(facts.table.active_files())
    dead_of = {} if tombstones is None else files_by_bucket(tombstones.active_files())
    touched = parts_by_bucket(files)
    loads = any(key.endswith(loads_key("")) for key in facts.table.transactions())
    # Values of partial updates may come from loads, or from records that the log no longer has.
    has_values = not layout.merge or (SEQUENCES in stored.schema.names and not loads and not places.any_lost)
    exposed = places.exposed(layout, loads)
    for bucket in sorted({*touched, *rows_of}):
        records = _records(temporary, touched.get(bucket, ()), with_values and has_values)
        rows = _rows(stored, rows_of.get(bucket, ()), with_values and has_values)
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
    # After a delete whose tombstone was removed, an older record may restore the row.
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
    return joined.select("gone", verdict.alias("verdict"))


def _records(store: ChunkStore, runs: tuple[RunPart, ...], has_values: bool) -> pl.DataFrame:
    """The newest record of each key of a bucket, and whether it deletes."""
    layout = store.layout
    if not runs:
        return _keyed(layout, store.schema.empty_table()).with_columns(_NO_VALUE, pl.lit(False).alias("gone"))
    incoming = read_incoming(store, runs)
    last = incoming.frame.unique("key", keep="last", maintain_order=True)
    names = [*layout.key_names, *order_columns(layout), "value", "gone"]
    if not has_values:
        return last.with_columns(_NO_VALUE).select(names)
    puts = fold(incoming.frame)
    combined = merged_rows(layout, incoming.rows, puts) if layout.merge else newest_rows(incoming.rows, puts)
    values = puts.select("key").with_columns(pl.Series("value", _digests(combined.rows)))
    return last.join(values, on="key", how="left").select(names)


def _rows(store: ChunkStore, files: Iterable[ActiveFile], has_values: bool) -> pl.DataFrame:
    """The keys and the order of the rows of a bucket."""
    frames = [_keyed(store.layout, store.schema.empty_table()).with_columns(_NO_VALUE)]
    for file in files:
        rows = store.left(file, None if has_values else store.layout.columns)
        frame = _keyed(store.layout, rows).with_columns(_NO_VALUE)
        if has_values:
            frame = frame.with_columns(pl.Series("value", _digests(rows)))
        frames.append(frame)
    return pl.concat(frames)


def _dead(store: ChunkStore, tombstones: DeltaLog | None, spec: KeyedSpec, files: Iterable[ActiveFile]) -> pl.DataFrame:
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


def _digests(rows: pa.Table) -> pl.Series:
    """A hash of all values of each row."""
    return column_hashes(rows.select(sorted(rows.schema.names))).hash_rows(7)
