"""Real processes of a rollup are killed, stopped and starved: each window is right, and published once per revision."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.errors import TransientError
from tests.fault.rollups import Rollup
from tests.support.full_disk import file_size_limit, spark_workers
from tests.support.jobs import KILLED
from tests.support.kafka import Topics
from tests.support.pipes import once_at, run_in_process
from tests.support.processes import PenstockProcess, command_json, penstock, run_once
from tests.support.waiting import wait_until

STEPS = (
    "created:2",
    "checked:2",
    "committed",
    "quarantined",
    "close_begun",
    "close_staged",
    "close_landed",
    "publish_sent:2",
    "publish_committed",
)
"""With the visit, where it is not the first. Steps of a batch after which nothing else is stored: `test_kill`."""
DAYS_SECONDS = 2 * 86_400
NO_SPACE = "no space left"


def test_killed_at_every_step_in_turn_a_rollup_counts_closes_and_publishes_everything_once(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    """Each step kills one process, and the next recovers from its state; the day closes after all of them."""
    # Without claims a process reads a stage of all partitions at once, and each revision holds whole stages.
    rollup = Rollup(tmp_path, bootstrap, topic(3), topic(2), partitions=3, late="update", claims="static")
    job = rollup.job()
    for step in STEPS:
        rollup.feed(late=bool(rollup.stages))
        die_at(job, step)
    die_while_compacting(job)
    run_in_process(job, spark)
    assert not [item for item in rollup.closed() if item.interval == "24h"]
    rollup.assert_right_and_published()
    assert_proven(rollup, job, "--values", "--all")

    rollup.feed(skipped_seconds=DAYS_SECONDS)
    die_at(job, "cleaned")
    run_in_process(job, spark)
    assert [window for window in rollup.closed() if window.interval == "24h"]
    rollup.assert_right_and_published()
    assert_proven(rollup, job, "--values", "--all")
    (windows,) = [check for check in command_json("verify", str(job))["checks"] if check["name"] == "windows"]
    assert windows["windows_without_partials"] > 0


def test_processes_share_a_rollup_and_its_leader_dies_in_a_close_and_another_sleeps_in_a_publication(
    tmp_path: Path, bootstrap: str, topic: Topics
) -> None:
    """The points of a series are in all partitions, so both processes read some."""
    rollup = Rollup(tmp_path, bootstrap, topic(4), topic(2), partitions=4)
    with penstock("run", str(rollup.shared_job("first")), "--json") as first:
        rollup.feed()
        wait_until(rollup.done, words=lambda: first.last_words)
        with penstock("run", str(rollup.shared_job("second")), "--json", failpoint="close_staged:kill") as leader:
            claims(leader, 2)
            first.send(signal.SIGTERM)
            assert first.exit_code() == 0, first.last_words
            claims(leader, 2)
            with penstock("run", str(rollup.shared_job("third")), "--json") as other:
                claims(other, 2)
                rollup.feed()
                assert leader.exit_code() == KILLED, leader.last_words
                wait_until(rollup.done, words=lambda: other.last_words)
                put_to_sleep_while_publishing(rollup, other)
    rollup.assert_right_and_published()
    assert_proven(rollup, rollup.job(), "--values", "--all")


def test_a_broker_killed_between_a_transactions_records_and_its_commit_loses_and_duplicates_no_window(
    tmp_path: Path, spark: SparkSession
) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        topics = Topics(cluster.bootstrap)
        rollup = Rollup(tmp_path, cluster.bootstrap, topics(2), topics(2), partitions=2, claims="static")
        job = rollup.job()
        rollup.feed()

        def restart() -> None:
            cluster.kill()
            cluster.restart()

        run_in_process(job, spark, once_at("publish_sent", restart))
        rollup.assert_right_and_published()
        assert_proven(rollup, job)


def test_a_full_disk_stops_batches_with_a_clear_error_and_later_everything_is_there_once(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession
) -> None:
    rollup = Rollup(tmp_path, bootstrap, topic(2), topic(2), partitions=2, retries=0)
    job = rollup.job()
    rollup.feed()
    run_in_process(job, spark)
    rollup.feed()
    with file_size_limit(spark_workers(), size_bytes=100), pytest.raises(TransientError, match=NO_SPACE):
        run_in_process(job, spark)
    run_in_process(job, spark)
    rollup.assert_right_and_published()
    assert_proven(rollup, job, "--values", "--all")


def die_at(job: Path, step: str) -> None:
    point, _, visit = step.partition(":")
    assert run_once(job, failpoint=f"{point}:kill:{visit or 1}") == KILLED, step


def die_while_compacting(job: Path) -> None:
    """Every batch left a file of partials for each partition, and every close some files of windows."""
    for step in ("compact_staged", "compact_committed", "compact_committed"):
        with penstock("compact", str(job), failpoint=f"{step}:kill") as process:
            assert process.exit_code() == KILLED, process.last_words


def put_to_sleep_while_publishing(rollup: Rollup, other: PenstockProcess) -> None:
    """One more process sleeps in a publication past its lease, and is fenced when it wakes; both exit."""
    with penstock("run", str(rollup.shared_job("fourth")), "--json", failpoint="publish_sent:stop") as sleeper:
        claims(sleeper, 2)
        rollup.feed()
        sleeper.wait_stopped()
        wait_until(rollup.done, words=lambda: other.last_words)
        sleeper.send(signal.SIGCONT)
        sleeper.wait_for("publisher fenced")
        rollup.feed()
        wait_until(rollup.done, words=lambda: f"{other.last_words}{sleeper.last_words}")
        for process in (other, sleeper):
            process.send(signal.SIGTERM)
            assert process.exit_code() == 0, process.last_words


def claims(process: PenstockProcess, count: int) -> None:
    """Wait until the process has won so many partitions. The process with the lowest one does the closes."""
    for _ in range(count):
        process.wait_for("claim won")


def assert_proven(rollup: Rollup, job: Path, *options: str) -> None:
    """`verify` proves everything, and the totals are those of the produced records."""
    assert command_json("verify", str(job), "--published", *options)["verdict"] == "proven"
    assert_totals(rollup, job)


def assert_totals(rollup: Rollup, job: Path) -> None:
    (report,) = command_json("status", str(job))
    assert sum(item["quarantined"] for item in report["partitions"]) == rollup.bad
    assert sum(item["read"] for item in report["partitions"]) == rollup.points + rollup.bad
    assert report["rollup"]["points"] == rollup.points
    assert {window["late"] for window in report["rollup"]["windows"]} == {0}
