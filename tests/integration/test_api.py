"""`import penstock`: the commands as functions."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.api import JobRun
from penstock.errors import UserError
from penstock.job.faults import JobFileError
from tests.support.kafka import Produce, Topics

JOB = """\
job: orders
log: {{kafka: {{bootstrap: "{bootstrap}", topics: [{topic}]}}}}
decode: json
schema: {{id: long}}
table: {{delta: {{path: ./table}}}}
on: {{bad_share: 1}}
"""


@pytest.fixture
def job(tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce) -> Path:
    name = topic()
    produce(name, ['{"id": 1}', '{"id": 2}', None, "no JSON"])
    path = tmp_path / "orders.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=name))
    return path


def test_a_job_is_run_watched_proven_and_read_in_the_callers_session(
    job: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.jobs.orders")
    assert penstock.check(job) == []
    assert penstock.run(job) == [JobRun("orders", batches=1, read=4, written=2, quarantined=1, filtered=1)]
    assert "batch committed" in caplog.text
    assert [partition.position for partition in penstock.status(job).partitions] == [4]
    assert penstock.verify(str(job), values="all").ok
    assert sorted(row["id"] for row in penstock.read(spark, job).collect()) == [1, 2]


def test_a_thread_may_run_a_job_and_the_session_stays_open(job: Path, spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(penstock.run, job).result()[0].read == 4
    assert penstock.run(job, spark=spark) == [JobRun("orders")]
    assert spark.range(2).count() == 2


def test_mistakes_are_errors_of_the_caller(job: Path, spark: SparkSession) -> None:
    broken = job.with_name("broken.yaml")
    broken.write_text(job.read_text().replace("decode: json", "decode: jsn"))
    assert [fault.key for fault in penstock.check(job, broken)] == ["decode"]
    with pytest.raises(JobFileError):
        penstock.run(broken)
    with pytest.raises(UserError, match="no Delta table"):
        penstock.read(spark, job).collect()


def test_importing_the_package_loads_no_spark() -> None:
    code = "import sys, penstock; assert 'pyspark' not in sys.modules; penstock.run; penstock.status"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError):
        penstock.nothing  # noqa: B018


def test_a_program_without_a_session_gets_one_of_its_own_that_knows_delta(job: Path) -> None:
    code = (
        "import penstock, sys\n"
        "[done] = penstock.run(sys.argv[1])\n"
        "spark = penstock.session()\n"
        "print(done.written, penstock.read(spark, sys.argv[1]).count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(job)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2"]
