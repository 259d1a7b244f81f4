"""Both readers, librdkafka in the tasks and Spark's own Kafka source, carry the same records into the table."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.engine.pipeline import Pipeline
from penstock.job.loader import load_job
from tests.kafka import Produce, Topics

JOB = """\
job: readers
log:
  kafka: {{bootstrap: "{bootstrap}", topics: [{topic}], transactional: true, reader: {reader}}}
decode: raw
columns: {{partition: kafka.partition, offset: kafka.offset, at: kafka.timestamp, k: kafka.key, h: kafka.headers}}
table:
  delta: {{path: "{table}"}}
"""


@pytest.mark.parametrize("reader", ["librdkafka", "spark"])
def test_a_reader_gives_every_committed_record_with_key_time_and_headers(
    reader: str, tmp_path: Path, bootstrap: str, spark: SparkSession, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(
        name,
        [b"first", None],
        partition=0,
        key=b"k",
        headers=[("a", b"1"), ("a", None)],
        timestamp_ms=1_790_000_000_000,
    )
    produce(name, [b"committed"], partition=0, transactional=True)
    _abort(bootstrap, name)
    produce(name, [b"last"], partition=0)
    produce(name, [b"other"], partition=1, transactional=True)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(bootstrap=bootstrap, topic=name, reader=reader, table=tmp_path / "table"))
    pipeline = Pipeline(load_job(path), spark)
    try:
        outcome = pipeline.round(flush_now=True).outcome
    finally:
        pipeline.close()
    assert outcome is not None and not outcome.refused
    rows = pl.read_delta(str(tmp_path / "table")).sort("partition", "offset")
    # Offset 1 is a tombstone, 3 and 6 are markers, 4 and 5 were aborted.
    assert rows.select("partition", "offset", "value").rows() == [
        (0, 0, b"first"),
        (0, 2, b"committed"),
        (0, 7, b"last"),
        (1, 0, b"other"),
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
