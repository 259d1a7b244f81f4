"""A replay that is killed at each of its steps, and started again by itself or by the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.engine.replay import replay
from penstock.failpoints import REPLAY_STEPS
from penstock.job.spec import JobSpec
from penstock.lake.state import Totals
from penstock.tables.registry import load_job
from tests.support.exports import ExportPipe, event, type_of
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.processes import penstock
from tests.support.quarantined import BROKEN, EXTRA, GOOD, job_text, orders, quarantined, run_once, totals, written


@pytest.fixture
def job(bootstrap: str, topic: Topics, tmp_path: Path) -> JobSpec:
    return orders(bootstrap, topic(), tmp_path)


def killed_replay(job: Path, step: str) -> None:
    """Run a replay in another process, which dies at the step."""
    with penstock("quarantine", "replay", str(job), failpoint=f"{step}:kill") as process:
        assert process.exit_code() == KILLED, process.last_words


@pytest.mark.parametrize("step", REPLAY_STEPS)
def test_a_killed_replay_leaves_every_record_in_one_place_once_it_is_repeated(
    step: str, job: JobSpec, tmp_path: Path, produce: Produce, spark: SparkSession
) -> None:
    produce(job.log.topics[0], [EXTRA, BROKEN, GOOD, EXTRA])
    run_once(job, spark)
    assert quarantined(job) == [(0, 0), (0, 1), (0, 3)]

    path = tmp_path / "orders.yaml"
    path.write_text(job_text(job, "extra: string", new_column="add"))
    killed_replay(path, step)

    assert replay(load_job(path), spark=spark).remaining == 1
    assert written(job) == [(0, 0), (0, 2), (0, 3)]
    assert quarantined(job) == [(0, 1)]
    assert totals(load_job(path), spark) == Totals(read=4, written=1, quarantined=3, replayed=2)


@pytest.mark.parametrize(
    ("form", "step", "visible"),
    [
        ("parquet", "replay_begun", [0]),
        ("parquet", "renaming", [0]),
        ("delta", "type_committed", [0, 2]),
        ("delta", "replay_committed", [0, 2]),
    ],
)
def test_a_replay_of_an_export_that_is_killed_loses_and_doubles_nothing(
    form: str,
    step: str,
    visible: list[int],
    bootstrap: str,
    topic: Topics,
    produce: Produce,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    export, name = ExportPipe(tmp_path, bootstrap, spark), topic()
    more, strict = 'spark: {master: "local[2,4]"}\n', "bad_record: quarantine, new_column: quarantine"
    export.describe(name, types=[type_of("A")], export=f"format: {form}", on=strict, more=more)
    produce(name, [event("A", 0), event("B", 1), event("A", 2, day=1, extra="x"), "not JSON"])
    export.run_to_end()
    assert export.offsets("A") == [0]

    types = [type_of("A", schema="{type: string, at: string, id: long, extra: string}"), type_of("B")]
    export.describe(name, types=types, export=f"format: {form}", more=more)
    killed_replay(export.path, step)
    assert export.offsets("A") == visible
    report = replay(export.job, spark=spark)
    assert (report.still_bad, report.remaining) == (1, 1)
    assert (export.offsets("A"), export.offsets("B"), export.quarantined()) == ([0, 2], [1], [(0, 3)])
