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


T0=__import__("time").monotonic()
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
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(', file=__import__('sys').stderr, flush=True)
            wait_until(
                lambda: (not flowing or more()) and verdicts(first) == expected,
                words=lambda: f"{status(first)}; {process.last_words}",
            )

        with (
            penstock("run", str(first), "--json", "--metrics", str(port)) as one,
            penstock("run", str(second), "--json") as other,
        ):
            print('T', round(__import__('time').monotonic()-T0,1), 'for process in (one, other):', file=__import__('sys').stderr, flush=True)
            for process in (one, other):
                process.wait_for("claim won")
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: len(metric(port, "penstock_position")) ==', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: len(metric(port, "penstock_position")) == 2, words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'more()', file=__import__('sys').stderr, flush=True)
            more()
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: holds(table) == len(places), words=lambda', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'assert verdicts(first) == ["OK"] * 5', file=__import__('sys').stderr, flush=True)
            assert verdicts(first) == ["OK"] * 5

            print('T', round(__import__('time').monotonic()-T0,1), 'other.send(signal.SIGSTOP)', file=__import__('sys').stderr, flush=True)
            other.send(signal.SIGSTOP)
            print('T', round(__import__('time').monotonic()-T0,1), 'until(["STALL", "OK", "OK", "STALL", "STALL"], one)', file=__import__('sys').stderr, flush=True)
            until(["STALL", "OK", "OK", "STALL", "STALL"], one)
            print('T', round(__import__('time').monotonic()-T0,1), 'one.send(signal.SIGSTOP)', file=__import__('sys').stderr, flush=True)
            one.send(signal.SIGSTOP)
            print('T', round(__import__('time').monotonic()-T0,1), 'until(["STOP"] * 5, one, flowing=False)', file=__import__('sys').stderr, flush=True)
            until(["STOP"] * 5, one, flowing=False)
            print('T', round(__import__('time').monotonic()-T0,1), 'one.send(signal.SIGCONT)', file=__import__('sys').stderr, flush=True)
            one.send(signal.SIGCONT)
            print('T', round(__import__('time').monotonic()-T0,1), 'other.send(signal.SIGCONT)', file=__import__('sys').stderr, flush=True)
            other.send(signal.SIGCONT)
            print('T', round(__import__('time').monotonic()-T0,1), 'until(["OK"] * 5, one)', file=__import__('sys').stderr, flush=True)
            until(["OK"] * 5, one)

            print('T', round(__import__('time').monotonic()-T0,1), 'other.send(signal.SIGTERM)', file=__import__('sys').stderr, flush=True)
            other.send(signal.SIGTERM)
            print('T', round(__import__('time').monotonic()-T0,1), 'assert other.exit_code() == 0, other.last_words', file=__import__('sys').stderr, flush=True)
            assert other.exit_code() == 0, other.last_words
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: len(metric(port, "penstock_position")) ==', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: len(metric(port, "penstock_position")) == 4, words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: get(port, "/readyz")[0] == 200 and metric', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: get(port, "/readyz")[0] == 200 and metric(port, "penstock_job_verdict") == {"": 0})

            print('T', round(__import__('time').monotonic()-T0,1), 'cluster.kill()', file=__import__('sys').stderr, flush=True)
            cluster.kill()
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: metric(port, "penstock_job_verdict") == {', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: metric(port, "penstock_job_verdict") == {"": 5}, words=lambda: one.last_words)
            code, reason = get(port, "/readyz")
            print('T', round(__import__('time').monotonic()-T0,1), 'assert code == 503 and "numbered: " in reason', file=__import__('sys').stderr, flush=True)
            assert code == 503 and "numbered: " in reason
            print('T', round(__import__('time').monotonic()-T0,1), 'assert get(port, "/healthz") == (200, "ok\\n")', file=__import__('sys').stderr, flush=True)
            assert get(port, "/healthz") == (200, "ok\n")
            away = CliRunner().invoke(app, ["status", str(first), "--json"])
            print('T', round(__import__('time').monotonic()-T0,1), 'assert away.exit_code == TransientError.exit_code', file=__import__('sys').stderr, flush=True)
            assert away.exit_code == TransientError.exit_code
            print('T', round(__import__('time').monotonic()-T0,1), 'assert json.loads(away.stdout)[0]["verdict"] == "ERR"', file=__import__('sys').stderr, flush=True)
            assert json.loads(away.stdout)[0]["verdict"] == "ERR"
            print('T', round(__import__('time').monotonic()-T0,1), 'cluster.restart()', file=__import__('sys').stderr, flush=True)
            cluster.restart()
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: get(port, "/readyz")[0] == 200, words=lam', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: get(port, "/readyz")[0] == 200, words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'until(["OK"] * 5, one)', file=__import__('sys').stderr, flush=True)
            until(["OK"] * 5, one)
            changes = [event["verdict"] for event in one.events_read if event["event"] == "verdict changed"]
            print('T', round(__import__('time').monotonic()-T0,1), 'assert changes[-2:] == ["ERR", "OK"], one.last_words', file=__import__('sys').stderr, flush=True)
            assert changes[-2:] == ["ERR", "OK"], one.last_words

            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: holds(table) == len(places), words=lambda', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'shutil.copytree(table, tmp_path / "backup")', file=__import__('sys').stderr, flush=True)
            shutil.copytree(table, tmp_path / "backup")
            print('T', round(__import__('time').monotonic()-T0,1), 'more()', file=__import__('sys').stderr, flush=True)
            more()
            print('T', round(__import__('time').monotonic()-T0,1), 'wait_until(lambda: holds(table) == len(places), words=lambda', file=__import__('sys').stderr, flush=True)
            wait_until(lambda: holds(table) == len(places), words=lambda: one.last_words)
            print('T', round(__import__('time').monotonic()-T0,1), 'one.send(signal.SIGTERM)', file=__import__('sys').stderr, flush=True)
            one.send(signal.SIGTERM)
            print('T', round(__import__('time').monotonic()-T0,1), 'assert one.exit_code() == 0, one.last_words', file=__import__('sys').stderr, flush=True)
            assert one.exit_code() == 0, one.last_words
        print('T', round(__import__('time').monotonic()-T0,1), 'shutil.move(table, tmp_path / "newest")', file=__import__('sys').stderr, flush=True)
        shutil.move(table, tmp_path / "newest")
        print('T', round(__import__('time').monotonic()-T0,1), 'shutil.move(tmp_path / "backup", table)', file=__import__('sys').stderr, flush=True)
        shutil.move(tmp_path / "backup", table)
        rewound = status(first)
        print('T', round(__import__('time').monotonic()-T0,1), 'assert verdicts(first) == ["REWIND"] * 5', file=__import__('sys').stderr, flush=True)
        assert verdicts(first) == ["REWIND"] * 5
        print('T', round(__import__('time').monotonic()-T0,1), 'assert "the position went back from" in rewound["reason"]', file=__import__('sys').stderr, flush=True)
        assert "the position went back from" in rewound["reason"]
        print('T', round(__import__('time').monotonic()-T0,1), 'shutil.rmtree(table)', file=__import__('sys').stderr, flush=True)
        shutil.rmtree(table)
        print('T', round(__import__('time').monotonic()-T0,1), 'shutil.move(tmp_path / "newest", table)', file=__import__('sys').stderr, flush=True)
        shutil.move(tmp_path / "newest", table)
        print('T', round(__import__('time').monotonic()-T0,1), 'assert verdicts(first) == ["OK"] * 5', file=__import__('sys').stderr, flush=True)
        assert verdicts(first) == ["OK"] * 5
        assert_every_record_once(table, places)