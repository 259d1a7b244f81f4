"""The whole pipe to a table on S3: every record once, quarantine, compact, vacuum, verify, clear faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.errors import UserError
from penstock.job.spec import JobSpec
from penstock.lake.delta.compact import compact
from penstock.lake.delta.opening import open_table
from penstock.storage import open_storage
from penstock.tables.registry import load_job
from penstock.tables.single.table import vacuum
from penstock.watch.verify import verify
from tests.support.jobs import numbered
from tests.support.kafka import Produce, Topics
from tests.support.lake import s3_server
from tests.support.pipes import CrashError, crash_at
from tests.support.quarantine_url import quarantine_of
from tests.support.quarantined import run_once

JOB = """
job: numbered
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}
decode: json
schema: {{number: long, day: string}}
columns: {{partition: kafka.partition, offset: kafka.offset}}
table:
  delta:
    path: s3://{bucket}/{topic}/table
    partition_by: [day]
    storage:
      aws_endpoint_url: "${{env:S3_ENDPOINT}}"
      aws_access_key_id: "${{env:S3_ID}}"
      aws_secret_access_key: "${{env:S3_KEY}}"
      aws_region: us-east-1
      aws_allow_http: "true"
      aws_conditional_put: etag
      max_retries: "1"
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


def job_of(folder: Path, bootstrap: str, topic: str, s3: Mapping[str, str], bucket: str = "lake") -> JobSpec:
    path = folder / "job.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=topic, bucket=bucket))
    environment = {
        "S3_ENDPOINT": s3["aws_endpoint_url"],
        "S3_ID": s3["aws_access_key_id"],
        "S3_KEY": s3["aws_secret_access_key"],
    }
    return load_job(path, environment)


def offsets(path: str, s3: Mapping[str, str]) -> Counter[tuple[int, int]]:
    return Counter(pl.read_delta(path, storage_options=dict(s3)).select("partition", "offset").rows())


def test_records_are_in_an_s3_table_once_through_crash_compaction_and_vacuum(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce, spark: SparkSession, s3: dict[str, str]
) -> None:
    name = topic(2)
    job = job_of(tmp_path, bootstrap, name, s3)
    places = produce(name, numbered(range(100)))
    run_once(job, spark)
    places += produce(name, numbered(range(100, 200)))
    for step in ("staged", "committed"):
        with pytest.raises(CrashError):
            run_once(job, spark, crash_at(step))
    run_once(job, spark)

    def stored_offsets() -> Counter[tuple[int, int]]:
        return offsets(job.table.path, s3) + offsets(quarantine_of(job), s3)

    assert stored_offsets() == Counter(places)
    table = open_table(job.table, job.name)
    report = compact(table, 1 << 20)
    assert (report.files_added, report.dropped) == (3, 0)
    assert stored_offsets() == Counter(places)
    orphans = unnamed(job)
    assert orphans
    deleted = vacuum(table).deleted
    assert {item.path for item in deleted if item.table == job.table.path} == orphans
    assert unnamed(job) == set()
    assert stored_offsets() == Counter(places)
    assert verify(job).ok
    places += produce(name, numbered(range(200, 250)))
    run_once(job, spark)
    assert stored_offsets() == Counter(places)


@contextmanager
def checking_credentials(s3: Mapping[str, str]) -> Iterator[None]:
    """The server accepts all requests unless it is configured after how many it begins to check."""
    url = f"{s3['aws_endpoint_url']}/moto-api/reset-auth"
    plain = {"Content-Type": "text/plain"}
    with urlopen(Request(url, b"0", plain)):
        pass
    try:
        yield
    finally:
        with urlopen(Request(url, b"inf", plain)):
            pass


def unnamed(job: JobSpec) -> set[str]:
    """Files in the table's folder, without its quarantines, that no commit ever named."""
    handle = DeltaTable(job.table.path, storage_options=dict(job.table.storage_options))
    named = {
        uri.rpartition("/table/")[2]
        for version in range(handle.version() + 1)
        for uri in DeltaTable(job.table.path, version, storage_options=dict(job.table.storage_options)).file_uris()
    }
    lying = {item.path for item in open_storage(job.table.path, job.table.storage_options).list()}
    return {path for path in lying if not path.startswith(("_delta_log/", "_quarantine/"))} - named


def test_a_bucket_that_is_missing_is_named_and_nothing_is_retried(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession, s3: dict[str, str]
) -> None:
    job = job_of(tmp_path, bootstrap, topic(), s3, bucket="no-such-bucket")
    with pytest.raises(UserError) as raised:
        run_once(job, spark)
    assert "s3://no-such-bucket/" in raised.value.primary
    assert "bucket" in raised.value.detail.lower()


def test_refused_credentials_are_a_user_error_and_never_printed(
    tmp_path: Path, bootstrap: str, topic: Topics, spark: SparkSession, s3: dict[str, str]
) -> None:
    wrong = {**s3, "aws_access_key_id": "unknown", "aws_secret_access_key": "hunter2"}
    job = job_of(tmp_path, bootstrap, topic(), wrong)
    with checking_credentials(s3), pytest.raises(UserError) as raised:
        run_once(job, spark)
    assert "permission" in raised.value.primary
    assert "hunter2" not in str(raised.value) + repr(job)
