"""`schema: infer`: the first records of a JSON job fix its fields, and its table keeps them."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.engine.dry_run import dry_run
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import NoFieldsYetError, TransientError, UserError
from penstock.job.faults import JobFileError
from penstock.job.spec import JobSpec
from penstock.tables.inference import with_seen_fields
from penstock.tables.registry import check_jobs, kind_of, load_job
from penstock.watch.status import status
from penstock.watch.verify import verify
from tests.support.kafka import Produce, Topics
from tests.support.memory_log import MemoryLog
from tests.support.pipes import Recorder

DELTA = "{delta: {path: ./table}}"
KEYED = "{keyed: {path: ./table, row_keys: [id], sequence: at, delete: gone, buckets: 4}}"


def write_job(folder: Path, topic: str, table: str, *more: str, schema: str = "infer") -> Path:
    path = folder / "job.yaml"
    log = f'log: {{kafka: {{bootstrap: "nowhere:9092", topics: [{topic}]}}}}'
    path.write_text("\n".join(["job: orders", log, "decode: json", f"schema: {schema}", f"table: {table}", *more]))
    return path


def run_once(path: Path, spark: SparkSession) -> Recorder:
    recorder = Recorder()
    job, environment = load_job(path), Environment(listener=recorder)
    Loop(lambda: open_rounds(job, spark, environment), True, threading.Event(), Retries(0), recorder).run()
    return recorder


def rows(job: JobSpec, *columns: str) -> list[tuple[object, ...]]:
    return sorted(pl.read_delta(job.table.path).select(columns).rows(), key=str)


def test_the_first_records_fix_the_fields_and_later_ones_follow_the_policy(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(2)
    produce(name, ['{"id": 1, "price": 2, "items": [{"sku": "a"}]}', "not JSON"], partition=0)
    produce(name, ['{"id": 2, "price": 2.5}'], partition=1)
    path = write_job(tmp_path, name, DELTA, "columns: {day: day(kafka.timestamp)}", "on: {new_column: quarantine}")
    recorder = run_once(path, spark)
    [inferred] = recorder.named("schema inferred")
    assert inferred["fields"] == {"id": "long", "items": "list<{sku: string}>", "price": "double"}
    produce(name, ['{"id": "three"}', '{"id": 4, "color": "red"}', '{"id": 5}'], partition=0)
    assert not run_once(path, spark).named("schema inferred")
    job = load_job(path)
    assert rows(job, "id", "price", "items") == [(1, 2.0, [{"sku": "a"}]), (2, 2.5, None), (5, None, None)]
    assert status(job).partitions[0].totals.quarantined == 3
    assert verify(job).ok


def test_fields_that_only_computed_columns_read_are_known_after_a_restart(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"user": {"name": "ann"}, "id": 1}'])
    path = write_job(tmp_path, name, DELTA, "columns: {who: user.name, when: day(user.since)}", "drop: [user]")
    run_once(path, spark)
    produce(name, ['{"user": {"name": "bob", "since": "2026-03-01"}, "id": 2}'])
    run_once(path, spark)
    job = load_job(path)
    assert [row[:2] for row in rows(job, "id", "who", "when")] == [(1, "ann"), (2, "bob")]
    assert "user" not in pl.read_delta(job.table.path).columns
    assert verify(job).ok


def test_fields_that_cannot_be_columns_are_reported(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"id": 1, "day": "hidden by a computed column", "a b": 2, "nothing": null}'])
    path = write_job(tmp_path, name, DELTA, "columns: {day: day(kafka.timestamp)}", "on: {new_column: ignore}")
    recorder = run_once(path, spark)
    assert recorder.named("fields left out")[0]["fields"] == ["a b", "day"]
    assert rows(load_job(path), "id") == [(1,)]


def test_keys_and_types_of_a_keyed_table_are_inferred(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"id": 1, "at": 5, "gone": false, "x": "a"}', '{"id": 2, "at": 5, "x": "b"}'])
    path = write_job(tmp_path, name, KEYED)
    run_once(path, spark)
    produce(name, ['{"id": 1, "at": 4, "x": "older"}', '{"id": 2, "at": 6, "gone": true}', '{"id": 3, "at": 1}'])
    run_once(path, spark)
    job = load_job(path)
    assert rows(job, "id", "at", "x") == [(1, 5, "a"), (3, 1, None)]
    assert verify(job).ok


def test_a_key_that_no_record_has_is_a_fault_of_the_job_file_and_creates_nothing(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"key": 1}'])
    path = write_job(tmp_path, name, KEYED)
    with pytest.raises(JobFileError) as caught:
        run_once(path, spark)
    assert next((fault.line, fault.key) for fault in caught.value.faults) == (5, "table.keyed.row_keys[0]")
    assert not (tmp_path / "table").exists()


def test_without_records_the_job_waits_and_creates_nothing(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    path = write_job(tmp_path, name, DELTA)
    run_once(path, spark)
    produce(name, [None, "[1]", "{}"])
    run_once(path, spark)
    assert not (tmp_path / "table").exists()
    with pytest.raises(NoFieldsYetError):
        dry_run(load_job(path), 100)
    assert not verify(load_job(path)).ok
    produce(name, ['{"id": 1}'])
    [output] = dry_run(load_job(path), 100).outputs
    assert output.rows["id"].to_pylist()[-1] == 1
    run_once(path, spark)
    assert rows(load_job(path), "id", "kafka_offset") == [(1, 3), (None, 2)]


def test_of_two_processes_that_infer_at_once_the_second_takes_the_schema_of_the_first(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession, log: MemoryLog
) -> None:
    name = topic()
    produce(name, ['{"id": 1}'])
    path = write_job(tmp_path, name, DELTA)
    early = with_seen_fields(load_job(path), log.view(load_job(path).log), Environment())
    produce(name, ['{"id": 2, "size": 3}'])
    with closing(open_rounds(load_job(path), spark)):
        pass
    with pytest.raises(TransientError, match="another process has inferred"):
        kind_of(early).open_writer(early, spark, log.view(early.log), Environment())
    run_once(path, spark)
    assert rows(load_job(path), "id", "size") == [(1, None), (2, 3)]


def test_with_start_latest_the_older_records_show_the_fields(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    produce(name, ['{"id": 1}'])
    path = write_job(tmp_path, name, DELTA)
    path.write_text(path.read_text().replace(f"topics: [{name}]", f"topics: [{name}], start: latest"))
    run_once(path, spark)
    produce(name, ['{"id": 2}'])
    run_once(path, spark)
    assert rows(load_job(path), "id") == [(2,)]


def test_a_table_with_rows_of_a_stated_schema_is_refused_and_one_without_rows_follows(
    tmp_path: Path, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic()
    job = load_job(write_job(tmp_path, name, DELTA, schema="{other: string}"))
    with closing(open_rounds(job, spark)):
        pass
    produce(name, ['{"id": 1}'])
    run_once(write_job(tmp_path, name, DELTA), spark)
    assert rows(load_job(tmp_path / "job.yaml"), "id") == [(1,)]
    (tmp_path / "stated").mkdir()
    run_once(write_job(tmp_path / "stated", name, DELTA, schema="{id: long}"), spark)
    with pytest.raises(UserError, match="created with a stated schema"):
        load_job(write_job(tmp_path / "stated", name, DELTA))


def test_check_accepts_it_and_finds_what_it_can(tmp_path: Path) -> None:
    good, bad = (
        check_jobs([write_job(tmp_path, "web", table)])[0]
        for table in (KEYED, KEYED.replace("buckets: 4", "buckets: many"))
    )
    assert (good.faults, [fault.key for fault in bad.faults]) == ((), ["table.keyed.buckets"])
