"""A wrong topic, a broker that is away, a path without permission, a full disk: a clear error, and nothing is lost."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.embedded.kafka import new_broker
from penstock.engine.loop import Loop, Retries
from penstock.engine.round import open_rounds
from penstock.errors import TransientError, UnreachableError, UserError
from penstock.job.spec import kafka_of
from penstock.logs.kafka.log import KafkaLog
from penstock.staging.isolate import UnhealthyTasksError
from penstock.storage.failures import missing_credentials
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.support.exports import ExportPipe
from tests.support.full_disk import file_size_limit, spark_workers
from tests.support.jobs import assert_every_record_once, numbered, numbered_job
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, Recorder, ids, once_at, run_in_process
from tests.support.processes import penstock
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import run_once

# Makes the modes of files count for a process, also where it is root: it gives up CAP_DAC_OVERRIDE (1) for good.
_OBEYING_MODES = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, 1, 0, 0, 0):
    sys.exit("root cannot give up its override of file modes")
os.execv(sys.argv[1], sys.argv[1:])
"""
OBEYING_MODES = (sys.executable, "-c", _OBEYING_MODES)


@pytest.fixture
def unused_address() -> str:
    """An address at which nothing answers."""
    broker = new_broker()
    return broker.address


def test_a_wrong_topic_name_is_reported_with_the_closest_match(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    name = topic()
    job = load_job(numbered_job(tmp_path, bootstrap, name[:-1]))
    with pytest.raises(UserError) as raised:
        run_once(job, spark)
    assert raised.value.primary == f"topic {name[:-1]} does not exist on {bootstrap}"
    assert raised.value.hint == f"did you mean {name}?"


def test_a_run_ends_at_once_if_its_broker_cannot_be_reached_and_makes_nothing(
    tmp_path: Path, unused_address: str, spark: SparkSession
) -> None:
    job = load_job(numbered_job(tmp_path, unused_address, "any"))
    recorder = Recorder()
    with pytest.raises(UnreachableError) as raised:
        Loop(lambda: open_rounds(job, spark), True, threading.Event(), Retries(9), recorder).run()
    assert not recorder.events
    assert unused_address in raised.value.primary
    assert "Connection refused" in raised.value.primary
    assert not (tmp_path / "table").exists(), "nothing is made for a log that cannot be read"


def test_ssl_to_a_plaintext_port_ends_at_once_with_the_reason(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    job = load_job(numbered_job(tmp_path, bootstrap, topic()))
    job = replace(job, log=replace(kafka_of(job), client_settings={"security.protocol": "SSL"}))
    with pytest.raises(UnreachableError) as raised:
        run_once(job, spark)
    assert "SSL" in raised.value.primary


def test_an_export_makes_nothing_for_a_log_that_cannot_be_read(export: ExportPipe, unused_address: str) -> None:
    export.describe("any")
    export.path.write_text(export.path.read_text().replace(export.bootstrap, unused_address))
    with pytest.raises(TransientError):
        open_rounds(export.job, export.spark, open_log=lambda job: KafkaLog(kafka_of(job), call_seconds_max=0.5))
    assert [item.name for item in export.folder.iterdir()] == [export.path.name]


def test_a_table_path_below_a_file_is_the_users_error(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    job = load_job(numbered_job(tmp_path, bootstrap, topic()))
    (tmp_path / "table").write_text("not a folder")
    with pytest.raises(UserError) as raised:
        run_once(job, spark)
    assert str(tmp_path / "table") in raised.value.primary


def test_jobs_of_one_process_fail_independently_and_continue_once_fixed(
    tmp_path: Path, bootstrap: str, unused_address: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    """One has no broker; one may not create its table; one may not write into the table that it has."""
    name = topic(2)
    places = produce(name, numbered(range(100)))
    away = job_file(tmp_path / "away", unused_address, "any")
    closed = job_file(tmp_path / "closed", bootstrap, name)
    sealed = job_file(tmp_path / "sealed", bootstrap, name)
    (sealed.parent / "table" / "_delta_log").mkdir(parents=True)
    forbidden = (closed.parent, sealed.parent / "table")
    for folder in forbidden:
        folder.chmod(0o500)
    with penstock("run", str(away), str(closed), str(sealed), "--once", "--json", through=OBEYING_MODES) as process:
        # Of the first job that failed.
        assert process.exit_code() == TransientError.exit_code
        failed = {item["job"]: item for item in process.rest() if item["event"] == "job failed"}
        assert f"Kafka at {unused_address} does not answer" in process.errors
        assert "hint: check that the broker is up" in process.errors
        assert 'File "' not in process.errors.rpartition("Kafka at")[2]
    assert {name: event["error"] for name, event in failed.items()} == {
        "away": "UnreachableError",
        "closed": "UserError",
        "sealed": "UserError",
    }
    assert "permission" in failed["closed"]["reason"]
    assert "permission" in failed["sealed"]["reason"]
    assert not (away.parent / "table").exists()
    for folder in forbidden:
        folder.chmod(0o700)
    for job in (closed, sealed):
        run_in_process(job, spark)
        assert_every_record_once(job.parent / "table", places)
        assert verify(load_job(job)).ok


def test_a_disk_that_is_full_while_files_are_written_commits_nothing_and_later_everything_once(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(2)
    job = load_job(numbered_job(tmp_path, bootstrap, name))
    places = produce(name, numbered(range(100)))
    run_once(job, spark)
    places += produce(name, numbered(range(100, 200)))
    with file_size_limit(spark_workers(), size_bytes=100), pytest.raises(TransientError) as raised:
        run_once(job, spark)
    assert "no space left" in str(raised.value)
    assert pl.read_delta(job.table.path).height + pl.read_delta(quarantine_of(job)).height == 100
    run_once(job, spark)
    assert_every_record_once(tmp_path / "table", places)
    assert verify(job).ok


def test_a_full_disk_at_commit_is_reported_and_every_record_lands_once_afterwards(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(2)
    job = load_job(numbered_job(tmp_path, bootstrap, name))
    places = produce(name, numbered(range(100)))
    with file_size_limit([os.getpid()], size_bytes=0, later=True) as fill, pytest.raises(TransientError) as raised:
        run_once(job, spark, once_at("staged", fill))
    assert "no space left" in raised.value.primary
    assert pl.read_delta(job.table.path).height == 0
    run_once(job, spark)
    assert_every_record_once(tmp_path / "table", places)
    assert verify(job).ok


def test_workers_that_cannot_start_are_a_cluster_error_and_quarantine_no_record(
    pipe: Pipe, topic: Topics, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(name, ids(range(50)))
    pipe.describe(name)
    with monkeypatch.context() as broken:
        broken.setattr(pipe.spark.sparkContext, "pythonExec", "/nowhere/python")
        recorder = Recorder()
        with pytest.raises(UnhealthyTasksError) as raised:
            pipe.run_to_end(recorder=recorder)
    assert "/nowhere/python" in raised.value.detail
    assert "PYSPARK_PYTHON" in raised.value.hint
    assert not recorder.named("record isolated")
    assert pipe.rows("id") == []
    pipe.run_to_end()
    assert pipe.column("id") == list(range(50))
    assert pipe.totals().quarantined == 0


def test_missing_credentials_of_a_task_are_those_of_an_executor(spark: SparkSession) -> None:
    text = "an error occurred while loading credentials"
    [error] = (
        spark.sparkContext.parallelize([0], 1).map(lambda _: str(missing_credentials(text, "s3://lake"))).collect()
    )
    assert error.startswith("no credentials for s3://lake on an executor\n")
    assert "spark.executorEnv" in error and "aws_access_key_id" in error
    assert "executor" not in str(missing_credentials(text, "s3://lake"))


def test_a_certificate_missing_on_an_executor_is_a_cluster_error(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(50)))
    pipe.describe(name)
    with pipe.opened() as pipeline:
        settings = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
        pipeline.log.spec = replace(kafka_of(pipe.job), client_settings=settings)  # type: ignore[attr-defined]
        with pytest.raises(TransientError) as raised:
            pipeline.round(flush_now=True)
    assert raised.value.primary == "Kafka's client failed in a Spark task"
    assert "ssl.ca.location failed" in raised.value.detail
    pipe.run_to_end()
    assert pipe.column("id") == list(range(50))
    assert pipe.totals().quarantined == 0


def job_file(folder: Path, bootstrap: str, topic: str, retries: int = 10) -> Path:
    """The job of numbered records, called like its folder."""
    folder.mkdir()
    path = numbered_job(folder, bootstrap, topic, retries=retries)
    path.write_text(path.read_text().replace("job: numbered", f"job: {folder.name}"))
    return path
