"""A job whose records are an hour old, for tests of `status`."""

from __future__ import annotations

import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path

from penstock.job.spec import JobSpec
from penstock.logs.registry import open_log
from penstock.watch.status import JobStatus
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, SmallTable, partitions_of, small_job, started

HOUR_SECONDS = 3600


def hour_old_job(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    """Two partitions of ten records that are an hour old, and a job that has not started."""
    name = topic(2)
    an_hour_ago_ms = int((time.time() - HOUR_SECONDS) * 1000)
    for number in range(2):
        produce(name, ["{}"] * 10, partition=number, timestamp_ms=an_hour_ago_ms)
    return small_job(bootstrap, name, tmp_path)


def filled(job: JobSpec) -> SmallTable:
    """Partition 0 is read to its end, partition 1 up to offset 4."""
    zero, one = partitions_of(job)
    table = started(job)
    table.commit(zero, Load(0, 10, range(9), bad=[9]))
    table.commit(one, Load(0, 4, range(4)))
    return table


def mirror_all(job: JobSpec, offsets: dict[int, int]) -> None:
    with closing(open_log(job)) as log:
        log.show({partition: offsets[partition.number] for partition in log.partitions()})


def kinds(status: JobStatus) -> list[StrEnum]:
    return [alert.kind for alert in status.alerts]
