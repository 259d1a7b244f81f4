"""The metrics of a real run are those of `verify`, of `status` and of Kafka's own tool; its commits send lineage."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.embedded.kafka import tool
from tests.support.jobs import numbered, numbered_job
from tests.support.kafka import Produce, Topics
from tests.support.processes import command_json, free_port, penstock
from tests.support.waiting import wait_until

READ, UNREAD = 300, (40, 10)
LIMITS = "claims: static\nalerts: {lag_records: 60}\n"
"""Partition 0 reaches half of it."""
STEPS = ("plan", "read", "decode", "write")
DESCRIBE = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
Received = queue.Queue[dict[str, Any]]
Values = dict[tuple[str, ...], float]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """What a lineage server on loopback gets."""
    requests: Received = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    server.server_close()


def scraped(port: int) -> dict[str, Values]:
    """Every sample by name and labels, without that of the job."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples: dict[str, Values] = {}
    for sample in (sample for family in families for sample in family.samples):
        labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "job")
        samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def described(bootstrap: str, group: str) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Position, end and lag of each partition, by `kafka-consumer-groups --describe`."""
    command = tool(DESCRIBE, "--bootstrap-server", bootstrap, "--describe", "--group", group)
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith(group)]
    return {(f"{row[1]}/{row[2]}",): tuple(map(float, row[3:6])) for row in rows}


def test_metrics_agree_with_verify_status_and_kafka_consumer_groups(
    bootstrap: str, topic: Topics, produce: Produce, tmp_path: Path, received: Received
) -> None:
    name, port = topic(partitions=2), free_port()
    job = numbered_job(tmp_path, bootstrap, name, flush="allowed_latency: 1h", kafka=f"group: {name}", more=LIMITS)
    produce(name, numbered(range(READ)))
    with penstock("run", str(job), "--json", "--metrics", str(port), "--lineage") as process:
        committed = process.wait_for("batch committed")
        # New records wait for an hour now.
        for partition, count in enumerate(UNREAD):
            produce(name, numbered(range(count)), partition=partition)
        wait_until(
            lambda: sum(scraped(port)["penstock_lag_records"].values()) == sum(UNREAD), words=lambda: process.last_words
        )
        metrics = scraped(port)
        shown = {
            place: tuple(metrics[f"penstock_{name}"][place] for name in ("position", "log_end", "lag_records"))
            for place in metrics["penstock_position"]
        }
        assert described(bootstrap, name) == shown
        status, report = command_json("status", str(job))[0], command_json("verify", str(job))
        assert shown == {
            (f"{name}/{at['partition']}",): (at["position"], at["end"], at["lag_records"])
            for at in status["partitions"]
        }
        assert [at["verdict"] for at in (status, *status["partitions"])] == ["WARN", "WARN", "OK"]
        wait_until(lambda: scraped(port)["penstock_job_verdict"] == {(): 1}, words=lambda: process.last_words)
        assert list(scraped(port)["penstock_verdict"].values()) == [1, 0]
        log = next(check for check in report["checks"] if check["name"] == "log")
        totals = next(check for check in report["checks"] if check["name"] == "totals")
        assert report["ok"] and log["lag_records"] == sum(UNREAD)
        assert metrics["penstock_records_read_total"] == {(): totals["read"]} == {(): READ}
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0, process.last_words

    assert metrics["penstock_retries_total"] == metrics["penstock_claims_held"] == {(): 0}, "zero is shown"
    assert metrics["penstock_file_bytes_count"] == metrics["penstock_files_written_total"]
    assert metrics["penstock_file_bytes_sum"] == metrics["penstock_bytes_written_total"]
    assert set(metrics["penstock_step_seconds_count"].values()) == {1}
    [commit] = [commit for commit in status["commits"] if commit["read"] == READ]
    assert set(commit["steps"]) == set(STEPS) == set(committed["steps"]) - {"commit"}
    assert sum(commit["steps"][step] for step in STEPS[1:]) <= committed["seconds"]
    assert (commit["written"], commit["files"], commit["size_bytes"], commit["lag_records"]) == (
        metrics["penstock_records_written_total"][()],
        metrics["penstock_files_written_total"][()],
        metrics["penstock_bytes_written_total"][()],
        0,
    )

    event = received.get(timeout=30)
    while event["run"]["facets"]["penstock_commit"]["batch"] != committed["batch"]:
        event = received.get(timeout=30)
    [table] = event["outputs"]
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (commit["written"], commit["size_bytes"])
    assert {"number", "day", "partition", "offset"} <= {
        column["name"] for column in table["facets"]["schema"]["fields"]
    }
    ends = {
        number: at["end"]
        for number, at in event["inputs"][0]["inputFacets"]["penstock_positions"]["partitions"].items()
    }
    assert ends == {str(at["partition"]): at["position"] for at in status["partitions"]}
