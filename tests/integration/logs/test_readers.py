"""The reader in the tasks carries every committed record into the table, with all that Kafka keeps of it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.engine.round import open_rounds
from penstock.tables.registry import load_job
from tests.support.kafka import Produce, Topics
from tests.support.waiting import wait_until

JOB = """\
job: readers
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], transactional: true}}
decode: raw
columns: {{partition: kafka.partition, offset: kafka.offset, at: kafka.timestamp, k: kafka.key, h: kafka.headers}}
table:
  delta: {{path: "{table}"}}
"""


def test_every_committed_record_arrives_with_key_time_and_headers(
    tmp_path: Path, bootstrap: str, spark: SparkSession, topic: Topics, produce: Produce
) -> None:
    # Records with times of their own must not be taken by retention meanwhile.
    name = topic(partitions=2, config={"retention.ms": "-1"})
    places = produce(
        name,
        [b"first", None],
        partition=0,
        key=b"k",
        headers=[("a", b"1"), ("a", None)],
        timestamp_ms=1_790_000_000_000,
    )
    places += produce(name, [b"committed"], partition=0, transactional=True)
    _abort(bootstrap, name)
    places += produce(name, [b"last"], partition=0)
    places += produce(name, [b"other"], partition=1, transactional=True)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=name, table=tmp_path / "table"))
    pipeline = open_rounds(load_job(path), spark)
    ends = {place[0]: place[1] + 1 for place in places}

    def all_read() -> bool:
        # The last transaction's marker is written after its commit: until then the record is not stable.
        pipeline.round(flush_now=True)
        partitions = pipeline.log.partitions()
        state = pipeline.table.state(partitions)
        return all((state.of(partition).position or 0) >= ends[partition.number] for partition in partitions)

    try:
        wait_until(all_read)
    finally:
        pipeline.close()
    rows = pl.read_delta(str(tmp_path / "table")).sort("partition", "offset")
    # The second is a tombstone; markers and the two aborted records take offsets between the others.
    expected = zip(places, [b"first", None, b"committed", b"last", b"other"], strict=True)
    assert rows.select("partition", "offset", "value").rows() == [
        (*place, value) for place, value in expected if value is not None
    ]
    first = rows.row(0, named=True)
    assert (first["k"], first["at"].timestamp()) == (b"k", 1_790_000_000.0)
    assert first["h"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]


def _abort(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"abort-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(topic, b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
