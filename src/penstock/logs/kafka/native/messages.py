"""Records in the client's memory as columns of addresses and numbers, without a Python object per record.

The client's public interface lacks two things. The length of a header's key that contains a NUL: see
`_key_length_is_before`. And times and headers without a call per record, which costs half as much as everything else:
for the versions in `_KNOWN_VERSIONS` they are read from memory, and the calls are made only for the first and the last
record of each chunk, which must agree.
"""

from __future__ import annotations

import ctypes
from collections import deque
from ctypes import c_size_t, c_void_p
from typing import TypeAlias

import confluent_kafka
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError

from penstock.errors import InvariantError
from penstock.logs.kafka.native.library import QUICK, C

Addresses: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Times: TypeAlias = tuple[npt.NDArray[np.int32], Int64Array]
"""Kinds of timestamps, 0 where there is none, and milliseconds."""
RawHeaders: TypeAlias = list[tuple[bytes, bytes | None]]

# Of `rd_kafka_message_t`, in machine words of eight bytes.
_WORDS = 9
_ERROR, _VALUE, _VALUE_LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 3, 4, 5, 6, 7
# Of what the client keeps after it.
_KNOWN_VERSIONS = frozenset([0x021000FF])
"""The versions for which a test has checked this layout."""
_KNOWN_WORDS = 16
_TIME_KIND, _TIME, _HEADER_BYTES = 11, 12, 15
_EMPTY_HEADER_BYTES = 1
READS_AT_ONCE = confluent_kafka.libversion()[1] in _KNOWN_VERSIONS


class Messages:
    """What a call to `consume` returned: records in the client's memory until `free`, in the order of their offsets."""

    def __init__(self, pointers: Addresses, *, reads_at_once: bool = READS_AT_ONCE) -> None:
        self._pointers = pointers
        self._reads_at_once = reads_at_once
        first = int(pointers.min())
        size = int(pointers.max()) - first + 8 * (_KNOWN_WORDS if reads_at_once else _WORDS)
        # One array over all memory between them; only the addresses of the records are read.
        self._words = np.frombuffer(pa.foreign_buffer(first, size), np.int64)
        self._places = ((pointers - np.uint64(first)) >> np.uint64(3)).astype(np.int64)
        self.errors = self._field(_ERROR).astype(np.int32)
        self.offsets = self._field(_OFFSET)
        self.values = self._field(_VALUE).view(np.uint64)
        self.value_lengths = self._field(_VALUE_LENGTH)
        self.keys = self._field(_KEY).view(np.uint64)
        self.key_lengths = self._field(_KEY_LENGTH)

    def error(self, number: int) -> KafkaError:
        """The error of an event that is not a record; the client stores its text where a record has its value."""
        code, text = int(self.errors[number]), b""
        if self.values[number]:
            text = ctypes.string_at(int(self.values[number]), int(self.value_lengths[number]))
        return KafkaError(code, (text or C["err2str"](code)).decode(errors="replace"))

    def timestamps(self, numbers: Int64Array) -> Times:
        """The timestamps of these records, one at least."""
        if not self._reads_at_once:
            return self._called_timestamps(numbers)
        kinds = (self._field(_TIME_KIND) >> 32).astype(np.int32)[numbers]
        millis = self._field(_TIME)[numbers]
        called_kinds, called_millis = self._called_timestamps(numbers[[0, -1]])
        _check(np.array_equal(kinds[[0, -1]], called_kinds) and np.array_equal(millis[[0, -1]], called_millis))
        return kinds, millis

    def headers(self, numbers: Int64Array) -> list[RawHeaders | None]:
        """The headers of these records, one at least; None where a record has none."""
        if not self._reads_at_once:
            return self._called_headers(numbers)
        having = self._field(_HEADER_BYTES).astype(np.int32)[numbers] > _EMPTY_HEADER_BYTES
        called = self._called_headers(numbers[[0, -1]])
        # Bytes that the client does not parse as headers, such as more than 100,000 of them, count as no headers.
        _check(all(has or headers is None for has, headers in zip(having[[0, -1]].tolist(), called, strict=True)))
        result: list[RawHeaders | None] = [None] * len(numbers)
        if having.any():
            rows = np.flatnonzero(having)
            for row, headers in zip(rows.tolist(), self._called_headers(numbers[rows]), strict=True):
                result[row] = headers
        return result

    def leader_epoch(self, number: int) -> int:
        epoch: int = QUICK["message_leader_epoch"](int(self._pointers[number]))
        return epoch

    def broker(self, number: int) -> int:
        """The broker that served the record; -1 if the client does not know."""
        result: int = QUICK["message_broker_id"](int(self._pointers[number]))
        return result

    def free(self) -> None:
        deque(map(QUICK["message_destroy"], self._pointers.tolist()), maxlen=0)

    def _field(self, index: int) -> Int64Array:
        result: Int64Array = self._words[self._places + index]
        return result

    def _called_timestamps(self, numbers: Int64Array) -> Times:
        kinds = np.zeros(len(numbers), np.int32)
        places = range(kinds.ctypes.data, kinds.ctypes.data + kinds.nbytes, kinds.itemsize)
        times = map(QUICK["message_timestamp"], self._pointers[numbers].tolist(), places)
        return kinds, np.fromiter(times, np.int64, len(numbers))

    def _called_headers(self, numbers: Int64Array) -> list[RawHeaders | None]:
        lists = np.zeros(len(numbers), np.uint64)
        places = range(lists.ctypes.data, lists.ctypes.data + lists.nbytes, lists.itemsize)
        deque(map(QUICK["message_headers"], self._pointers[numbers].tolist(), places), maxlen=0)
        return [_headers(address) if address else None for address in lists.tolist()]


def _check(agree: bool) -> None:
    if not agree:
        raise InvariantError("this librdkafka stores times or headers of records at other addresses than expected")


def _headers(listed: int) -> RawHeaders:
    headers: RawHeaders = []
    key, value, length = c_void_p(), c_void_p(), c_size_t()
    places = ctypes.addressof(key), ctypes.addressof(value), ctypes.addressof(length)
    while QUICK["header_get_all"](listed, len(headers), *places) == 0:
        content = None if value.value is None else ctypes.string_at(value.value, length.value)
        headers.append((_key(key.value or 0), content))
    return headers


def _key(address: int) -> bytes:
    if _KEY_LENGTH_IS_BEFORE:
        return ctypes.string_at(address, _length_before(address))
    return ctypes.string_at(address)


def _length_before(key: int) -> int:
    return c_size_t.from_address(key - 2 * ctypes.sizeof(c_size_t)).value


def _key_length_is_before() -> bool:
    """Whether the client keeps the length of a header's key just before it, as all its versions since 0.11.4 do.

    Its interface gives keys as C strings, which end at a NUL; Kafka's may contain some. Checked with test headers.
    """
    key, value, length = c_void_p(), c_void_p(), c_size_t()
    places = ctypes.addressof(key), ctypes.addressof(value), ctypes.addressof(length)
    sample: RawHeaders = [(b"a\0b", b"value"), (b"long\0" * 50, None), (b"", b""), (b"\0", b"v" * 300)]
    listed = QUICK["headers_new"](len(sample))
    try:
        for name, content in sample:
            QUICK["header_add"](listed, name, len(name), content, 0 if content is None else len(content))
        for number, (name, _) in enumerate(sample):
            QUICK["header_get_all"](listed, number, *places)
            if _length_before(key.value or 0) != len(name):
                return False
        return True
    finally:
        QUICK["headers_destroy"](listed)


_KEY_LENGTH_IS_BEFORE = _key_length_is_before()
