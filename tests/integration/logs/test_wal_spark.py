"""A job from a WAL on a real Spark: executors read through the server."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.logs.wal.client import WalClient
from tests.support.pipes import Pipe, ids
from tests.support.wal import served

TOPIC = "orders"
RECORDS = 25_000
"""Enough for two tasks on one partition."""


def test_tasks_read_pieces_of_a_partition_through_the_server(tmp_path: Path, spark: SparkSession) -> None:
    with served(tmp_path / "wal") as server, WalClient(server.url) as client:
        client.create_topic(TOPIC, 2)
        for start in range(0, RECORDS, 500):
            client.append(TOPIC, map(str.encode, ids(range(start, start + 500))), partition=0)
        client.append(TOPIC, [b"broken", *map(str.encode, ids(range(RECORDS, RECORDS + 3)))], partition=1)
        pipe = Pipe(tmp_path, server.url, spark)
        pipe.describe(TOPIC)
        pipe.path.write_text(pipe.path.read_text().replace("kafka: {bootstrap:", "wal: {url:"))
        pipe.run_to_end()
        assert pipe.rows("partition", "offset", "id") == [
            *((0, number, number) for number in range(RECORDS)),
            *((1, number + 1, RECORDS + number) for number in range(3)),
        ]
        assert pipe.quarantined() == [(1, 0)]
        assert pipe.verified()
        assert [list(state.positions.values()) for state in client.partitions(TOPIC)] == [[RECORDS], [4]]
