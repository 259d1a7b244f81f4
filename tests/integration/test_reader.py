"""What the reader inside tasks hands over from a real log: every record that Kafka can hold, in bounded batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.errors import TransientError
from penstock.job.spec import KafkaLogSpec
from penstock.logs.batches import mark_of
from penstock.logs.kafka.reader import UNREADABLE_HEADERS, PieceReader
from penstock.logs.kafka.spark_source import read_batch
from penstock.logs.log import Partition, Slice
from tests.kafka import Produce, Topics
from tests.pipes import Pipe
from tests.raw_records import RawRecord, append_raw, limit_consumers

MIB = 1024 * 1024
BATCH_BYTES = 16 * MIB
SECONDS_MAX = 120
ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


def reader(bootstrap: str, topic: str, end: int) -> PieceReader:
    whole = Slice(Partition(topic, "any-id", 0), 0, end, 0)
    return PieceReader.of(KafkaLogSpec(bootstrap, topics=(topic,)), [whole], 1, BATCH_BYTES)


def read(reader: PieceReader) -> Iterator[pa.RecordBatch]:
    """The batches of records, without the marks after each piece."""
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(reader.pieces)))})
    return (batch for batch in reader([numbers]) if mark_of(batch) is None)


def test_records_of_1_byte_to_10_megabytes_come_in_bounded_batches_once_and_in_order(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(config={"max.message.bytes": "20000000"})
    rng = random.Random(11)
    sizes = [1] * 1_000 + [900_000] * 100 + [rng.choice([1, 100, 10_000, 1_000_000]) for _ in range(60)]
    sizes += [10_000_000, 1, 10_000_000, 10_000_000, *[10] * 3_000]
    content = memoryview(rng.randbytes(10_000_000))
    produce(name, (bytes(content[:size]) for size in sizes), partition=0)
    found: list[bytes] = []
    offsets: list[int] = []
    for batch in read(reader(bootstrap, name, len(sizes))):
        assert batch.nbytes <= BATCH_BYTES or batch.num_rows == 1
        offsets += batch.column("offset").to_pylist()
        found += batch.column("value").to_pylist()
    assert offsets == list(range(len(sizes)))
    assert [len(value) for value in found] == sizes
    assert all(value == content[: len(value)] for value in found)


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


def test_every_record_that_kafka_can_hold_is_handed_over(bootstrap: str, topic: Topics) -> None:
    [batch] = read(reader(bootstrap, hostile(bootstrap, topic), len(HOSTILE)))
    farthest = (2**63 - 1) // 1_000 * 1_000
    times = [1_700_000_000_000_000, farthest, -farthest, 0, 0, 0]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == times
    assert batch.column("value").to_pylist() == [each.value for each in HOSTILE]
    assert batch.column("key").to_pylist() == [each.key for each in HOSTILE]
    headers = [_pairs(each) for each in batch.column("headers").to_pylist()]
    assert headers[:3] == [[], [], []]
    assert headers[3] == UNREADABLE_HEADERS
    assert headers[4] == [("", None), ("é", b"\xff"), ("", b"")]
    assert headers[5] == [(f"h{number}", b"v") for number in range(3_000)]


def test_what_a_column_cannot_hold_is_a_fault_of_the_rows_that_use_it(
    bootstrap: str, topic: Topics, pipe: Pipe
) -> None:
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
    assert [len(each or ()) for each in careful.column("h")] == [0, 3, 3_000]
    values = [each.value for each in HOSTILE]
    assert careful.quarantined("offset", "value", "error") == [
        (1, values[1], "at: the record's Kafka timestamp is outside years 1 to 9999"),
        (2, values[2], "at: the record's Kafka timestamp is outside years 1 to 9999"),
        (3, values[3], "h: a header key of the record is not UTF-8"),
    ]
    assert careful.verified()


def test_only_sparks_own_reader_keeps_a_nul_in_a_header_key(bootstrap: str, topic: Topics, spark: SparkSession) -> None:
    """librdkafka's interface ends a key at its first NUL and nothing shows it: a limit that docs/job-file.md states."""
    name = topic(config=ANY_TIME)
    append_raw(bootstrap, name, [RawRecord(b"{}", headers=[(b"a\x00b", b"1"), (b"\xc3\xa9", b"2")])])
    [batch] = read(reader(bootstrap, name, 1))
    assert [_pairs(each) for each in batch.column("headers").to_pylist()] == [[("a", b"1"), ("é", b"2")]]
    whole = Slice(Partition(name, "any-id", 0), 0, 1, 0)
    [row] = read_batch(spark, KafkaLogSpec(bootstrap, topics=(name,)), [whole], 1, headers=True).collect()
    assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == [("a\x00b", b"1"), ("é", b"2")]


def test_an_aborted_transaction_that_takes_long_to_pass_is_progress(bootstrap: str, topic: Topics) -> None:
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


def test_a_log_that_does_not_answer_is_noticed(bootstrap: str, topic: Topics) -> None:
    empty = replace(reader(bootstrap, topic(), 1), silence_seconds_max=0.5)
    quiet = replace(empty, settings={**empty.settings, "enable.partition.eof": "false"})
    with pytest.raises(TransientError, match="sent nothing"):
        list(read(quiet))


def _pairs(headers: Sequence[dict[str, object]] | None) -> list[tuple[object, object]]:
    return [(each["key"], each["value"]) for each in headers or ()]
