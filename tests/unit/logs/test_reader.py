"""How slices are cut into pieces for tasks, and what arrives into Arrow batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.report import TaskReport
from penstock.job.kafka_types import RECORD_SCHEMA as SCHEMA
from penstock.logs.batches import ROWS_MAX, gathered, mark_batch, mark_of
from penstock.logs.kafka.native.columns import UNREADABLE_HEADERS, ByteSpans, KafkaRecords, arrow_batches, binary_array
from penstock.logs.kafka.native.messages import RawHeaders
from penstock.logs.kafka.reader import CHUNK_RECORDS
from penstock.logs.log import EpochMark, Partition, Piece, Slice, pieces_of
from tests.support.task_reports import sent
from tests.support.tries import tries

MIB = 1024 * 1024
BATCH_BYTES = 16 * MIB
WEB = Piece("web", 0, 0, 1_000_000)


def piece(number: int, start: int, end: int, read_from: int | None = None) -> Slice:
    return Slice(Partition("web", "id", number), start, end, start if read_from is None else read_from)


def test_an_epoch_mark_survives_its_batch_and_the_task_report() -> None:
    mark = EpochMark(end=7, epoch=0)
    batch = mark_batch(SCHEMA, "web", 3, mark)
    assert (batch.num_rows, mark_of(batch)) == (0, (("web", 3), mark))
    assert mark_of(pa.RecordBatch.from_pylist([], SCHEMA)) is None
    assert sent(TaskReport(marks={("web", 3): (mark,)})).marks == {("web", 3): (mark,)}


def test_one_slice_gives_every_core_a_piece() -> None:
    assert pieces_of([piece(0, 10, 40_010)], 2) == (Piece("web", 0, 10, 20_010), Piece("web", 0, 20_010, 40_010))


def test_a_small_slice_stays_whole() -> None:
    assert pieces_of([piece(0, 10, 20)], 2) == (Piece("web", 0, 10, 20),)


def test_many_slices_stay_whole() -> None:
    assert pieces_of([piece(0, 0, 5), piece(1, 0, 5), piece(2, 0, 5)], 2) == (
        Piece("web", 0, 0, 5),
        Piece("web", 1, 0, 5),
        Piece("web", 2, 0, 5),
    )


def test_a_gap_and_an_empty_slice_are_not_read() -> None:
    assert pieces_of([piece(0, 0, 9, read_from=7), piece(1, 4, 4)], 1) == (Piece("web", 0, 7, 9),)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50_000)), max_size=4), st.integers(1, 16))
def test_pieces_cover_their_slices_without_hole_or_overlap(ranges: list[tuple[int, int]], tasks_min: int) -> None:
    slices = [piece(number, start, start + size) for number, (start, size) in enumerate(ranges)]
    pieces = pieces_of(slices, tasks_min)
    for item in slices:
        offsets = [
            offset
            for part in pieces
            if part.partition == item.partition.number
            for offset in range(part.start, part.end)
        ]
        assert offsets == list(range(item.start, item.end))


@dataclass(frozen=True)
class Sent:
    value: bytes | None = None
    key: bytes | None = None
    time: tuple[int, int] = (TIMESTAMP_CREATE_TIME, 0)
    headers: RawHeaders | None = None


def spans(values: Sequence[bytes | None]) -> ByteSpans:
    """Where the values lie; they have to be kept meanwhile."""
    addresses = [0 if value is None else pa.py_buffer(value).address for value in values]
    return ByteSpans(np.array(addresses, np.uint64), np.array([len(item or b"") for item in values], np.int64))


def records(sent: Sequence[Sent], offsets: Sequence[int] | None = None) -> KafkaRecords:
    kinds, times = zip(*(item.time for item in sent), strict=True)
    return KafkaRecords(
        np.array(range(len(sent)) if offsets is None else offsets, np.int64),
        spans([record.value for record in sent]),
        spans([record.key for record in sent]),
        np.array(kinds, np.int32),
        np.array(times, np.int64),
        [record.headers for record in sent],
    )


def read(sizes: list[int], chunk: int) -> Iterator[pa.RecordBatch]:
    """What the reader makes of records of these sizes that arrive in chunks."""

    def arrived() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(sizes), chunk):
            part = [Sent(bytes(size)) for size in sizes[start : start + chunk]]
            yield from arrow_batches(WEB, records(part, range(start, start + len(part))), BATCH_BYTES)

    return gathered(arrived(), BATCH_BYTES)


def mixed_sizes(seed: int) -> list[int]:
    """Runs of like records, from 1 B to 10 MB, each run up to 60 MB; few small records may stand before large ones."""
    rng = random.Random(seed)
    sizes: list[int] = []
    for _ in range(6):
        largest = 10 ** rng.randint(0, 7)
        count = rng.randint(1, max(1, min(6_000, 60_000_000 // largest)))
        sizes += [rng.randint(1, largest) for _ in range(count)]
    return sizes


@pytest.mark.parametrize("seed", range(tries(2)))
def test_batches_of_mixed_sizes_keep_their_limit_and_every_record_once_in_order(seed: int) -> None:
    sizes = mixed_sizes(seed)
    expected = iter(sizes)
    offset = 0
    for batch in read(sizes, random.Random(seed).choice([1, 100, CHUNK_RECORDS])):
        assert batch.nbytes <= BATCH_BYTES or batch.num_rows == 1
        assert batch.num_rows <= ROWS_MAX
        assert batch.column("offset").to_pylist() == list(range(offset, offset + batch.num_rows))
        assert pa.compute.binary_length(batch.column("value")).to_pylist() == [
            next(expected) for _ in range(batch.num_rows)
        ]
        offset += batch.num_rows
    assert offset == len(sizes)


def test_neighbours_are_put_together_up_to_the_limit() -> None:
    rows = [batch.num_rows for batch in read([100_000] * 1_000, chunk=10)]
    assert rows == [160] * 6 + [40]


def test_keys_and_headers_count_too() -> None:
    sent = [Sent(b"", bytes(MIB), headers=[(b"h", bytes(MIB))]) for _ in range(40)]
    batches = list(gathered(arrow_batches(WEB, records(sent), BATCH_BYTES), BATCH_BYTES))
    assert all(batch.nbytes <= BATCH_BYTES for batch in batches)
    assert [at for batch in batches for at in batch.column("offset").to_pylist()] == list(range(40))


def test_a_time_out_of_range_becomes_the_nearest_and_changes_no_other() -> None:
    created = [(TIMESTAMP_CREATE_TIME, at) for at in (5, 2**63 - 1, -(2**63), 1_700_000_000_000_000_000, -1)]
    times = [*created, (TIMESTAMP_NOT_AVAILABLE, 0)]
    [batch] = arrow_batches(WEB, records([Sent(b"", time=time) for time in times]), BATCH_BYTES)
    farthest = (2**63 - 1) // 1_000 * 1_000
    expected = [5_000, farthest, -farthest, farthest, -1_000, None]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == expected


def test_null_and_empty_keys_values_and_headers_stay_apart() -> None:
    sent = [
        Sent(b"", b"", headers=[(b"", None), (b"", b""), (b"", b"x")]),
        Sent(),
        Sent(key=b"k", headers=[(b"%d" % n, b"v") for n in range(5_000)]),
        Sent(headers=[(b"a\0b", b"1"), (b"\xc3\xa9", None)]),
        Sent(headers=[(b"ok", b"1"), (b"\xff", b"2")]),
    ]
    [batch] = arrow_batches(WEB, records(sent, [0, 1, 7, 8, 9]), BATCH_BYTES)
    assert batch.column("offset").to_pylist() == [0, 1, 7, 8, 9]
    assert batch.column("key").to_pylist() == [b"", None, b"k", None, None]
    assert batch.column("value").to_pylist() == [b"", None, None, None, None]
    named, none, many, *unusual = batch.column("headers").to_pylist()
    assert [(item["key"], item["value"]) for item in named] == [("", None), ("", b""), ("", b"x")]
    assert none is None
    assert [header["key"] for header in many] == [str(n) for n in range(5_000)]
    assert [[(header["key"], header["value"]) for header in headers] for headers in unusual] == [
        [("a\0b", b"1"), ("é", None)],
        UNREADABLE_HEADERS,
    ]


@given(st.lists(st.none() | st.binary(max_size=40) | st.integers(0, 300).map(bytes), max_size=30), st.randoms())
def test_values_are_copied_from_any_address(values: list[bytes | None], rng: random.Random) -> None:
    order = list(range(len(values)))
    rng.shuffle(order)
    copies = {number: bytes(bytearray(values[number] or b"")) for number in order}
    result = binary_array(spans([None if value is None else copies[number] for number, value in enumerate(values)]))
    result.validate(full=True)
    assert result.to_pylist() == values


def test_values_that_lie_far_apart_are_copied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.logs.kafka.native.columns._REACH_BYTES", 1)
    values = [b"", None, b"some bytes", bytes(1_000)]
    assert binary_array(spans(values)).to_pylist() == values
