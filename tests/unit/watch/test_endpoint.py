"""The endpoint of a run, over real sockets on loopback."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import UserError
from penstock.events import JobFailed, JobStopped, Retrying, RoundDone
from penstock.serving import host_and_port
from penstock.tables.registry import KINDS
from penstock.watch.endpoint import LOOPBACK, Readiness, served
from penstock.watch.metrics import OF_ALL_JOBS, Metrics
from tests.support.small_table import small_job

AWAY = Retrying("the broker is away", "", 1.0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ready(tmp_path: Path, clock: Clock) -> Readiness:
    return Readiness(small_job("127.0.0.1:1", "orders", tmp_path), clock)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def port(metrics: Metrics, ready: Readiness) -> Iterator[int]:
    port = free_port()
    with served(LOOPBACK, port, metrics.registry, [ready]):
        yield port


def test_metrics_are_prometheus_text(port: int, metrics: Metrics) -> None:
    listener = metrics.listener("fan", KINDS["delta"])
    listener.event(AWAY)
    status, text = get(port, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert status == 200
    assert families["penstock_retries"].samples[0].value == 1
    assert set(families) >= {item.name.removesuffix("_total") for item in OF_ALL_JOBS}


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/metricsx", "/healthz/x"])
def test_other_paths_are_not_found(port: int, path: str) -> None:
    assert get(port, path) == (404, "not found\n")


def test_a_process_lives_while_its_job_waits_for_a_broker(port: int, ready: Readiness) -> None:
    assert get(port, "/readyz")[0] == 503, "no round yet"
    ready.event(RoundDone())
    assert get(port, "/readyz") == (200, "ok\n")
    ready.event(AWAY)
    assert get(port, "/readyz") == (503, "orders: the broker is away\n")
    assert get(port, "/healthz") == (200, "ok\n")
    ready.event(RoundDone())
    assert get(port, "/readyz")[0] == 200


def test_a_job_whose_round_never_ends_is_not_ready(ready: Readiness, clock: Clock) -> None:
    ready.event(RoundDone())
    clock.seconds = 600.0
    assert ready.problem == ""
    clock.seconds = 601.0
    assert ready.problem == "orders: no round has ended for 601 s"


def test_a_job_that_failed_is_not_ready_and_one_that_is_done_is(ready: Readiness) -> None:
    ready.event(JobFailed("UserError", "topic gone", ""))
    assert ready.problem == "orders: topic gone"
    ready.event(JobStopped())
    assert ready.problem == ""


def test_an_address_that_is_taken_is_an_error(port: int) -> None:
    with pytest.raises(UserError) as refusal, served(LOOPBACK, port, Metrics().registry, []):
        pass
    assert str(port) in refusal.value.primary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9400", (LOOPBACK, 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("node-1:9400", ("node-1", 9400)),
    ],
)
def test_a_port_alone_is_on_the_loopback_address(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port("--metrics", text, LOOPBACK) == expected


@pytest.mark.parametrize("text", ["", ":9400", "host", "host:", "65536", "host:-1", "host:9400x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        host_and_port("--metrics", text, LOOPBACK)
