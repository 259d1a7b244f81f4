"""What the reader inside tasks hands over from a real log: every record that Kafka can hold, in bounded batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.native.columns import UNREADABLE_HEADERS
from penstock.logs.kafka.native.consumer import RawConsumer
from penstock.logs.kafka.native.messages import READS_AT_ONCE, Messages
from penstock.logs.kafka.reader import PieceReader
from penstock.logs.log import Slice, SliceShrankError
from tests.support.kafka import Produce, Topics
from tests.support.pieces import BATCH_BYTES, partition_of, read, reader
from tests.support.pipes import Pipe
from tests.support.raw_records import RawRecord, append_raw, limit_consumers
from tests.support.waiting import wait_until

MIB = 1024 * 1024
SECONDS_MAX = 120
ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


def test_records_of_1_byte_to_10_megabytes_come_in_bounded_batches_once_and_in_order(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(config={"max.message.bytes": "20000000"})
    rng = random.Random(11)
    sizes = [1] * 1_000 + [900_000] * 100 + [rng.choice([1, 100, 10_000, 1_000_000]) for _ in range(60)]
    sizes += [10_000_000, 1, 10_000_000, 10_000_000, *[10] * 3_000]
    content = memoryview(rng.randbytes(10_000_000))
    produce(name, (bytes(content[:size]) for size in sizes), partition=0)
    result: list[bytes] = []
    offsets: list[int] = []
    for batch in read(reader(bootstrap, name, len(sizes))):
        assert batch.nbytes <= BATCH_BYTES or batch.num_rows == 1
        offsets += batch.column("offset").to_pylist()
        result += batch.column("value").to_pylist()
    assert offsets == list(range(len(sizes)))
    assert [len(value) for value in result] == sizes
    assert all(value == content[: len(value)] for value in result)


HOSTILE = (
    RawRecord(b'{"id": 0}', timestamp=1_700_000_000_000),
    RawRecord(b'{"id": 1}', timestamp=1_700_000_000_000_000_000),
    RawRecord(b'{"id": 2}', timestamp=-(2**63)),
    RawRecord(b'{"id": 3}', headers=[(b"ok", b"1"), (b"\xff\xfe", b"2"), (b"\xfd", None), (b"z", b"")]),
    RawRecord(b'{"id": 4}', b"k", headers=[(b"", None), (b"\xc3\xa9", b"\xff"), (b"", b"")]),
    RawRecord(b'{"id": 5}', headers=[(b"h%d" % number, b"v") for number in range(3_000)]),
)


def hostile(bootstrap: str, topic: Topics) -> str:
    name = topic(config=ANY_TIME)
    append_raw(bootstrap, name, HOSTILE)
    return name


def test_every_record_that_kafka_accepts_is_read(bootstrap: str, topic: Topics) -> None:
    [batch] = read(reader(bootstrap, hostile(bootstrap, topic), len(HOSTILE)))
    farthest = (2**63 - 1) // 1_000 * 1_000
    times = [1_700_000_000_000_000, farthest, -farthest, 0, 0, 0]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == times
    assert batch.column("value").to_pylist() == [item.value for item in HOSTILE]
    assert batch.column("key").to_pylist() == [record.key for record in HOSTILE]
    headers = [_pairs(headers) for headers in batch.column("headers").to_pylist()]
    assert headers[:3] == [[], [], []]
    assert headers[3] == UNREADABLE_HEADERS
    assert headers[4] == [("", None), ("é", b"\xff"), ("", b"")]
    assert headers[5] == [(f"h{number}", b"v") for number in range(3_000)]


def test_values_that_do_not_fit_a_column_make_only_their_rows_bad(bootstrap: str, topic: Topics, pipe: Pipe) -> None:
    name = hostile(bootstrap, topic)
    pipe.describe(name)
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2, 3, 4, 5]
    assert pipe.verified()
    careful = replace(pipe, folder=pipe.folder / "careful")
    careful.folder.mkdir()
    careful.describe(name, columns="at: kafka.timestamp, h: kafka.headers")
    careful.run_to_end()
    assert careful.column("id") == [0, 4, 5]
    assert [len(item or ()) for item in careful.column("h")] == [0, 3, 3_000]
    values = [record.value for record in HOSTILE]
    assert careful.quarantined("offset", "value", "error") == [
        (1, values[1], "at: the record's Kafka timestamp is outside years 1 to 9999"),
        (2, values[2], "at: the record's Kafka timestamp is outside years 1 to 9999"),
        (3, values[3], "h: a header key of the record is not UTF-8"),
    ]
    assert careful.verified()


def test_a_header_key_keeps_its_nul(bootstrap: str, topic: Topics) -> None:
    name = topic(config=ANY_TIME)
    headers = [(b"a\x00b", b"1"), (b"\xc3\xa9", b"2"), (b"\x00", None), (b"a\x00", b""), (b"", b"3")]
    append_raw(bootstrap, name, [RawRecord(b"{}", headers=headers), RawRecord(b"{}")])
    [batch] = read(reader(bootstrap, name, 2))
    first, second = (_pairs(item) for item in batch.column("headers").to_pylist())
    assert first == [("a\0b", b"1"), ("é", b"2"), ("\0", None), ("a\0", b""), ("", b"3")]
    assert second == []


def test_the_memory_layout_of_times_and_headers_matches_this_librdkafka(bootstrap: str, topic: Topics) -> None:
    assert READS_AT_ONCE, "look at where this version keeps them, then add it to _KNOWN_VERSIONS"
    name = topic(config=ANY_TIME)
    sent = [*HOSTILE, *(RawRecord(b"x", timestamp=1_700_000_000_000 + n) for n in range(1_000)), *HOSTILE]
    append_raw(bootstrap, name, sent)
    consumer = RawConsumer(reader(bootstrap, name, 1).settings, lambda _: None)
    consumer.assign(name, 0, 0)
    read_count = 0
    while read_count < len(sent):
        arrived = consumer.consume(400, 1.0)
        if arrived is None:
            continue
        rows = np.flatnonzero(arrived.errors == 0)
        singly = Messages(arrived._pointers, reads_at_once=False)
        if len(rows):
            (kinds, times), (kinds_singly, times_singly) = arrived.timestamps(rows), singly.timestamps(rows)
            assert (kinds.tolist(), times.tolist()) == (kinds_singly.tolist(), times_singly.tolist())
            assert arrived.headers(rows) == singly.headers(rows)
        read_count += len(rows)
        arrived.free()
    consumer.close()


def test_p3_a_recreated_topic_is_not_read_as_the_old_one(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ["old"] * 5)
    old = reader(bootstrap, name, 5)
    assert sum(batch.num_rows for batch in read(old)) == 5
    topic.recreate(name)
    produce(name, ["new"] * 5)
    with pytest.raises(TransientError, match="recreated"):
        list(read(old))
    assert sum(batch.num_rows for batch in read(reader(bootstrap, name, 5))) == 5


def offsets(bootstrap: str, tasks_min: int, *slices: Slice) -> list[tuple[int, int]]:
    spec = KafkaLogSpec(bootstrap, topics=("given-by-the-slices",))
    rows = [row for batch in read(PieceReader.of(spec, slices, tasks_min, BATCH_BYTES)) for row in batch.to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


def test_slices_that_are_split_over_tasks_give_every_offset_once(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, (f"p0-{number}" for number in range(30_000)), partition=0)
    produce(name, (f"p1-{number}" for number in range(400)), partition=1)
    first, second = (partition_of(bootstrap, name, number) for number in (0, 1))
    slices = [Slice(first, 0, 29_000, 100), Slice(second, 0, 400, 0)]
    assert len(PieceReader.of(KafkaLogSpec(bootstrap), slices, 6, BATCH_BYTES).pieces) > 2
    result = offsets(bootstrap, 6, *slices)
    assert sorted(result) == [(0, n) for n in range(100, 29_000)] + [(1, n) for n in range(400)]


def test_aborted_records_and_markers_are_holes_and_every_range_ends(bootstrap: str, topic: Topics) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    # Offsets: 0 1 2 and marker 3; aborted 4 5 and marker 6; 7 and marker 8.
    for count, finish in (
        (3, producer.commit_transaction),
        (2, producer.abort_transaction),
        (1, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(name, "x", partition=0)
        producer.flush(SECONDS_MAX)
        finish(SECONDS_MAX)
    log = KafkaLog(KafkaLogSpec(bootstrap, topics=(name,)))
    wait_until(lambda: [bound.end for bound in log.bounds(log.partitions()).values()] == [9])
    log.close()
    partition = partition_of(bootstrap, name)
    for start, end, expected in ((0, 9, [0, 1, 2, 7]), (0, 4, [0, 1, 2]), (3, 7, []), (4, 5, []), (6, 8, [7])):
        assert [offset for _, offset in offsets(bootstrap, 1, Slice(partition, start, end, start))] == expected


def test_offsets_that_retention_took_ask_for_a_new_plan(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ["x"] * 10)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        future.result(SECONDS_MAX)
    with pytest.raises(SliceShrankError):
        list(read(reader(bootstrap, name, 10)))


def test_skipping_a_long_aborted_transaction_counts_as_progress(bootstrap: str, topic: Topics) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "batch.size": 50_000})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    for _ in range(50):
        producer.produce(name, bytes(100_000), partition=0)
    producer.flush(SECONDS_MAX)
    producer.abort_transaction(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(name, b"kept", partition=0)
    producer.commit_transaction(SECONDS_MAX)
    # It takes twice as long to pass as silence may last.
    limit_consumers(bootstrap, name, 1_000_000)
    whole = reader(bootstrap, name, 52)
    small_fetches = {"client.id": name, "fetch.message.max.bytes": "200000"}
    [batch] = read(replace(whole, settings={**whole.settings, **small_fetches}, silence_seconds_max=3.5))
    assert batch.column("offset").to_pylist() == [51]


def test_a_log_that_does_not_respond_is_reported(bootstrap: str, topic: Topics) -> None:
    empty = replace(reader(bootstrap, topic(), 1), silence_seconds_max=0.5)
    quiet = replace(empty, settings={**empty.settings, "enable.partition.eof": "false"})
    with pytest.raises(TransientError, match="sent nothing"):
        list(read(quiet))


def _pairs(headers: Sequence[dict[str, object]] | None) -> list[tuple[object, object]]:
    return [(header["key"], header["value"]) for header in headers or ()]
