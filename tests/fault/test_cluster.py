"""A standalone cluster with tables on S3: an executor, a worker and the driver are killed, and each table is exact."""

from __future__ import annotations

import signal
from pathlib import Path

from penstock.spark.session import log_path
from tests.support.every_kind import PARTITIONS, EveryKind
from tests.support.jobs import KILLED
from tests.support.kafka import Produce, Topics
from tests.support.lake import BUCKET, s3_server
from tests.support.processes import penstock
from tests.support.spark_cluster import spark_cluster

SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
}
"""As soon as a tenth of the tasks of a job is done, the others are also started elsewhere."""
SECRETS = ("hunter2-of-the-store", "hunter2-of-the-broker")


def test_every_kind_of_table_is_exact_when_an_executor_a_worker_and_the_driver_are_killed(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    with s3_server() as storage, spark_cluster(tmp_path / "spark") as cluster:
        events = tmp_path / "events"
        events.mkdir()
        conf = {
            **SPECULATIVE,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
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
            process.wait_for("batch planned")
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
        output += cluster.output() + log_path().read_text(errors="replace")
    # The event log has plans, settings and environment: all that Spark's UI shows.
    assert "MapInArrow" in event_log and "spark.executor.memory" in event_log and "Starting executor" in output
    assert not [secret for secret in SECRETS if secret in event_log + output]
