"""`kill -9` of the real process at every named step: start again, and every record is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.failpoints import BATCH_STEPS, COMPACT_STEPS, START_STEPS, VACUUM_STEPS
from tests.support.jobs import KILLED, assert_every_record_once, holds, numbered, numbered_job, offsets_in
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at, run_in_process
from tests.support.processes import command_json, penstock, run_once


def test_killed_at_every_step_of_start_write_and_commit_in_turn(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    """Each step kills one process; the next process, killed at the next step, has to live with what it left."""
    name = topic(partitions=3)
    job = numbered_job(tmp_path, bootstrap, name)
    places: list[tuple[int, int]] = []
    for number, step in enumerate([*START_STEPS, *BATCH_STEPS]):
        places += produce(name, numbered(range(number * 100, number * 100 + 100)))
        assert run_once(job, failpoint=f"{step}:kill") == KILLED, step
        offsets = offsets_in(tmp_path / "table")
        assert set(offsets.values()) <= {1}, f"rows twice after a kill at {step}"
    run_in_process(job, spark)
    assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(job))["ok"]


def test_killed_in_the_second_batch_of_a_running_process(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(500)))
    with penstock("run", str(job), "--json", failpoint="staged:kill:2") as process:
        process.wait_for("batch committed")
        places += produce(name, numbered(range(500, 1000)))
        assert process.exit_code() == KILLED
    assert holds(tmp_path / "table") == 500
    run_in_process(job, spark)
    assert_every_record_once(tmp_path / "table", places)


def test_killed_during_compact_and_vacuum_nothing_is_lost_or_doubled(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(200)))
    with pytest.raises(CrashError):
        run_in_process(job, spark, crash_at("staged"))
    places += produce(name, numbered(range(200, 400)))
    run_in_process(job, spark)
    for verb, steps in (("compact", COMPACT_STEPS), ("vacuum", VACUUM_STEPS)):
        for step in steps:
            with penstock(verb, str(job), failpoint=f"{step}:kill") as process:
                assert process.exit_code() == KILLED, step
            assert_every_record_once(tmp_path / "table", places)
        command_json(verb, str(job))
        assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(job))["ok"]
