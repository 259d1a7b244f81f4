"""python -m tests.fault.stopping_spark JOB...: `run --once`, and the context is stopped during the first batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from pyspark import SparkContext

from penstock.engine.process import RunOptions, run_jobs
from penstock.events import BatchPlanned, Event
from penstock.tables.registry import load_jobs
from penstock.watch.listeners import LogLines


class StopsSpark(LogLines):
    """Of all jobs of the process, the first to plan a batch finds the context stopped."""

    stops_left: ClassVar[int] = 1

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, BatchPlanned) and StopsSpark.stops_left:
            StopsSpark.stops_left -= 1
            SparkContext._active_spark_context._jsc.sc().stop()  # type: ignore[union-attr]


if __name__ == "__main__":
    jobs = load_jobs([Path(item) for item in sys.argv[1:]])
    run_jobs(jobs, lambda job: StopsSpark(job.name), RunOptions(once=True))
