"""A Spark job makes progress while its tasks end, however long it takes; other jobs do not count for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from pyspark.sql import SparkSession

from penstock.engine.pulse import Pulse, SparkProgress
from tests.support.waiting import wait_until

TASKS = 6
TASK_SECONDS = 0.25
QUIET_SECONDS = 0.5


def test_finished_tasks_count_as_progress_of_their_job_only(spark: SparkSession) -> None:
    busy, other = SparkProgress("busy"), SparkProgress("other")
    signs = {busy: 0, other: 0}

    def count(progress: SparkProgress) -> None:
        signs[progress] += 1

    def wait_in_vain() -> None:
        other.follow(spark)

    waiting = threading.Thread(target=wait_in_vain)
    waiting.start()
    waiting.join()
    busy.follow(spark)
    try:
        with (
            Pulse(busy, lambda: count(busy), check_seconds=0.1),
            Pulse(other, lambda: count(other), check_seconds=0.1),
        ):
            spark.sparkContext.parallelize(range(TASKS), TASKS).foreach(lambda _: time.sleep(TASK_SECONDS))
            # Nothing runs any more: after a last look there are no further signs.
            wait_until(lambda: unchanged(signs, QUIET_SECONDS))
    finally:
        spark.sparkContext.setJobGroup("", "")
    assert signs[busy] >= 3, "its first look, its job, and its waves of tasks"
    assert signs[other] <= 1, "its first look"


def unchanged(signs: Mapping[SparkProgress, int], seconds: float) -> bool:
    before = dict(signs)
    time.sleep(seconds)
    return before == dict(signs)
