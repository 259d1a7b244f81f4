"""Quarantined records after the job is fixed: in the table once, whatever happens on the way (RULES Q2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import SparkSession

from penstock.engine.replay import ReplayReport, replay
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import InvariantError
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import position_key, replay_key
from penstock.quarantine.replay import ReplayOptions
from tests.support.kafka import Produce, Topics
from tests.support.pipes import CrashError, crash_at, once_at
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import (
    BROKEN,
    EXTRA,
    GOOD,
    Place,
    orders,
    quarantined,
    run_once,
    tables,
    totals,
    with_extra_column,
    written,
)
from tests.support.waiting import wait_until

REPLAY_STEPS = ("replay_staged", "replay_committed", "replay_removed")


@pytest.fixture
def job(bootstrap: str, topic: Topics, tmp_path: Path) -> JobSpec:
    # One test sends a record that is years old: retention by time would take it before it is read.
    return orders(bootstrap, topic(config={"retention.ms": "-1"}), tmp_path)


def test_a_second_replay_finds_nothing_to_do(job: JobSpec, spark: SparkSession, produce: Produce) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN])
    run_once(job, spark)
    replay(with_extra_column(job), spark=spark)
    data, quarantine = tables(job)
    versions = (data.version, quarantine.version)
    assert replay(with_extra_column(job), spark=spark) == ReplayReport(still_bad=1, remaining=1)
    data, quarantine = tables(job)
    assert (data.version, quarantine.version) == versions


def test_a_job_that_never_had_a_bad_record_has_nothing_to_replay(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [GOOD])
    run_once(job, spark)
    assert replay(job, spark=spark) == ReplayReport()


def test_a_large_quarantine_is_replayed_in_bounded_runs(job: JobSpec, spark: SparkSession, produce: Produce) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN, EXTRA, EXTRA, BROKEN, BROKEN, BROKEN, EXTRA])
    run_once(job, spark)
    report = replay(with_extra_column(job), options=ReplayOptions(run_rows_max=2), spark=spark)
    # The pairs are (0, 1), (2, 3), (4, 5) and (6, 7); the third has nothing that fits.
    assert report == ReplayReport(runs=3, replayed=4, still_bad=4, remaining=4)
    assert written(job) == [(0, 0), (0, 2), (0, 3), (0, 7)]
    assert quarantined(job) == [(0, 1), (0, 4), (0, 5), (0, 6)]


def test_only_records_with_the_chosen_error_are_replayed(job: JobSpec, spark: SparkSession, produce: Produce) -> None:
    produce(job.log.topics[0], [EXTRA, '{"id": 4, "note": "y"}'])
    run_once(job, spark)
    report = replay(with_extra_column(job), options=ReplayOptions(error_contains="note"), spark=spark)
    assert report == ReplayReport(runs=1, replayed=1, remaining=1)
    assert written(job) == [(0, 1)]
    assert quarantined(job) == [(0, 0)]


def test_records_that_the_fixed_job_would_filter_stay_in_quarantine(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    keeping = replace(job, on=replace(job.on, tombstone="quarantine"))
    produce(job.log.topics[0], [None, EXTRA], key="k")
    run_once(keeping, spark)
    assert replay(with_extra_column(job), spark=spark) == ReplayReport(runs=1, replayed=1, filtered=1, remaining=1)
    assert quarantined(job) == [(0, 0)]


# Q2: a crash; one that the next replay has to bear is a real kill, at every step, in tests/fault/test_replay_kill.py


@pytest.mark.parametrize(
    ("step", "still_quarantined"), [("replay_committed", [(0, 1)]), ("replay_staged", [(0, 0), (0, 1)])]
)
def test_a_replay_that_crashed_is_finished_by_the_next_start_of_the_job(
    step: str, still_quarantined: list[Place], job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN])
    run_once(job, spark)
    with pytest.raises(CrashError):
        replay(with_extra_column(job), environment=Environment(at_step=crash_at(step)), spark=spark)
    produce(job.log.topics[0], [BROKEN])
    run_once(with_extra_column(job), spark)
    assert quarantined(job) == [*still_quarantined, (0, 2)]
    replay(with_extra_column(job), spark=spark)
    assert written(job) == [(0, 0)]
    assert quarantined(job) == [(0, 1), (0, 2)]


def test_a_crash_in_a_later_run_keeps_what_earlier_runs_did(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA] * 8)
    run_once(job, spark)
    reached: list[str] = []

    def second(step: str) -> None:
        reached.append(step)
        if reached.count("replay_committed") == 2:
            raise CrashError(step)

    two = ReplayOptions(run_rows_max=2)
    with pytest.raises(CrashError):
        replay(with_extra_column(job), options=two, environment=Environment(at_step=second), spark=spark)
    assert quarantined(job) == [(0, number) for number in range(2, 8)]
    # Opening the job finishes the second run: four records are left.
    assert replay(with_extra_column(job), options=two, spark=spark) == ReplayReport(runs=2, replayed=4)
    assert written(job) == [(0, number) for number in range(8)]
    assert quarantined(job) == []


def test_an_unfinished_run_that_history_forgot_stops_everything(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA])
    run_once(job, spark)
    data, _ = tables(job)
    data.commit_actions([], {replay_key(job.name): 1}, {})
    with pytest.raises(InvariantError):
        replay(with_extra_column(job), spark=spark)
    with pytest.raises(InvariantError):
        run_once(job, spark)


# Q2: others at the same time


@pytest.mark.parametrize("step", REPLAY_STEPS)
def test_two_replays_at_once_write_each_record_once(
    step: str, job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN, EXTRA, EXTRA])
    run_once(job, spark)
    rival: list[ReplayReport] = []
    at_step = once_at(step, lambda: rival.append(replay(with_extra_column(job), spark=spark)))
    report = replay(
        with_extra_column(job),
        options=ReplayOptions(run_rows_max=2),
        environment=Environment(at_step=at_step),
        spark=spark,
    )
    assert written(job) == [(0, 0), (0, 2), (0, 3)]
    assert quarantined(job) == [(0, 1)]
    assert report.replayed + rival[0].replayed == 3
    assert totals(with_extra_column(job), spark).replayed == 3


@pytest.mark.parametrize("step", REPLAY_STEPS)
def test_a_running_job_and_a_replay_do_not_disturb_each_other(
    step: str, job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN])
    run_once(job, spark)
    running = open_rounds(with_extra_column(job), spark)

    def next_batch() -> None:
        produce(job.log.topics[0], [GOOD, BROKEN])
        running.round(flush_now=True)

    replay(with_extra_column(job), environment=Environment(at_step=once_at(step, next_batch)), spark=spark)
    produce(job.log.topics[0], [BROKEN])
    running.round(flush_now=True)
    running.close()
    assert written(job) == [(0, 0), (0, 2)]
    assert quarantined(job) == [(0, 1), (0, 3), (0, 4)]


def test_a_replay_leaves_the_positions_of_both_tables_alone(
    job: JobSpec, spark: SparkSession, produce: Produce
) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN])
    run_once(job, spark)
    pipeline = open_rounds(job, spark)
    (partition,) = pipeline.log.partitions()
    pipeline.close()
    key = position_key(job.name, partition)
    replay(with_extra_column(job), spark=spark)
    assert [table.transaction(key) for table in tables(job)] == [2, 2]


def test_offsets_of_two_topic_incarnations_are_distinguished(
    job: JobSpec, spark: SparkSession, produce: Produce, topic: Topics
) -> None:
    name = job.log.topics[0]
    again = replace(job, on=replace(job.on, recreated="restart"))
    produce(name, [EXTRA, BROKEN])
    run_once(again, spark)
    topic.delete(name)
    recreate(topic, name)
    produce(name, [BROKEN, EXTRA])
    run_once(again, spark)
    replay(with_extra_column(again), spark=spark)
    assert written(job) == [(0, 0), (0, 1)]
    assert quarantined(job) == [(0, 0), (0, 1)]
    broken = pl.read_delta(quarantine_of(job))["value"].to_list()
    assert broken == [BROKEN.encode(), BROKEN.encode()]


def recreate(topic: Topics, name: str) -> None:
    """The broker forgets a topic a moment after it was deleted."""

    def made() -> bool:
        try:
            topic(name=name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(made)
