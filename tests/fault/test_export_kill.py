"""Real exporters killed, stopped and started twice: every record is in one file of its type, once.

Every step is tried with processes that need no Kafka and no Spark (`tests.support.export_process`), some with whole
jobs.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.errors import FencedError
from penstock.failpoints import BATCH_STEPS, ENVIRONMENT_NAME
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.support.export_process import export_world
from tests.support.exports import event, export_job, places_in, type_of
from tests.support.forked import Forked, has_stopped
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.pipes import run_in_process
from tests.support.processes import penstock, run_once
from tests.support.waiting import wait_until

TYPES = [f"T{number}" for number in range(6)]
STEPS = ("staged", "type_committed:4", "renaming:9", "marked")
"""With the visit at which it is killed, if that is not the first."""
COMMON_STEPS = (
    *("started", *BATCH_STEPS, "checked:2", "checked:3", "checked:5"),
    *("type_committed", "type_committed:2", "type_committed:3", "marked"),
)
"""The first check is that of a batch, the next ones those of its three types, the fifth that of the job."""
PLAIN_STEPS = ("renaming", "renaming:2", "renaming:5", "renamed")
SECONDS_MAX = 60.0
GROWTH = 20
"""Records that a partition gets between two kills."""
MORE = "limits: {transient_retries: 10, shutdown: 30s}\nspark: {conf: {spark.driver.memory: 512m}}\n"


@contextmanager
def exporter(folder: Path, form: str, token: int, records: int, failpoint: str = "") -> Iterator[Forked]:
    """A process without Kafka and Spark."""
    arguments = [str(folder), form, str(token), str(records)]
    process = Forked("tests.support.export_process", arguments, {ENVIRONMENT_NAME: failpoint})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def export(folder: Path, form: str, records: int, failpoint: str = "", token: int = 1) -> int:
    """One process to its end; its exit code."""
    with exporter(folder, form, token, records, failpoint) as process:
        code = process.wait(SECONDS_MAX)
        assert code in (0, KILLED), process.stderr.read()
        return code


def killed_at(step: str) -> str:
    name, _, visit = step.partition(":")
    return f"{name}:kill:{visit or 1}"


def assert_proved(job: Path) -> None:
    """`penstock verify` proves the job."""
    assert verify(load_job(job)).ok


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_killed_at_every_step_in_turn(tmp_path: Path, form: str) -> None:
    """Each step kills one process; the next, killed at the next step, has to continue from there.

    One type cannot be written all the while, and catches up at the end.
    """
    records = 0
    export_world(tmp_path, form, 0).break_folder("D")
    for step in (*COMMON_STEPS, *(PLAIN_STEPS if form == "parquet" else ())):
        records += GROWTH
        world = export_world(tmp_path, form, records)
        assert export(tmp_path, form, records, killed_at(step)) == KILLED, step
        world.types = dict.fromkeys("ABC", "")
        world.check_nothing_twice()
    world = export_world(tmp_path, form, records)
    world.heal_folder("D")
    for step in ("type_committed", "committed"):
        assert export(tmp_path, form, records, killed_at(step)) == KILLED, f"catch-up at {step}"
    assert export(tmp_path, form, records) == 0
    world.check()


@pytest.mark.parametrize("form", ["parquet", "delta"])
@pytest.mark.parametrize("step", ["checked:stop:3", "type_committed:stop:2", "checked:stop:7", "committed:stop"])
def test_process_resumed_after_a_takeover_writes_no_row_twice(tmp_path: Path, form: str, step: str) -> None:
    with exporter(tmp_path, form, 1, 40, step) as sleeper:
        wait_until(lambda: has_stopped(sleeper))
        assert export(tmp_path, form, 60, token=2) == 0
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(SECONDS_MAX) == 0, sleeper.stderr.read()
    export_world(tmp_path, form, 60).check()
    assert export(tmp_path, form, 80, token=2) == 0
    export_world(tmp_path, form, 80).check()


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_four_processes_on_the_same_partitions_with_growing_tokens(tmp_path: Path, form: str) -> None:
    with (
        exporter(tmp_path, form, 1, 150) as one,
        exporter(tmp_path, form, 2, 150) as two,
        exporter(tmp_path, form, 3, 150) as three,
        exporter(tmp_path, form, 4, 150) as four,
    ):
        for process in (one, two, three, four):
            assert process.wait(SECONDS_MAX) == 0, process.stderr.read()
    world = export_world(tmp_path, form, 150)
    world.check()
    assert {world.state.of(partition).token for partition in world.partitions} == {4}


def write_job(folder: Path, bootstrap: str, topic: str, more: str = "", **sections: str) -> Path:
    path = folder / "job.yaml"
    types = [type_of(item) for item in TYPES]
    path.write_text(export_job(bootstrap, folder / "root", topic, types=types, more=MORE + more, **sections))
    return path


def mixed(numbers: Iterable[int], later: int = 0) -> list[str]:
    """Events of six types over three days, or as many days later; every thirteenth is of no known type."""
    return [
        event("unlisted" if number % 13 == 12 else TYPES[number % 6], number, day=later + number % 3)
        for number in numbers
    ]


def assert_exported_once(root: Path, places: list[tuple[int, int]]) -> None:
    expected, actual = Counter(places), places_in(root)
    missing, extra = expected - actual, actual - expected
    assert not missing and not extra, f"missing {sorted(missing)[:5]}, too many {sorted(extra)[:5]}"


def assert_right_rows(root: Path) -> None:
    """Each row is in the folder of its type and of its day."""
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
    run_in_process(job, spark)
    assert_exported_once(tmp_path / "root", places)
    assert_right_rows(tmp_path / "root")
    assert_proved(job)


def test_an_exporter_stopped_between_its_renames_and_woken_after_another_went_on_doubles_nothing(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = write_job(tmp_path, bootstrap, name)
    places = produce(name, mixed(range(300)))
    with penstock("run", str(job), "--json", failpoint="renaming:stop:7") as sleeper:
        sleeper.wait_stopped()
        places += produce(name, mixed(range(300, 600)))
        run_in_process(job, spark)
        assert_exported_once(tmp_path / "root", places)
        sleeper.send(signal.SIGCONT)
        # Its types are committed, and its commit of the job comes too late.
        assert sleeper.exit_code() == FencedError.exit_code, sleeper.last_words
    places += produce(name, mixed(range(600, 700)))
    run_in_process(job, spark)
    assert_exported_once(tmp_path / "root", places)
    assert_proved(job)


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
        run_in_process(job, spark)
        sleeper.send(signal.SIGCONT)
        assert sleeper.exit_code() == FencedError.exit_code, sleeper.last_words
    assert_exported_once(tmp_path / "root", places)
    assert_proved(job)
