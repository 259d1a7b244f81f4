"""Executors of a standalone cluster: waiting for them is visible, and `check --cluster` tries each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from penstock.errors import UserError
from tests.support.every_kind import PARTITIONS, EveryKind
from tests.support.kafka import Produce, Topics
from tests.support.processes import EXIT_SECONDS_MAX, penstock
from tests.support.spark_cluster import spark_cluster
from tests.support.worker_daemon import ADDRESS_NAME

SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "check", "--cluster", *arguments],
        env={**os.environ, ADDRESS_NAME: ""},
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS_MAX,
        check=False,
    )


def test_waiting_for_executors_is_reported_until_one_comes_and_a_check_names_what_fails_on_each(
    tmp_path: Path, bootstrap: str, topic: Topics, produce: Produce
) -> None:
    with spark_cluster(tmp_path / "spark", workers=0) as cluster:
        spark: dict[str, object] = {"master": cluster.url, "conf": SMALL}
        good = EveryKind(tmp_path, bootstrap, topic(PARTITIONS), f"file://{tmp_path}/lake", spark=spark)
        job = good.write()[0]
        good.fill(produce, 100)
        with penstock("run", job, "--once", "--json", own_spark=True) as process:
            waiting = process.wait_for("executors awaited")
            assert (waiting["executors"], waiting["requested"]) == (0, "512m memory each")
            assert waiting["cluster"] == "0 workers"
            cluster.add_worker()
            cluster.add_worker()
            assert process.wait_for("executors awaited")["executors"] > 0
            assert process.exit_code() == 0, process.last_words
        folder = tmp_path / "bad"
        folder.mkdir()
        client = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
        bad = EveryKind(folder, bootstrap, good.topic, "file:///proc/nowhere", spark=spark, client=client)
        checked = check("--json", job, bad.write()[0])
        spark["conf"] = {**SMALL, "spark.pyspark.python": "/nowhere/python"}
        good.write()
        unstarted = check(job)
    assert unstarted.returncode == UserError.exit_code
    assert "/nowhere/python" in unstarted.stderr and "penstock pack" in unstarted.stderr
    assert checked.returncode == UserError.exit_code, checked.stderr
    right, wrong = [result["executors"] for result in json.loads(checked.stdout)]
    assert len(right) == len(wrong) == 2
    assert not any(report["faults"] for report in right)
    for report in wrong:
        assert "ssl.ca.location" in report["faults"]["log"]
        assert "/proc/nowhere/delta" in report["faults"]["storage"]
    assert not list((tmp_path / "lake" / "delta" / "_penstock_check").iterdir())
