"""`python -m benchmarks hot` and `cluster`: a flow that keeps a core busy, on several cores or executors against one.

Spark cuts the slice of the partition into pieces, one per task: a hot partition uses all cores and executors of a job.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.apart import run_apart
from benchmarks.meters import BenchResult, Meter, Report, Spent, median
from benchmarks.sides import check_rows, filled_topic, in_turn, run_job
from penstock.embedded.sample import SampleSize, web_requests
from penstock.job.spec import SparkSpec
from penstock.spark.session import open_spark

# Texts are repeated before they are hashed: a core, not the broker, is what limits the job.
_JOB = """\
job: hot
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [bench]}}
decode: json
schema: {{session_id: string, url: string, uuid: string}}
sql: {{select: [uuid, "sha2(repeat(uuid, 4000), 512) as digest"]}}
table:
  delta: {{path: "{table}"}}
"""


LOCAL = "local[{}]"
EXECUTORS = "local-cluster[{},1,1024]"
"""A standalone cluster in Spark's JVM, whose executors are processes of one core each."""


def bench_hot(name: str, records: int, cores: int, rounds: int, report: Report, master: str = LOCAL) -> BenchResult:
    """Compare a master of so many cores with that of one; a ratio of 2 means twice the throughput."""
    spent: dict[int, list[Spent]] = {cores: [], 1: []}
    with filled_topic(in_turn(web_requests(SampleSize(records)), 1), 1) as (bootstrap, folder):
        for number in range(1, rounds + 1):
            for count, measured in spent.items():
                of_count = master.format(count)
                part = folder / f"{number}-{count}"
                measured.append(Spent(**run_apart(_measure, of_count, bootstrap, part, records)))
                report(f"round {number} {of_count}: {measured[-1].wall_s} s wall, {measured[-1].cpu_s} s CPU")
    return BenchResult(name, records, median(spent[cores]), master.format(1), median(spent[1]), {"cores": cores})


def _measure(master: str, bootstrap: str, folder: Path, records: int) -> dict[str, Any]:
    """Run the job twice, each time into a new table, and measure the second: the start of the JVM does not count."""
    spark = open_spark(SparkSpec(master=master), "bench hot")
    warm_up, measured = folder / "warm-up", folder / "measured"
    for part in (warm_up, measured):
        part.mkdir(parents=True)
    run_job(spark, warm_up, _JOB.format(bootstrap=bootstrap, table=warm_up / "table"))
    meter = Meter()
    run_job(spark, measured, _JOB.format(bootstrap=bootstrap, table=measured / "table"))
    spent = meter.spent()
    spark.stop()
    rows = pl.scan_delta(str(measured / "table")).select("kafka_offset").collect()["kafka_offset"]
    check_rows("hot", rows.n_unique(), records)
    check_rows("hot", len(rows), records)
    return asdict(spent)
