"""Lineage events, received by a real HTTP server on loopback."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.events import BatchCommitted, Output, RoundDone
from penstock.job.spec import JobSpec, Secret
from penstock.watch.lineage import Lineage
from tests.support.small_table import small_job

BATCH = BatchCommitted(
    "00000000000040008000000000000001",
    7,
    read=5,
    written=4,
    quarantined=1,
    slices={"orders/0": (10, 13), "orders/1": (0, 2)},
    outputs={"": Output({"id": "int64", "day": "string"}, 4, 900, 2)},
)
Received = queue.Queue[dict[str, Any]]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """What a server gets that the client's own environment variable names."""
    requests: Received = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.put({"path": self.path, **body})
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


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job("kafka-1:9092,kafka-2:9092", "orders", tmp_path)


def sent(job: JobSpec, received: Received, batch: BatchCommitted = BATCH) -> dict[str, Any]:
    with Lineage() as lineage:
        listener = lineage.listener(job)
        listener.event(RoundDone())
        listener.event(batch)
    assert received.qsize() == 1, "one event for each commit, and none for anything else"
    return received.get()


def test_a_commit_is_a_run_from_topics_to_a_table(job: JobSpec, received: Received) -> None:
    event = sent(job, received)
    assert (event["path"], event["eventType"]) == ("/api/v1/lineage", "COMPLETE")
    assert (event["job"]["namespace"], event["job"]["name"]) == ("penstock", "orders")
    assert event["run"]["runId"] == "00000000-0000-4000-8000-000000000001"
    commit = event["run"]["facets"]["penstock_commit"]
    assert (commit["version"], commit["read"], commit["quarantined"]) == (7, 5, 1)
    [topic] = event["inputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://kafka-1:9092", "orders")
    assert topic["inputFacets"]["penstock_positions"]["partitions"] == {
        "0": {"start": 10, "end": 13},
        "1": {"start": 0, "end": 2},
    }
    [table] = event["outputs"]
    assert (table["namespace"], table["name"]) == ("file", job.table.path)
    columns = [(column["name"], column["type"]) for column in table["facets"]["schema"]["fields"]]
    assert columns == [("id", "int64"), ("day", "string")]
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (4, 900, 2)


def test_the_types_of_an_export_are_tables_of_their_own(job: JobSpec, received: Received) -> None:
    outputs = {"click": Output({}, 1, 10, 1), "order": Output({}, 2, 20, 1)}
    in_store = replace(job, table=replace(job.table, path="s3://lake/shop"))
    event = sent(in_store, received, replace(BATCH, outputs=outputs))
    assert [(table["namespace"], table["name"]) for table in event["outputs"]] == [
        ("s3://lake", "shop/click"),
        ("s3://lake", "shop/order"),
    ]


def test_a_secret_path_is_not_sent(job: JobSpec, received: Received) -> None:
    secret = replace(job, table=replace(job.table, path=Secret("s3://lake/hidden-name")))
    assert "hidden-name" not in json.dumps(sent(secret, received))


def test_a_server_that_is_away_costs_the_job_nothing(
    job: JobSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    with Lineage() as lineage:
        lineage.listener(job).event(BATCH)
    assert "a lineage event cannot be sent" in caplog.text
