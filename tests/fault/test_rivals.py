"""A second process of the same job, by mistake or resumed too late, is refused; no row is written twice."""

from __future__ import annotations

import signal
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import FencedError
from tests.support.jobs import assert_every_record_once, numbered, numbered_job
from tests.support.kafka import Produce, Topics
from tests.support.pipes import run_in_process
from tests.support.processes import command_json, penstock
from tests.support.waiting import wait_until


def test_a_process_stopped_during_its_commit_and_woken_after_another_moved_on_is_refused(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(300)))
    # The first commit starts the partitions; the second is the batch.
    with penstock("run", str(job), "--once", "--json", failpoint="checked:stop:2") as sleeper:
        sleeper.wait_stopped()
        run_in_process(job, spark)
        sleeper.send(signal.SIGCONT)
        assert sleeper.exit_code() == FencedError.exit_code
    assert_every_record_once(tmp_path / "table", places)
    assert command_json("verify", str(job))["ok"]


def test_a_second_process_started_by_mistake_is_refused_and_the_first_goes_on(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    job = numbered_job(tmp_path, bootstrap, name)
    places = produce(name, numbered(range(100)))
    with penstock("run", str(job), "--json") as first, penstock("run", str(job), "--json") as second:
        for item in (first, second):
            item.wait_for("job started")

        def one_ends() -> bool:
            places.extend(produce(name, numbered(range(100))))
            return first.ended(0.5) or second.ended(0.5)

        wait_until(one_ends)
        loser, winner = (first, second) if first.ended(0) else (second, first)
        assert loser.exit_code() == FencedError.exit_code, loser.last_words
        winner.send(signal.SIGTERM)
        assert winner.exit_code() == 0
    run_in_process(job, spark)
    assert_every_record_once(tmp_path / "table", places)
