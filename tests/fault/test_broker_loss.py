"""The broker is killed in mid-run and comes back: the job waits, goes on, and every record is there once."""

from __future__ import annotations

import signal
from pathlib import Path

from penstock.embedded.broker import Cluster
from penstock.tables.registry import load_job
from penstock.watch.verify import verify
from tests.support.jobs import assert_every_record_once, holds, numbered, numbered_job
from tests.support.kafka import Produce, Topics
from tests.support.processes import command_json, penstock
from tests.support.waiting import wait_until


def test_a_broker_killed_while_a_batch_is_read_and_again_while_the_job_waits_costs_no_record(tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        name = Topics(cluster.bootstrap)(partitions=2)
        produce = Produce(cluster.bootstrap)
        job = numbered_job(tmp_path, cluster.bootstrap, name)
        places = produce(name, numbered(range(300)))
        with penstock("run", str(job), "--json", failpoint="planned:stop:2") as process:
            process.wait_for("batch committed")
            places += produce(name, numbered(range(300, 600)))
            # The next batch is planned; when Spark reads it, the broker is down.
            process.wait_stopped()
            cluster.kill()
            process.send(signal.SIGCONT)
            cluster.restart()
            process.wait_for("batch committed")
            cluster.kill()
            cluster.restart()
            places += produce(name, numbered(range(600, 900)))
            wait_until(lambda: holds(tmp_path / "table") == 900, words=lambda: process.last_words)
            process.send(signal.SIGTERM)
            assert process.exit_code() == 0
        assert_every_record_once(tmp_path / "table", places)
        assert verify(load_job(job)).ok
        # The consumer group follows too: its coordinator was lost with the broker.
        assert "mirror_lagging" not in [item["kind"] for item in command_json("status", str(job))[0]["alerts"]]
