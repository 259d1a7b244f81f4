"""Reports progress of a job's work to the claims of its process.

The work hangs if for `claims.work_timeout` no round begins, no named step is reached and no Spark task of the job ends.
A Spark job may run for hours: the thread that waits for it is silent, but its tasks end one after another. Other calls
of a round are bounded: to Kafka and to the storage by deadlines, between rounds by the pauses of the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace

from pyspark.sql import SparkSession

from penstock.claims import Claims
from penstock.environment import Environment
from penstock.spark.failures import SPARK_ERRORS

CHECK_SECONDS = 5.0
"""How often the progress of Spark jobs is read."""
STOPPED = (*SPARK_ERRORS, AttributeError)
"""What Spark raises if another thread stopped it, or its JVM died; the job's own thread notices too."""

ProgressMark = Callable[[], Hashable]
"""States how far the work is: a value that differs from the last one is progress."""


def with_signs(environment: Environment, claims: Claims) -> Environment:
    """The environment whose every step counts as progress."""

    def at_step(step: str) -> None:
        claims.working()
        environment.at_step(step)

    return replace(environment, at_step=at_step)


class Pulse:
    """A thread that checks the progress of a job's work while the job's own thread waits; a context manager."""

    def __init__(
        self, progress: ProgressMark, working: Callable[[], None], check_seconds: float = CHECK_SECONDS
    ) -> None:
        self._progress = progress
        self._working = working
        self._check_seconds = check_seconds
        self._last: Hashable = None
        self._over = threading.Event()
        self._thread = threading.Thread(name="pulse", target=self._check_repeatedly, daemon=True)

    def check(self) -> None:
        """Report progress if it changed since the last call."""
        progress = self._progress()
        if progress != self._last:
            self._last = progress
            self._working()

    def _check_repeatedly(self) -> None:
        while not self._over.wait(self._check_seconds):
            self.check()

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: a Spark that does not answer blocks the thread, and must not block the process.
        self._over.set()


class SparkProgress:
    """The progress of the Spark jobs of one thread's present turn, without those of other threads.

    Each turn has its own Spark job group, because Spark keeps only a thousand jobs per group.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._turns = 0
        self._spark: SparkSession | None = None

    def follow(self, spark: SparkSession) -> SparkSession:
        """Track this session from now on; called by the thread that uses it."""
        self._spark = spark
        self.begin_turn()
        return spark

    def begin_turn(self) -> None:
        """Name the Spark jobs that this thread starts from now on."""
        if self._spark is None:
            return
        self._turns += 1
        with suppress(*STOPPED):
            self._spark.sparkContext.setJobGroup(self._group, self._group)

    def __call__(self) -> Hashable:
        """The jobs of this turn, and how many of their tasks have ended; None while Spark does not answer."""
        if self._spark is None:
            return None
        try:
            tracker = self._spark.sparkContext.statusTracker()
            infos = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(number) for info in infos if info is not None for number in info.stageIds]
        except STOPPED:
            return None
        ended = [
            (stage.stageId, stage.numCompletedTasks, stage.numFailedTasks) for stage in stages if stage is not None
        ]
        return self._turns, len(infos), frozenset(ended)

    @property
    def _group(self) -> str:
        return f"penstock {self._job} {self._turns}"
