"""The bytes of a record out of their wrapping, with a bound on what a small record may grow to."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa

from penstock.job.spec import Payload, Wrapping

PART_BYTES_MAX = 64 * 1024 * 1024
"""Of unpacked values that are held at a time; the last of them may go beyond it by what one record may have."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class UnreadablePayloadError(Exception):
    """The bytes are not what the job file says they are, or grow beyond their bound."""


def unwrap(values: Sequence[bytes | None], wrapping: Wrapping) -> tuple[list[bytes | None], dict[int, str]]:
    """The inner bytes of values until enough are held, and by number why some have none to read.

    The others are for the next call; null stays null.
    """
    unwrapped: list[bytes | None] = []
    errors: dict[int, str] = {}
    size_bytes = 0
    for number, value in enumerate(values):
        if size_bytes >= PART_BYTES_MAX:
            break
        inner = None
        try:
            if value is not None:
                inner = _UNPACK[wrapping.payload](value, wrapping.bytes_max)
        except UnreadablePayloadError as error:
            errors[number] = str(error)
        unwrapped.append(inner)
        size_bytes += len(inner or b"")
    return unwrapped, errors


def _too_large(bytes_max: int) -> UnreadablePayloadError:
    return UnreadablePayloadError(f"payload unpacks to more than the {bytes_max} bytes of limits.payload_bytes")


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data or not parts:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(member.decompress(data, bytes_max + 1 - size_bytes))
        except zlib.error as error:
            raise UnreadablePayloadError(f"payload is not gzip: {error}") from None
        size_bytes += len(parts[-1])
        if size_bytes > bytes_max:
            raise _too_large(bytes_max)
        if not member.eof:
            raise UnreadablePayloadError("payload is not gzip: it ends too early")
        data = member.unused_data
    return b"".join(parts)


def _unzstd(data: bytes, bytes_max: int) -> bytes:
    if not data:
        raise UnreadablePayloadError("payload is not zstd: it is empty")
    try:
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            inner: bytes = stream.read(bytes_max + 1)
    except OSError as error:
        raise UnreadablePayloadError(f"payload is not zstd: {error}") from None
    if len(inner) > bytes_max:
        raise _too_large(bytes_max)
    return inner


_UNPACK = {Payload.GZIP: _gunzip, Payload.ZSTD: _unzstd}
