"""A job with ten records in each of two partitions, and its table, for `verify`."""

from __future__ import annotations

from pathlib import Path

from penstock.job.spec import JobSpec
from penstock.watch.verify import Check, Verdict, VerifyReport, Violation, ViolationKind
from tests.support.kafka import Produce, Topics
from tests.support.small_table import Load, SmallTable, partitions_of, small_job, started

CHECKS = ["totals", "slices", "rows", "offsets", "log", "records"]


def job_of_twenty(bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path) -> JobSpec:
    """Two partitions of ten records, and a job that has not started."""
    name = topic(2)
    for number in range(2):
        produce(name, [f'{{"id": {item}}}' for item in range(10)], partition=number)
    return small_job(bootstrap, name, tmp_path)


def filled(job: JobSpec) -> SmallTable:
    """Partition 0 has two slices and a bad record at offset 6, partition 1 one slice that ends before the log does."""
    zero, one = partitions_of(job)
    table = started(job)
    table.commit(zero, Load(0, 4, range(4)))
    table.commit(zero, Load(4, 10, [4, 5, 7, 8, 9], bad=[6]))
    table.commit(one, Load(0, 8, range(8)))
    return table


def check_of(report: VerifyReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def failed(report: VerifyReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict is Verdict.VIOLATED]


def violation(job: JobSpec, partition: int, offset: int, kind: ViolationKind, end: int | None = None) -> Violation:
    return Violation(job.log.topics[0], partition, offset, kind, end)


def recreated(job: JobSpec, topic: Topics, produce: Produce) -> None:
    name = job.log.topics[0]
    topic.recreate(name, 2)
    produce(name, [f'{{"id": {number}}}' for number in range(10)], partition=0)
