"""What `verify` proves of a keyed table: its files are as committed, each key once, with what the log gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa

from penstock.flow.write.names import content_of
from penstock.job.spec import JobSpec
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.table import Table
from penstock.logs.log import Log
from penstock.logs.registry import OpenLog
from penstock.proof.files import named_paths, table_source
from penstock.proof.findings import NO_TABLE, Check, Proof
from penstock.proof.frame import prove, rows_check
from penstock.proof.log import LogFacts
from penstock.proof.subject import Depth
from penstock.tables.keyed.files import chunk_store, files_by_bucket, has_foreign_changes
from penstock.tables.keyed.layout import Layout, buckets_of, key_frame
from penstock.tables.keyed.merging.chunks import ChunkStore, digest_of
from penstock.tables.keyed.proving.records import Evidence, check_records
from penstock.tables.keyed.spec import LAYOUT_PROPERTY, KeyedSpec, decode_layout
from penstock.tables.keyed.tombstones import find_tombstones, tombstones_faults
from penstock.tables.single.facts import read_table


def prove_keyed(job: JobSpec[KeyedSpec], depth: Depth, open_log: OpenLog) -> Proof:
    """Check one version of the table against itself and its log; nothing is written."""
    facts = read_table(job)
    if facts is None:
        return NO_TABLE
    # A table of an earlier format has not the numbers that tell.
    decode_layout(facts.table.handle.metadata().configuration.get(LAYOUT_PROPERTY) or "")
    tombstones = find_tombstones(job.table, job.name, facts.table.environment)
    evidence = Evidence(facts.subject(job), facts, job.table, tombstones)
    tables = [table for table in (facts.table, tombstones) if table is not None]
    faults = [fault for table in tables for fault in table_source(table, None).faults]
    readable = not faults and not evidence.subject.quarantine.faults
    faults += [fault for table in tables for fault in foreign_faults(table)]
    faults += tombstones_faults(job.table, facts.table, tombstones)
    if readable:
        faults += _content_faults(job.table, facts.table, tombstones)
    count = sum(file.rows or 0 for file in facts.table.active_files())
    detail = f"{count} rows, each key once, in files that are sorted and as their names tell"
    rows = rows_check(evidence.subject, count, faults, detail)

    def log_checks(log: Log, said: LogFacts) -> Iterator[Check]:
        if depth.deep and readable:
            yield check_records(evidence, log, said, with_values=depth.values is not None)

    return prove(evidence.subject, depth, open_log, [rows], log_checks)


def _content_faults(spec: KeyedSpec, data: Table, tombstones: Table | None) -> Iterator[str]:
    store = chunk_store(spec, data)
    for bucket, files in files_by_bucket(data.active_files(tuple(store.schema.names))).items():
        yield from bucket_faults(store, bucket, files)
    if tombstones is not None:
        store = chunk_store(spec, tombstones)
        for file in tombstones.active_files():
            yield from (f"tombstones: {file.path}: {fault}" for fault in content_faults(file, store.read(file.path)))


def foreign_faults(table: Table) -> Iterator[str]:
    """What another writer did to the files of a table."""
    strange = [file.path for file in table.active_files() if content_of(file.path) is None]
    if strange:
        yield named_paths("files were not written by Penstock", strange)
    elif has_foreign_changes(table):
        yield f"files of {table.spec.path} are not those that its commits left there: changed by another writer?"


def bucket_faults(store: ChunkStore, bucket: int, files: Sequence[ActiveFile]) -> Iterator[str]:
    """What is wrong with the rows of a bucket."""
    if not store.layout.has_bucket(bucket):
        yield f"{len(files)} files are in bucket {bucket}, which there is not"
        return
    frames = []
    for file in files:
        rows = store.read(file.path)
        keys = key_frame(store.layout, rows)
        faults = [*content_faults(file, rows), *_key_faults(store.layout, bucket, keys)]
        yield from (f"{file.path}: {fault}" for fault in faults)
        frames.append(keys)
    together = pl.concat(frames)
    twice = len(together) - together.n_unique(store.layout.key_names)
    if twice:
        yield f"bucket {bucket}: {twice} rows have a key that another row has too"


def content_faults(file: ActiveFile, rows: pa.Table) -> Iterator[str]:
    """Whether a file has the rows that its name tells, within its statistics."""
    content = content_of(file.path)
    if content is not None and digest_of(rows) != content.digest:
        yield "its rows are not those of its name"
    for name, span in file.spans.items():
        column = rows.column(name)
        nulls = file.nulls[name]
        outside = False
        if span is not None:
            values = pl.Series(pl.from_arrow(column))
            outside = bool(((values < span[0]) | (values > span[1])).any())
        if outside or nulls not in (None, column.null_count):
            yield f"{name} has values outside the statistics"


def _key_faults(layout: Layout, bucket: int, keys: pl.DataFrame) -> Iterator[str]:
    if any(keys[name].null_count() for name in keys.columns):
        yield "a part of a key is null"
        return
    if not keys.with_row_index("place").sort(layout.key_names, maintain_order=True)["place"].is_sorted():
        yield "rows are not in the order of their keys"
    if (buckets_of(layout, keys) != bucket).any():
        yield f"rows are not of bucket {bucket}"
