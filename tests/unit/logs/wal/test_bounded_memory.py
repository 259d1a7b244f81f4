"""A server that is sent small bodies which stand for large ones, and half-sent requests, needs little memory."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.logs.wal.client import WalClient
from penstock.logs.wal.records import RECORDS_TYPE, WalRefusedError
from tests.unit.logs.wal.stores import TOPIC, append_body

MIB = 1024 * 1024
BODY = 16 * MIB
JSON = "application/json"
GROWTH_BYTES_MAX = 200 * MIB
"""What decoding one body may cost: the body a few times, and the values of its records once."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.support.wal_process", str(tmp_path_factory.mktemp("wal")), "0", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with WalClient(url) as client:
            client.create_topic(TOPIC)
        yield server, url
        server.terminate()


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """The most memory that the process has had since the peak was reset."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def reset_peak(process: subprocess.Popen[str]) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "short values": (JSON, lambda: b"[" + b"1," * (BODY // 2 - 2) + b"1]"),
    "lists in a list": (JSON, lambda: b"[[" + b"[]," * (BODY // 3 - 2) + b"[]]]"),
    "one value": (JSON, lambda: b'{"a":[' + b"[]," * (BODY // 3 - 4) + b"[]]}"),
    "empty lines": ("application/x-ndjson", lambda: b"\n" * BODY),
    "short lines": ("text/plain", lambda: b"x\n" * (BODY // 2)),
    "records": (RECORDS_TYPE, lambda: b"\xdd\x00\x80\x00\x00" + b"\x91\xc0" * (BODY // 2 - 4)),
    "headers": (
        RECORDS_TYPE,
        lambda: b"\x91\x93\xc0\xc0\xdd\x00\x50\x00\x00" + b"\x92\xa0\xc0" * 0x500000,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_expands_beyond_the_limit_is_refused_without_decoding(
    process: tuple[subprocess.Popen[str], str], name: str
) -> None:
    server, url = process
    content_type, make = BODIES[name]
    body = make()
    assert len(body) <= BODY
    reset_peak(server)
    before = peak_bytes(server)
    with WalClient(url, tries_max=1) as client, pytest.raises(WalRefusedError):
        append_body(client, body, content_type)
    assert peak_bytes(server) - before < GROWTH_BYTES_MAX


def test_incomplete_request_heads_use_little_memory(process: tuple[subprocess.Popen[str], str]) -> None:
    server, url = process
    split = urlsplit(url)
    reset_peak(server)
    before = peak_bytes(server)
    with ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(socket.create_connection((split.hostname, split.port), timeout=60))
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_000)
        with WalClient(url) as client:
            client.partitions()
        assert peak_bytes(server) - before < 100 * MIB
