"""The server against clients of all kinds: what is refused appends nothing, and no other client waits for a bad one."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import TransientError, UserError
from penstock.logs.log import Bounds, SliceShrankError
from penstock.logs.wal import records as records_module
from penstock.logs.wal import server as server_module
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.records import (
    RECORDS_TYPE,
    SPLITTERS,
    WalDamagedError,
    WalFullError,
    WalRefusedError,
    read_body,
)
from penstock.logs.wal.server import HEAD_BYTES_MAX, WalServer
from penstock.logs.wal.store import WalLimits
from tests.support.tries import tries
from tests.support.wal import served
from tests.unit.logs.wal.stores import TOPIC, append_body, bounds_of

JSON = "application/json"
CONNECTIONS_MAX = 4


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WalServer]:
    """A server with small limits."""
    monkeypatch.setattr(server_module, "BODY_BYTES_MAX", 100_000)
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", CONNECTIONS_MAX)
    monkeypatch.setattr(records_module, "RECORD_BYTES_MAX", 10_000)
    with served(tmp_path / "wal") as running:
        running.store.create_topic(TOPIC, 3)
        yield running


@pytest.fixture
def client(server: WalServer) -> Iterator[WalClient]:
    with WalClient(server.url, tries_max=1) as made:
        yield made


def ends(server: WalServer) -> list[int]:
    return [state.end for state in server.store.partitions(TOPIC)]


def read(client: WalClient, number: int = 0) -> list[bytes]:
    end = client.partitions(TOPIC)[number].end
    return [value for _, values in client.read(TOPIC, number, 0, end) for value in values]


@pytest.mark.parametrize(
    ("content_type", "body", "values"),
    [
        (JSON, b' {"a": 1} ', [b'{"a": 1}']),
        (JSON, b'[{"a": 1}, 2,[3] ]', [b'{"a": 1}', b"2", b"[3]"]),
        ("application/json; charset=utf-8", b'"a"', [b'"a"']),
        ("application/x-ndjson", b'{"a": 1}\r\n\n{"a": 2}', [b'{"a": 1}', b'{"a": 2}']),
        ("text/plain", b"one\r\n\ntwo\n", [b"one", b"", b"two"]),
        ("text/plain", b"one\ntwo", [b"one", b"two"]),
        ("application/octet-stream", b"\x00\n\xff", [b"\x00\n\xff"]),
    ],
)
def test_each_format_becomes_records(client: WalClient, content_type: str, body: bytes, values: list[bytes]) -> None:
    answer = append_body(client, body, content_type, partition=0)
    assert (answer.start, answer.end) == (0, len(values))
    assert read(client) == values


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b""),
        (JSON, b"[]"),
        (JSON, b'[{"a": 1}, {"a": 2]'),
        (JSON, b'{"a": 1} {"a": 2}'),
        (JSON, b'[{"a": nul}]'),
        (JSON, b"[" * 50_000),
        (JSON, b'{"a": ' * 10_000),
        (JSON, b'"\xff"'),
        ("application/x-ndjson", b'{"a": 1}\n{"a": '),
        (RECORDS_TYPE, b""),
        (RECORDS_TYPE, b"\x91"),
        (RECORDS_TYPE, b"\x91\x01"),
        (RECORDS_TYPE, b"\xdd\xff\xff\xff\xff"),
        (RECORDS_TYPE, b"\x91\x93\xc0\xc0\xdd\x00\x0f\x00\x00"),
        ("text/plain", b""),
        ("application/xml", b"<a/>"),
        ("", b"{}"),
    ],
)
def test_a_body_that_contradicts_its_content_type_appends_nothing(
    server: WalServer, client: WalClient, content_type: str, body: bytes
) -> None:
    with pytest.raises(WalRefusedError):
        append_body(client, body, content_type)
    assert ends(server) == [0, 0, 0]
    client.append(TOPIC, [b"still answers"])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SPLITTERS)), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content_type: str, body: bytes) -> None:
    try:
        count, stored = read_body(body, content_type)
    except WalRefusedError:
        return
    assert count == len(msgspec.msgpack.decode(stored, type=list[bytes])) > 0


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"]))
@settings(max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_path_and_query_gets_a_response(server: WalServer, path: str, query: str, method: str) -> None:
    target = f"/topics/{quote(path, safe='')}?{quote(query, safe='=&')}"
    status, _, body = asked(server, method, target, {"Content-Type": JSON}, b"{}")
    assert status in (200, 400, 404, 409)
    json.loads(body)


def asked(
    server: WalServer, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of the answer to one request."""
    split = urlsplit(server.url)
    connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=60)
    with closing(connection):
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def test_a_large_record_or_body_is_refused_with_its_limit(server: WalServer, client: WalClient) -> None:
    with pytest.raises(WalRefusedError) as raised:
        append_body(client, b"small\n" + b"x" * 10_001, "text/plain")
    assert "10001 bytes" in raised.value.primary and "10000" in raised.value.hint
    with pytest.raises(WalRefusedError) as raised:
        append_body(client, b"x" * 3_000_000, "application/octet-stream")
    assert "100000" in raised.value.primary
    assert ends(server) == [0, 0, 0]


def test_an_unknown_resource_is_a_client_error(client: WalClient) -> None:
    for call in (
        lambda: client.append("other", [b"a"]),
        lambda: client.append(TOPIC, [b"a"], partition=3),
        lambda: client._answer("DELETE", ["topics", "other"]),
        lambda: client.forget_job("other"),
        lambda: list(client.read(TOPIC, 7, 0, 1)),
    ):
        with pytest.raises(WalRefusedError) as raised:
            call()
        assert raised.value.status == 404
    with pytest.raises(SliceShrankError):
        list(client.read(TOPIC, 0, 0, 1))
    with pytest.raises(WalRefusedError):
        client.create_topic(TOPIC, 4)


def test_appends_of_one_key_are_in_one_partition_and_others_take_turns(server: WalServer, client: WalClient) -> None:
    homes = {key: {client.append(TOPIC, [b"a"], key=key).partition for _ in range(4)} for key in ("k0", "k1", "k2")}
    assert all(len(numbers) == 1 for numbers in homes.values())
    append_body(client, b"b", "text/plain", key="k0")
    assert b"b" in read(client, min(homes["k0"]))
    headers = {"Content-Type": "text/plain"}
    before = ends(server)
    for _ in range(3):
        assert asked(server, "POST", f"/topics/{TOPIC}/append", headers, b"x")[0] == 200
    assert ends(server) == [end + 1 for end in before]


def test_values_arrive_as_they_were_sent(client: WalClient) -> None:
    client.append(TOPIC, [b"", b"\xff\n", b"a"], partition=1)
    client.append(TOPIC, [b"value"], partition=1)
    assert read(client, 1) == [b"", b"\xff\n", b"a", b"value"]


def test_a_missing_append_is_reported_and_shifts_no_offset(server: WalServer, client: WalClient) -> None:
    for number in range(3):
        client.append(TOPIC, [b"%d" % number] * 2, partition=0)
    server.store._db.execute("DELETE FROM appends WHERE start = 2")
    for start in (0, 2, 3):
        with pytest.raises(WalDamagedError):
            list(client.read(TOPIC, 0, start, 6))
    assert len(list(client.read(TOPIC, 0, 4, 6))) == 1


def raw(server: WalServer) -> socket.socket:
    split = urlsplit(server.url)
    return socket.create_connection((split.hostname, split.port), timeout=60)


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


HEAD = f"POST /topics/{TOPIC}/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n".encode()


@pytest.mark.parametrize("sent", [0, 1, 9])
def test_an_incomplete_body_appends_nothing(server: WalServer, sent: int) -> None:
    with raw(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 10\r\n\r\n" + b"x" * sent)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b""
    assert ends(server) == [0, 0, 0]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", b"411"),
        (b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", b"415"),
        (b"Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n", b"413"),
        (b"Content-Length: -1\r\n\r\n", b"400"),
        (b"Content-Length: x\r\n\r\n", b"400"),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", b"400"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_and_its_connection_closed(
    server: WalServer, head: bytes, status: bytes
) -> None:
    with raw(server) as connection:
        connection.sendall(HEAD + head)
        assert everything(connection).split(b" ")[1] == status
    assert ends(server) == [0, 0, 0]


def test_a_refused_body_is_read_to_its_end_before_the_answer(server: WalServer) -> None:
    """An answer before that, with the end of the connection, could be lost."""
    with raw(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 300000\r\n\r\n" + b"x" * 250_000)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(b"x" * 50_000)
        assert everything(connection).split(b" ")[1] == b"413"


def test_silent_clients_are_disconnected_and_block_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One never sends its request, one half a body, one never reads an answer larger than what sockets buffer."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS_MAX", 2)
    with served(tmp_path) as server, WalClient(server.url) as client:
        client.create_topic(TOPIC, 1)
        for _ in range(8):
            client.append(TOPIC, [b"x" * 1_000_000] * 4)
        asks = f"GET /topics/{TOPIC}/records HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with raw(server) as silent, raw(server) as half, raw(server) as deaf:
            half.sendall(HEAD + b"Content-Length: 10\r\n\r\nabc")
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(asks.encode() * 4)
            assert client.append(TOPIC, [b"others go on"]).start == 32
            assert (everything(silent), half.recv(4096) is not None) == (b"", True)
        assert client.append(TOPIC, [b"and on"]).start == 33


def test_idle_connections_make_way_and_busy_ones_do_not(server: WalServer) -> None:
    """Silent ones and half-sent heads go first, then those that wait for their next request; half-sent bodies stay."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(raw(server)) for _ in range(3 * CONNECTIONS_MAX)]
        with WalClient(server.url, tries_max=1) as client:
            client.partitions()
            half_heads = [stack.enter_context(raw(server)) for _ in range(CONNECTIONS_MAX)]
            for connection in half_heads:
                connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert everything(crowd[0]) == b""
    busy = [raw(server) for _ in range(CONNECTIONS_MAX)]
    try:
        for connection in busy:
            connection.sendall(HEAD + b"Content-Length: 10\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in connection.recv(4096)
        with WalClient(server.url, tries_max=1) as late, pytest.raises(TransientError):
            late.partitions()
    finally:
        for connection in busy:
            connection.close()
    with WalClient(server.url) as later:
        later.partitions()
    assert ends(server) == [0, 0, 0]


def test_a_head_is_bounded(server: WalServer) -> None:
    with raw(server) as connection, pytest.raises(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for number in range(10_000):
            connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1_000))
    assert HEAD_BYTES_MAX < 1_000_000


def test_expect_100_continue_is_answered_at_once(server: WalServer) -> None:
    with raw(server) as connection:
        started = time.monotonic()
        connection.sendall(HEAD + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
        assert time.monotonic() - started < 1.0, "curl waits for a second and sends anyway"
        connection.sendall(b"x")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert sum(ends(server)) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": socket.gethostname()}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "127.0.0.1.attacker.example:80"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_host_and_origin_are_checked(server: WalServer, headers: dict[str, str], status: int) -> None:
    body = b"x"
    answer = asked(server, "POST", f"/topics/{TOPIC}/append", {"Content-Type": "text/plain", **headers}, body)
    assert answer[0] == status
    assert sum(ends(server)) == (status == 200)


def test_a_long_job_name_is_registered_and_a_longer_one_refused(client: WalClient) -> None:
    place = client.partitions(TOPIC)[0].partition
    client.report("j" * 249, {place: 0})
    assert client.partitions(TOPIC)[0].positions == {"j" * 249: 0}
    with pytest.raises(WalRefusedError) as raised:
        client.report("j" * 250, {place: 0})
    assert "249" in raised.value.hint


def test_a_full_partition_answers_retry_after_and_the_client_retries(tmp_path: Path) -> None:
    limits = WalLimits(partition_bytes_max=4_000, reserve_bytes=1024)
    with served(tmp_path, limits) as server:
        [state] = server.store.create_topic(TOPIC, 1)
        with WalClient(server.url, tries_max=1) as hasty, pytest.raises(WalFullError):
            for _ in range(10):
                hasty.append(TOPIC, [b"x" * 1_000])
        end = bounds_of(server.store).end
        headers = {"Content-Type": "text/plain"}
        status, answer, _ = asked(server, "POST", f"/topics/{TOPIC}/append", headers, b"x" * 1_000)
        assert (status, answer["Retry-After"]) == (503, "5")

        def read_on(_: float) -> None:
            server.store.report("job", [(state.partition, end)])

        with WalClient(server.url, sleep=read_on) as patient:
            assert patient.append(TOPIC, [b"x" * 1_000]).start == end


def test_many_clients_at_once_each_get_their_own_offsets(tmp_path: Path) -> None:
    def one(number: int) -> list[int]:
        with WalClient(running.url) as client:
            return [client.append(TOPIC, [b"%d-%d" % (number, item)], partition=0).start for item in range(20)]

    with served(tmp_path) as running:
        running.store.create_topic(TOPIC, 1)
        with ThreadPoolExecutor(6) as pool:
            offsets = list(pool.map(one, range(6)))
        with WalClient(running.url) as client:
            kept = read(client)
    assert sorted(offset for some in offsets for offset in some) == list(range(120))
    for number, some in enumerate(offsets):
        assert [kept[offset] for offset in some] == [b"%d-%d" % (number, item) for item in range(20)]


def test_an_unreachable_server_is_transient_and_an_invalid_address_is_not() -> None:
    slept: list[float] = []
    client = WalClient("http://127.0.0.1:9", tries_max=3, sleep=slept.append)
    with pytest.raises(TransientError):
        client.partitions()
    assert slept == [0.1, 0.2]
    for url in ("127.0.0.1:1", "ftp://a:1", "http://", "http://a/b"):
        with pytest.raises(UserError):
            WalClient(url)


def test_topics_are_listed_with_ends_sizes_and_what_jobs_have_committed(server: WalServer, client: WalClient) -> None:
    client.append(TOPIC, [b"a", b"b", b"c"], partition=1)
    client.report("job", {client.partitions(TOPIC)[1].partition: 1})
    states = json.loads(asked(server, "GET", "/topics")[2])
    assert [(state["partition"]["number"], state["end"], state["positions"]) for state in states] == [
        *((0, 0, {"job": None}), (1, 3, {"job": 1}), (2, 0, {"job": None})),
    ]


def test_with_tokens_requests_without_one_are_refused(tmp_path: Path) -> None:
    with served(tmp_path / "wal", tokens=["first-token", "second-token"]) as server:
        for token in ("first-token", "second-token"):
            with WalClient(server.url, token=token) as client:
                client.create_topic(TOPIC)
                client.append(TOPIC, [b"a"])
        for token in ("", "first-tokem", "first-token2"):
            with WalClient(server.url, token=token) as unknown:
                for call in (
                    unknown.partitions,
                    partial(unknown.append, TOPIC, [b"b" * 100_000]),
                    partial(unknown.create_topic, "other"),
                    partial(unknown._answer, "DELETE", ["topics", TOPIC]),
                    partial(unknown.report, "job", {}),
                ):
                    with pytest.raises(WalRefusedError) as raised:
                        call()
                    assert raised.value.status == 401
        assert bounds_of(server.store) == Bounds(0, 2)
        assert asked(server, "GET", "/health")[0] == 200
        for headers in ({}, {"Authorization": "Basic first-token"}):
            status, answer, _ = asked(server, "GET", "/topics", headers)
            assert (status, answer["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("token", ["secret\n", "sec ret", "\xff"])
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(UserError) as refused:
        WalClient("http://127.0.0.1:1", token=token)
    assert token.strip() not in refused.value.primary
