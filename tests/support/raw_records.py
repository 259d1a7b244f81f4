"""What no client library does, as bytes of Kafka's protocol: unusual records, and quotas."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

SECONDS_MAX = 120.0
_PRODUCE, _PRODUCE_VERSION = 0, 8
_ALTER_CLIENT_QUOTAS = 49
_NO_LEADER_YET = (3, 5, 6)
"""The errors of a partition that was just made: unknown, without a leader, led by another."""
_CASTAGNOLI = 0x82F63B78


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as the log keeps it: header keys are bytes, a timestamp is any number of 64 bits."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def append_raw(bootstrap: str, topic: str, records: Sequence[RawRecord], partition: int = 0) -> None:
    """Append each record as a batch of its own, which any timestamps fit into; one broker is the leader of all."""
    acks_all, timeout_ms = -1, 30_000
    deadline = time.monotonic() + SECONDS_MAX
    for record in records:
        batch = _batch(record)
        partitions = struct.pack(">iii", 1, partition, len(batch)) + batch
        request = struct.pack(">hhii", -1, acks_all, timeout_ms, 1) + _text(topic) + partitions
        while (error := _produce_error(bootstrap, topic, request)) in _NO_LEADER_YET and time.monotonic() < deadline:
            time.sleep(0.05)
        assert error == 0, f"the broker refuses the record: error {error}"


def _produce_error(bootstrap: str, topic: str, request: bytes) -> int:
    answer = _answer(bootstrap, _PRODUCE, _PRODUCE_VERSION, request)
    # One topic, its name, one partition, its number: the error code follows.
    [error] = struct.unpack_from(">h", answer, 4 + len(_text(topic)) + 4 + 4)
    return int(error)


def limit_consumers(bootstrap: str, client_id: str, bytes_per_second: int) -> None:
    """Let clients of that id read no more than so much."""
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    operation = struct.pack(">i", 1) + _text("consumer_byte_rate") + struct.pack(">d?", bytes_per_second, False)
    request = struct.pack(">i", 1) + entity + operation + struct.pack(">?", False)
    answer = _answer(bootstrap, _ALTER_CLIENT_QUOTAS, 0, request)
    [error] = struct.unpack_from(">h", answer, 4 + 4)
    assert error == 0, f"the broker refuses the quota: error {error}"


def _answer(bootstrap: str, api: int, version: int, request: bytes) -> bytes:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    correlation = struct.pack(">i", 1)
    message = struct.pack(">hh", api, version) + correlation + _text("raw") + request
    with socket.create_connection((host, int(port)), SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(message)) + message)
        [size] = struct.unpack(">i", _received(connection, 4))
        return _received(connection, size).removeprefix(correlation)


def _batch(record: RawRecord) -> bytes:
    body = b"\x00" + _varint(0) + _varint(0) + _bytes(record.key) + _bytes(record.value) + _varint(len(record.headers))
    body += b"".join(_bytes(key) + _bytes(value) for key, value in record.headers)
    no_producer = struct.pack(">qhi", -1, -1, -1)
    times = struct.pack(">qq", record.timestamp, record.timestamp)
    checked = struct.pack(">hi", 0, 0) + times + no_producer + struct.pack(">i", 1) + _varint(len(body)) + body
    behind_length = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(behind_length)) + behind_length


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    """A number as zigzag of variable length."""
    remaining = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _crc32c(data: bytes) -> int:
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (_CASTAGNOLI if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def _received(connection: socket.socket, count: int) -> bytes:
    result = b""
    while len(result) < count:
        part = connection.recv(count - len(result))
        assert part, "the broker closed the connection"
        result += part
    return result
