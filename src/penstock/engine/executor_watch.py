"""Reports that a Spark job waits because no executor is there: Spark itself waits silently, for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from penstock.engine.pulse import STOPPED
from penstock.events import ExecutorsAwaited, Listener
from penstock.job.spark import is_local
from penstock.spark.executors import cluster_state, executor_count, requested

SILENT_SECONDS_MAX = 30.0
CHECK_SECONDS = 2.0


class ExecutorWatch:
    """Looks at the session of a process at intervals."""

    def __init__(
        self,
        session: Callable[[], SparkSession | None],
        listeners: Sequence[Listener],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._listeners = listeners
        self._now = now
        self._since: float | None = None
        self._reported = False

    def start(self, over: threading.Event) -> None:
        def repeatedly() -> None:
            while not over.wait(CHECK_SECONDS):
                self.check()

        # Not joined: a Spark that does not answer blocks the thread, and must not block the process.
        threading.Thread(name="executors", target=repeatedly, daemon=True).start()

    def check(self) -> None:
        """Report once that a job waits for executors, and once that one came."""
        spark = self._session()
        try:
            if spark is None or is_local(spark.sparkContext.master or ""):
                return
            count = executor_count(spark)
            waits = not count and bool(spark.sparkContext.statusTracker().getActiveJobsIds())
            if not waits:
                self._since = None
                if count and self._reported:
                    self._report(ExecutorsAwaited(count, requested(spark), cluster_state(spark)))
            elif self._since is None:
                self._since = self._now()
            elif not self._reported and self._now() - self._since >= SILENT_SECONDS_MAX:
                self._report(ExecutorsAwaited(0, requested(spark), cluster_state(spark)))
        except STOPPED:
            return

    def _report(self, event: ExecutorsAwaited) -> None:
        self._reported = not event.executors
        for listener in self._listeners:
            listener.event(event)
