"""Every verdict is given for the condition that it names, by `status` and by the running process."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.embedded.broker import Cluster
from penstock.errors import TransientError
from tests.support.jobs import assert_every_record_once, holds, numbered, shared_job
from tests.support.kafka import Produce, Topics
from tests.support.processes import PenstockProcess, command_json, free_port, penstock
from tests.support.waiting import wait_until

ALERTS = "alerts: {stop_after: 3s, window: 6s}\n"
HEARTBEAT = "10s"
"""Others take a silent process's partitions after two of them: so long a partition of it stands still."""


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def metric(port: int, name: str) -> dict[str, float]:
    """The values of a metric by partition, or of a job under an empty name."""
    families = text_string_to_metric_families(get(port, "/metrics")[1])
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("partition", ""): sample.value for sample in samples}


def status(job: Path) -> Any:
    return command_json("status", str(job))[0]


def verdicts(job: Path) -> list[str]:
    """The verdict of the job, and those of its partitions."""
    shown = status(job)
    return [shown["verdict"], *sorted(partition["verdict"] for partition in shown["partitions"])]


def test_stalled_stopped_rewound_and_away_are_told_apart_and_end_when_their_cause_ends(tmp_path: Path) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        name = Topics(cluster.bootstrap)(partitions=4)
        produce, table = Produce(cluster.bootstrap), tmp_path / "table"
        places: list[tuple[int, int]] = []
        first, second = (
            shared_job(tmp_path, cluster.bootstrap, name, client_id=text, heartbeat=HEARTBEAT)
            for text in ("first", "second")
        )
        for job in (first, second):
            job.write_text(job.read_text() + ALERTS)
        port = free_port()

        def more() -> bool:
            """A record in each partition, at once."""
            for partition in range(4):
                places.extend(produce(name, numbered([len(places)]), partition=partition))
            return True

        def until(expected: list[str], process: PenstockProcess, flowing: bool = True) -> None:
            wait_until(
                lambda: (not flowing or more()) and verdicts(first) == expected,
                words=lambda: f"{status(first)}; {process.last_words}",
            )

        with (
            penstock("run", str(first), "--json", "--metrics", str(port)) as one,
            penstock("run", str(second), "--json") as other,
        ):
            for process in (one, other):
                process.wait_for("claim won")
            wait_until(lambda: len(metric(port, "penstock_position")) == 2, words=lambda: one.last_words)
            more()
            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            assert verdicts(first) == ["OK"] * 5

            other.send(signal.SIGSTOP)
            until(["STALL", "OK", "OK", "STALL", "STALL"], one)
            one.send(signal.SIGSTOP)
            until(["STOP"] * 5, one, flowing=False)
            one.send(signal.SIGCONT)
            other.send(signal.SIGCONT)
            until(["OK"] * 5, one)

            other.send(signal.SIGTERM)
            assert other.exit_code() == 0, other.last_words
            wait_until(lambda: len(metric(port, "penstock_position")) == 4, words=lambda: one.last_words)
            wait_until(lambda: get(port, "/readyz")[0] == 200 and metric(port, "penstock_job_verdict") == {"": 0})

            cluster.kill()
            wait_until(lambda: metric(port, "penstock_job_verdict") == {"": 5}, words=lambda: one.last_words)
            code, reason = get(port, "/readyz")
            assert code == 503 and "numbered: " in reason
            assert get(port, "/healthz") == (200, "ok\n")
            away = CliRunner().invoke(app, ["status", str(first), "--json"])
            assert away.exit_code == TransientError.exit_code
            assert json.loads(away.stdout)[0]["verdict"] == "ERR"
            cluster.restart()
            wait_until(lambda: get(port, "/readyz")[0] == 200, words=lambda: one.last_words)
            until(["OK"] * 5, one)
            changes = [event["verdict"] for event in one.events_read if event["event"] == "verdict changed"]
            assert changes[-2:] == ["ERR", "OK"], one.last_words

            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            shutil.copytree(table, tmp_path / "backup")
            more()
            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            one.send(signal.SIGTERM)
            assert one.exit_code() == 0, one.last_words
        shutil.move(table, tmp_path / "newest")
        shutil.move(tmp_path / "backup", table)
        rewound = status(first)
        assert verdicts(first) == ["REWIND"] * 5
        assert "the position went back from" in rewound["reason"]
        shutil.rmtree(table)
        shutil.move(tmp_path / "newest", table)
        assert verdicts(first) == ["OK"] * 5
        assert_every_record_once(table, places)
