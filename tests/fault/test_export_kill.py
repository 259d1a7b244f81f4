"""Real exporters killed, stopped and doubled: every record is in one file of its type, once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from penstock.errors import FencedError
from tests.exports import event, export_job, places_in, type_of
from tests.jobs import KILLED
from tests.kafka import Produce, Topics
from tests.pipes import run_here, wait_until
from tests.processes import command_json, penstock, run_once

TYPES = [f"T{number}" for number in range(6)]
STEPS = ("staged", "renaming:9", "quarantined", "marked")
"""With the visit at which it is hurt, where that is not the first; every step, without Spark: `test_ledger_kill`."""
MORE = "limits: {transient_retries: 10, shutdown: 30s}\nspark: {conf: {spark.driver.memory: 512m}}\n"


def write_job(folder: Path, bootstrap: str, topic: str, more: str = "", **sections: str) -> Path:
    path = folder / "job.yaml"
    types = [type_of(each) for each in TYPES]
    path.write_text(export_job(bootstrap, folder / "root", topic, types=types, more=MORE + more, **sections))
    return path


def mixed(numbers: Iterable[int], later: int = 0) -> list[str]:
    """Events of six types over three days, or as many days later; every thirteenth is of no known type."""
    return [
        event("stranger" if number % 13 == 12 else TYPES[number % 6], number, day=later + number % 3)
        for number in numbers
    ]


def assert_exported_once(root: Path, places: list[tuple[int, int]]) -> None:
    expected, found = Counter(places), places_in(root)
    missing, extra = expected - found, found - expected
    assert not missing and not extra, f"missing {sorted(missing)[:5]}, too many {sorted(extra)[:5]}"


def assert_right_rows(root: Path) -> None:
    """Each row lies in the folder of its type and of its day."""
    for name in TYPES:
        rows = pl.read_parquet(f"{root}/{name}/**/*.parquet", hive_partitioning=True)
        wrong = rows.filter((pl.col("type") != name) | (pl.col("at").str.slice(0, 10) != pl.col("day").cast(pl.String)))
        assert wrong.is_empty(), wrong


def test_an_exporter_killed_at_every_step_in_turn_loses_and_doubles_nothing(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = write_job(tmp_path, bootstrap, name, days="complete_after: 1s")
    places: list[tuple[int, int]] = []
    for number, step in enumerate(STEPS):
        places += produce(name, mixed(range(number * 100, number * 100 + 100), later=number))
        point, _, visit = step.partition(":")
        assert run_once(job, failpoint=f"{point}:kill:{visit or 1}") == KILLED, step
        assert set(places_in(tmp_path / "root").values()) <= {1}, f"rows twice after a kill at {step}"
    run_here(job, spark)
    assert_exported_once(tmp_path / "root", places)
    assert_right_rows(tmp_path / "root")
    assert command_json("verify", str(job))["ok"]


def test_an_exporter_stopped_between_its_renames_and_woken_after_another_went_on_doubles_nothing(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = write_job(tmp_path, bootstrap, name)
    places = produce(name, mixed(range(300)))
    with penstock("run", str(job), "--json", failpoint="renaming:stop:7") as sleeper:
        sleeper.wait_stopped()
        places += produce(name, mixed(range(300, 600)))
        run_here(job, spark)
        assert_exported_once(tmp_path / "root", places)
        sleeper.send(signal.SIGCONT)
        places += produce(name, mixed(range(600, 700)))
        wait_until(lambda: sum(places_in(tmp_path / "root").values()) == 700, words=lambda: sleeper.last_words)
        sleeper.send(signal.SIGTERM)
        assert sleeper.exit_code() == 0
    assert_exported_once(tmp_path / "root", places)
    assert command_json("verify", str(job))["ok"]


def test_two_exporters_of_one_job_by_mistake_end_with_one_and_every_record_once(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = write_job(tmp_path, bootstrap, name)
    places = produce(name, mixed(range(100)))
    with penstock("run", str(job), "--once", "--json", failpoint="checked:stop:2") as sleeper:
        # The second check is that of the first batch: its files are staged.
        sleeper.wait_stopped()
        places += produce(name, mixed(range(100, 200)))
        run_here(job, spark)
        sleeper.send(signal.SIGCONT)
        assert sleeper.exit_code() == FencedError.exit_code, sleeper.last_words
    assert_exported_once(tmp_path / "root", places)
    assert command_json("verify", str(job))["ok"]
