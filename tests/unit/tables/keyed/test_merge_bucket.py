"""The merge of one bucket with existing rows: newer ones win, loads replace loads, overwrites replace all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.flow.write.names import compacted_name
from penstock.lake.delta.files import ActiveFile
from penstock.tables.keyed.layout import DELETE, SEQUENCE, TIEBREAK, Layout
from penstock.tables.keyed.merging.chunks import ChunkStore, fresh
from penstock.tables.keyed.merging.merge import BucketPlan, BucketReport, MergeFlow, merge_bucket
from penstock.tables.keyed.merging.runs import RunWriter, parts_by_bucket

COLUMNS = pa.schema([("device", pa.string()), ("number", pa.int64()), ("value", pa.int64())])
LAYOUT = Layout(("number",), ("device",), buckets=1)
LOADED = -1
GONE = None

Rows = Mapping[tuple[str, int], int | None]


@dataclass(slots=True)
class Bucket:
    folder: Path
    files: dict[str, ActiveFile] = field(default_factory=dict)
    tombstones: tuple[str, ...] = ()

    @property
    def store(self) -> ChunkStore:
        schema = pa.schema([*COLUMNS, (SEQUENCE, pa.int64()), (TIEBREAK, pa.int64())])
        return ChunkStore(str(self.folder / "table"), {}, schema, LAYOUT, chunk_rows=100)

    def merge(self, rows: Rows, sequence: int = LOADED, *, looks_up: bool = True) -> BucketReport:
        """Merge rows of one sequence, or of a load; a value of `GONE` deletes. An overwrite does not look up."""
        name = partial(fresh, compacted_name, 9)
        values = [{"device": device, "number": number, "value": value} for (device, number), value in rows.items()]
        batch = pa.RecordBatch.from_pylist(values, schema=COLUMNS)
        batch = batch.append_column(SEQUENCE, pa.array([sequence] * len(rows), pa.int64()))
        gone = pa.array([value is GONE for value in rows.values()], pa.bool_())
        writer = RunWriter(LAYOUT, self.store.storage, ("source", 0), name)
        writer.write(batch.append_column(DELETE, gone))
        files, dead = (tuple(self.files.values()), self.tombstones) if looks_up else ((), ())
        plan = BucketPlan(0, parts_by_bucket(writer.finish())[0], files, dead)
        report = merge_bucket(MergeFlow(self.store, name, str(self.folder / "dead"), sequence == LOADED), plan)
        removed = report.removed if looks_up else tuple(self.files)
        self.files = {path: file for path, file in self.files.items() if path not in removed}
        self.files |= {file.path: ActiveFile(file.path, file.size_bytes, 0, ("0",)) for file in report.files}
        self.tombstones += tuple(file.path for file in report.tombstones)
        return report

    def rows(self) -> dict[tuple[str, int], int]:
        rows = [row for path in self.files for row in self.store.read(path).to_pylist()]
        return {(row["device"], row["number"]): row["value"] for row in rows}


def test_a_later_load_replaces_an_earlier_one_and_never_a_record(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.merge({("a", 1): 1, ("a", 2): 2})
    bucket.merge({("a", 2): 20}, sequence=7)
    report = bucket.merge({("a", 1): 10, ("a", 2): 200, ("a", 3): 30})
    assert bucket.rows() == {("a", 1): 10, ("a", 2): 20, ("a", 3): 30}
    assert report.skipped == ((("source", 0), 1),)


def test_records_of_one_order_change_nothing_again(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.merge({("a", 1): 1, ("a", 2): GONE}, sequence=7)
    report = bucket.merge({("a", 1): 5, ("a", 3): 3}, sequence=7)
    assert bucket.rows() == {("a", 1): 1, ("a", 3): 3} and not report.removed


@pytest.mark.parametrize("restores", [False, True])
def test_a_load_restores_a_deleted_key_only_after_an_overwrite(tmp_path: Path, restores: bool) -> None:
    bucket = Bucket(tmp_path)
    bucket.merge({("a", 1): 1, ("a", 2): 2, ("a", 3): 3}, sequence=5)
    bucket.merge({("a", 1): GONE, ("a", 2): GONE}, sequence=6)
    assert bucket.rows() == {("a", 3): 3}
    if restores:
        bucket.merge({("a", 1): 10}, looks_up=False)
        assert bucket.rows() == {("a", 1): 10}
    bucket.merge({("a", 1): 11, ("a", 2): 21})
    assert bucket.rows() == ({("a", 1): 11} if restores else {("a", 3): 3})
    bucket.merge({("a", 1): 12}, sequence=4)
    assert bucket.rows() == ({("a", 1): 11} if restores else {("a", 3): 3}), "older than the delete"


def test_k4_an_existing_chunk_is_recognized_by_its_name(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    rows = {("a", number): number for number in range(50)}
    bucket.merge(rows)
    report = bucket.merge(rows)
    assert (report.files, report.removed) == ((), ())
    assert report.skipped == ((("source", 0), 50),) and bucket.rows() == rows
