"""The bytes of a record out of their wrapping, with a bound on what a small record may grow to."""

from __future__ import annotations

import zlib

import pyarrow as pa

from penstock.errors import UserError
from penstock.job.spec import Payload

RECORD_BYTES_MAX = 256 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024 * 1024
"""Of one batch, unwrapped: beyond 2 GiB an Arrow array of strings cannot hold it."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class UnreadablePayloadError(Exception):
    """The bytes are not what the job file says they are, or grow beyond their bound."""


def unwrap(values: list[bytes | None], payload: Payload) -> tuple[list[bytes | None], dict[int, str]]:
    """The inner bytes of each value, null where there are none; a value that cannot be unwrapped has an error."""
    unwrapped: list[bytes | None] = []
    errors: dict[int, str] = {}
    size_bytes = 0
    for number, value in enumerate(values):
        inner = None
        try:
            if value is not None:
                inner = _gunzip(value) if payload is Payload.GZIP else _unzstd(value)
        except UnreadablePayloadError as error:
            errors[number] = str(error)
        unwrapped.append(inner)
        size_bytes += len(inner or b"")
        if size_bytes > BATCH_BYTES_MAX:
            raise UserError(
                f"{number + 1} records of one Arrow batch hold more than {BATCH_BYTES_MAX} bytes unpacked",
                hint="lower limits.arrow_batch_bytes_max",
            )
    return unwrapped, errors


def _gunzip(data: bytes) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data or not parts:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(member.decompress(data, RECORD_BYTES_MAX + 1 - size_bytes))
        except zlib.error as error:
            raise UnreadablePayloadError(f"payload is not gzip: {error}") from None
        size_bytes += len(parts[-1])
        if size_bytes > RECORD_BYTES_MAX:
            raise UnreadablePayloadError(f"payload grows beyond {RECORD_BYTES_MAX} bytes")
        if not member.eof:
            raise UnreadablePayloadError("payload is not gzip: it ends too early")
        data = member.unused_data
    return b"".join(parts)


def _unzstd(data: bytes) -> bytes:
    if not data:
        raise UnreadablePayloadError("payload is not zstd: it is empty")
    try:
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            inner: bytes = stream.read(RECORD_BYTES_MAX + 1)
    except OSError as error:
        raise UnreadablePayloadError(f"payload is not zstd: {error}") from None
    if len(inner) > RECORD_BYTES_MAX:
        raise UnreadablePayloadError(f"payload grows beyond {RECORD_BYTES_MAX} bytes")
    return inner
