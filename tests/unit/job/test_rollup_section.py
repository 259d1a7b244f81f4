"""`table.rollup` in a job file: each mistake is reported once, at its key, with a hint."""

from __future__ import annotations

import pytest

from penstock.job.spec import job_of
from penstock.tables.rollup.spec import RollupSpec, Window
from tests.unit.job.conftest import Faults, Load

JOB = """\
job: rollups
log: {kafka: {bootstrap: "kafka-1:9092", TOPICS}}
decode: telegraf
table:
  rollup:
    path: s3://lake/rollups
    STATED
MORE"""


def job(stated: str = "lateness: 2m", more: str = "", topics: str = "topics: [telegraf]") -> str:
    return JOB.replace("TOPICS", topics).replace("STATED", stated).replace("MORE", more)


def test_a_rollup_needs_only_a_path(load: Load) -> None:
    spec = job_of(load(job()), RollupSpec).table
    assert spec.windows == (
        Window("1m", 60_000),
        Window("10m", 600_000),
        Window("1h", 3_600_000),
        Window("24h", 86_400_000),
    )
    assert (spec.partials_path, spec.lateness_ms) == ("s3://lake/rollups_partials", 120_000)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (job("lateness: 120"), "lateness", "expected a duration, found a number; write the unit too"),
        (job("lateness: -5m"), "lateness", "'-5m' is not a duration"),
        (job("latenes: 2m"), "latenes", "unknown key; did you mean lateness?"),
        (job("windows: 1m"), "windows", "expected a list"),
        (job("windows: []"), "windows", "names no window"),
        (job("windows: [60]"), "windows[0]", "expected a duration, found a number; write the unit too"),
        (job("windows: [500ms]"), "windows[0]", "from 1s to 366d"),
        (job("windows: [10m, 1m]"), "windows[1]", "the shortest comes first"),
        (job("windows: [1m, 90s]"), "windows[1]", "90s is not a multiple of 1m"),
        (job("late: correct"), "late", "is not one of drop, update"),
        (job("aggregates: [frist]"), "aggregates[0]", "did you mean first?"),
        (job("not_before: 2020-13-01"), "not_before", "is not a date"),
        (job("partials: s3://lake/rollups/p"), "partials", "unknown key"),
        (job("publish: rollups"), "publish", "expected a mapping, found a string; write {topic: ...}"),
        (job("publish: {topic: telegraf}"), "publish.topic", "it would read what it publishes"),
        (
            job("publish: {topic: tele.out}", topics='topic_pattern: "tele.*"'),
            "publish.topic",
            "it would read what it publishes",
        ),
    ],
)
def test_a_mistake_is_reported_once_and_at_its_key(faults: Faults, text: str, key: str, message: str) -> None:
    ((_, found_key, fault),) = faults(text)
    assert found_key == f"table.rollup.{key}"
    assert message in fault


def test_a_topic_of_the_same_name_in_another_cluster_is_another_topic(load: Load) -> None:
    spec = job_of(load(job('publish: {topic: telegraf, bootstrap: "kafka-2:9092"}')), RollupSpec).table
    assert spec.publish is not None
    assert spec.publish.topic == "telegraf"


@pytest.mark.parametrize("more", ["schema: {a: int}", "columns: {a: kafka.offset}", "on: {tombstone: row}"])
def test_keys_of_row_tables_are_refused_once(faults: Faults, more: str) -> None:
    assert len(faults(job(more=more))) == 1


def test_a_kind_that_is_misspelled_is_the_only_fault(faults: Faults) -> None:
    ((_, _, fault),) = faults(job().replace("rollup:", "rolup:"))
    assert "did you mean rollup?" in fault


def test_a_tombstone_is_not_a_row_of_a_rollup(faults: Faults) -> None:
    [(_, key, text)] = faults(job() + "on: {tombstone: row}\n")
    assert (key, "a tombstone has no points" in text) == ("on.tombstone", True)
