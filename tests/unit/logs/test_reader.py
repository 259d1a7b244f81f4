"""How slices are cut into pieces for tasks, and what arrives into Arrow batches."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.report import TaskReport, decode_report, encode_report
from penstock.job.kafka_types import RECORD_SCHEMA as SCHEMA
from penstock.logs.batches import ROWS_MAX, gathered, mark_batch, mark_of
from penstock.logs.kafka.reader import CHUNK_RECORDS, arrow_batches
from penstock.logs.log import EpochMark, Partition, Piece, Slice
from penstock.logs.pieces import pieces_of

MIB = 1024 * 1024
BATCH_BYTES = 16 * MIB
WEB = Piece("web", 0, 0, 1_000_000)


def piece(number: int, start: int, end: int, read_from: int | None = None) -> Slice:
    return Slice(Partition("web", "id", number), start, end, start if read_from is None else read_from)


def test_a_mark_is_told_from_records() -> None:
    mark = EpochMark(end=7, epoch=0)
    batch = mark_batch(SCHEMA, "web", 3, mark)
    assert (batch.num_rows, mark_of(batch)) == (0, (("web", 3), mark))
    assert mark_of(pa.RecordBatch.from_pylist([], SCHEMA)) is None
    assert decode_report(encode_report(TaskReport(marks={("web", 3): (mark,)}))).marks == {("web", 3): (mark,)}


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
    for each in slices:
        offsets = [
            offset
            for part in pieces
            if part.partition == each.partition.number
            for offset in range(part.start, part.end)
        ]
        assert offsets == list(range(each.start, each.end))


def message(offset: int, value: bytes | None, timestamp: tuple[int, int] = (TIMESTAMP_CREATE_TIME, 0)) -> Message:
    return Message(topic="web", partition=0, offset=offset, value=value, timestamp=timestamp)


def read(sizes: list[int], chunk: int) -> Iterator[pa.RecordBatch]:
    """What the reader makes of records of these sizes that arrive in chunks; one memory serves all values."""
    content = memoryview(bytes(max(sizes)))

    def arrived() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(sizes), chunk):
            part = [message(start + n, bytes(content[:size])) for n, size in enumerate(sizes[start : start + chunk])]
            yield from arrow_batches(WEB, part, BATCH_BYTES)

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


@pytest.mark.parametrize("seed", range(8))
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
    sent = [
        Message(topic="web", partition=0, offset=n, value=b"", key=bytes(MIB), headers=[("h", bytes(MIB))])
        for n in range(40)
    ]
    batches = list(gathered(arrow_batches(WEB, sent, BATCH_BYTES), BATCH_BYTES))
    assert all(batch.nbytes <= BATCH_BYTES for batch in batches)
    assert [at for batch in batches for at in batch.column("offset").to_pylist()] == list(range(40))


def test_a_time_beyond_microseconds_is_the_farthest_one_and_its_neighbours_keep_theirs() -> None:
    known = [(TIMESTAMP_CREATE_TIME, at) for at in (5, 2**63 - 1, -(2**63), 1_700_000_000_000_000_000, -1)]
    times = [*known, (TIMESTAMP_NOT_AVAILABLE, 0)]
    [batch] = arrow_batches(WEB, [message(n, b"", time) for n, time in enumerate(times)], BATCH_BYTES)
    farthest = (2**63 - 1) // 1_000 * 1_000
    expected = [5_000, farthest, -farthest, farthest, -1_000, None]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == expected


def test_null_and_empty_keys_values_and_headers_stay_apart() -> None:
    sent = [
        Message(topic="web", partition=0, offset=0, key=b"", value=b"", headers=[("", None), ("", b""), ("", b"x")]),
        Message(topic="web", partition=0, offset=1),
        Message(topic="web", partition=0, offset=7, key=b"k", headers=[(str(n), b"v") for n in range(5_000)]),
    ]
    [batch] = arrow_batches(WEB, sent, BATCH_BYTES)
    assert batch.column("offset").to_pylist() == [0, 1, 7]
    assert batch.column("key").to_pylist() == [b"", None, b"k"]
    assert batch.column("value").to_pylist() == [b"", None, None]
    named, none, many = batch.column("headers").to_pylist()
    assert [(each["key"], each["value"]) for each in named] == [("", None), ("", b""), ("", b"x")]
    assert none is None
    assert [each["key"] for each in many] == [str(n) for n in range(5_000)]
