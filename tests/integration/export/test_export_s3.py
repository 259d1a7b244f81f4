"""The whole export to S3: a rename is a copy there, and readers see no row twice (RULES E4)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.engine.loop import Loop, Retries
from penstock.engine.round import Rounds, open_rounds
from penstock.environment import Environment
from penstock.failpoints import AtStep, noop
from penstock.job.spec import JobSpec, job_of
from penstock.tables.export.export import ExportTable
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.upkeep import vacuum
from penstock.tables.kind import CompactRequest
from penstock.tables.registry import kind_of, load_job
from penstock.watch.verify import verify
from tests.support.exports import event, export_job
from tests.support.kafka import Produce, Topics
from tests.support.lake import s3_server
from tests.support.pipes import CrashError, Recorder, crash_at

STORAGE = """storage: {{aws_endpoint_url: "{aws_endpoint_url}", aws_access_key_id: "{aws_access_key_id}", \
aws_secret_access_key: "{aws_secret_access_key}", aws_region: us-east-1, aws_allow_http: "true", \
aws_conditional_put: etag, max_retries: "1"}}"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


def run_to_end(job: JobSpec, spark: SparkSession, at_step: AtStep = noop) -> None:
    opened: list[Rounds[Any]] = []

    def open_pipeline() -> Rounds[Any]:
        opened.append(open_rounds(job, spark, Environment(at_step=at_step)))
        return opened[-1]

    try:
        Loop(open_pipeline, True, threading.Event(), Retries(0, random.Random(7)), Recorder()).run()
    finally:
        for item in opened:
            item.close()


def offsets(root: str, s3: Mapping[str, str]) -> Counter[tuple[int, int]]:
    """What a plain reader of all types sees."""
    counter: Counter[tuple[int, int]] = Counter()
    for name in "ABC":
        frame = pl.read_parquet(f"{root}/{name}/**/*.parquet", storage_options=dict(s3), hive_partitioning=True)
        counter.update(frame.select("kafka_partition", "kafka_offset").rows())
    return counter


def test_records_are_exported_to_s3_once_through_crash_compaction_and_vacuum(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession, s3: dict[str, str]
) -> None:
    name = topic(partitions=2)
    root = f"s3://lake/{name}/root"
    path = tmp_path / "job.yaml"
    limits = "limits: {stage_age: 1ms}\n"
    path.write_text(
        export_job(bootstrap, Path("ROOT"), name, export=STORAGE.format(**s3), more=limits).replace("ROOT", root)
    )
    job = load_job(path)
    places = produce(name, [event("ABC"[number % 3], number, day=number % 2) for number in range(30)])
    for step in ("type_committed", "renaming"):
        with pytest.raises(CrashError):
            run_to_end(job, spark, crash_at(step))
    run_to_end(job, spark)
    places += produce(name, [event("ABC"[number % 3], number, day=9) for number in range(30, 60)])
    run_to_end(job, spark)
    assert offsets(root, s3) == Counter(places)
    report = kind_of(job).compact(job, CompactRequest(), Environment(), None)
    assert report.files_removed > report.files_added > 0
    logs = ExportLogs(job_of(job, ExportSpec), Environment())
    vacuum(ExportTable(logs))
    assert offsets(root, s3) == Counter(places)
    assert list(logs.storage.list(logs.staged)) == []
    assert verify(job).ok
