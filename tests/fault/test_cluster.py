"""A standalone cluster with tables on S3: an executor, a worker and the driver are killed, and each table is exact.

Waiting for executors is visible before, and `check --cluster` tries each of them after.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.errors import UserError
from penstock.spark.session import log_path
from penstock.storage import open_storage
from tests.support.every_kind import PARTITIONS, EveryKind
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.lake import BUCKET, s3_server
from tests.support.processes import EXIT_SECONDS_MAX, penstock
from tests.support.spark_cluster import spark_cluster
from tests.support.worker_daemon import ADDRESS_NAME

SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
}
"""As soon as a tenth of the tasks of a job is done, the others are also started elsewhere."""
SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
SECRETS = ("hunter2-of-the-store", "hunter2-of-the-broker")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "check", "--cluster", *arguments],
        env={**os.environ, ADDRESS_NAME: ""},
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS_MAX,
        check=False,
    )


def test_every_kind_of_table_is_exact_when_an_executor_a_worker_and_the_driver_are_killed(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    with s3_server() as storage, spark_cluster(tmp_path / "spark", workers=0) as cluster:
        events = tmp_path / "events"
        events.mkdir()
        conf = {
            **SPECULATIVE,
            **SMALL,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{events}",
        }
        jobs = EveryKind(
            tmp_path,
            bootstrap,
            topic(PARTITIONS),
            f"s3://{BUCKET}/kinds",
            {**storage, "aws_secret_access_key": SECRETS[0]},
            {"master": cluster.url, "conf": conf},
            {"sasl.password": SECRETS[1]},
        )
        paths = jobs.write()
        jobs.fill(produce, 600)
        with penstock("run", *paths, "--json", own_spark=True) as process:
            waiting = process.wait_for("executors awaited")
            assert (waiting["executors"], waiting["requested"]) == (0, "512m memory each")
            assert waiting["cluster"] == "0 workers"
            cluster.add_worker()
            cluster.add_worker()
            # Each of the four jobs had been waiting.
            while process.wait_for("executors awaited")["executors"] == 0:
                pass
            cluster.kill_executor(0)
            process.wait_for("batch committed")
            jobs.fill(produce, 600)
            process.wait_for("batch planned")
            cluster.kill_worker(1)
            process.wait_for("batch committed")
            jobs.fill(produce, 600)
            process.wait_for("batch planned")
            process.send(signal.SIGKILL)
            assert process.exit_code() == KILLED
            output = process.last_words
        with penstock("run", *paths, "--once", "--json", own_spark=True) as process:
            assert process.exit_code() == 0, process.last_words
            output += process.last_words
        jobs.assert_exact()
        event_log = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
        cluster.add_worker()
        folder = tmp_path / "bad"
        folder.mkdir()
        client = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
        bad = EveryKind(folder, bootstrap, jobs.topic, "file:///proc/nowhere", spark=jobs.spark, client=client)
        checked = check("--json", paths[0], bad.write()[0])
        output += checked.stderr + cluster.output() + log_path().read_text(errors="replace")
        assert not list(open_storage(f"s3://{BUCKET}/kinds", storage).list("delta/_penstock_check"))
    # The event log has plans, settings and environment: all that Spark's UI shows.
    assert "MapInArrow" in event_log and "spark.executor.memory" in event_log and "Starting executor" in output
    assert not [secret for secret in SECRETS if secret in event_log + output]
    assert checked.returncode == UserError.exit_code, checked.stderr
    right, wrong = [result["executors"] for result in json.loads(checked.stdout)]
    assert len(right) == len(wrong) == 2
    assert not any(report["faults"] for report in right)
    for report in wrong:
        assert "ssl.ca.location" in report["faults"]["log"]
        assert "/proc/nowhere/delta" in report["faults"]["storage"]


def test_a_python_that_does_not_start_is_named_by_the_check(tmp_path: Path, bootstrap: str, topic: Topics) -> None:
    spark = {"master": "local[1]", "conf": {**SMALL, "spark.pyspark.python": "/nowhere/python"}}
    checked = check(
        EveryKind(tmp_path, bootstrap, topic(PARTITIONS), f"file://{tmp_path}/lake", spark=spark).write()[0]
    )
    assert checked.returncode == UserError.exit_code
    assert "/nowhere/python" in checked.stderr and "penstock pack" in checked.stderr
