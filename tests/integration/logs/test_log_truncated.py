"""RULES P3: a log that lost its tail and grew again past the table's position is noticed by its leader epochs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.job.spec import kafka_of
from penstock.logs.kafka.log import KafkaLog, lost_tails
from penstock.logs.log import EpochMark, LostTail, Partition
from penstock.plan import LostTailError
from penstock.watch.verify import Verdict, ViolationKind, verify
from tests.support.exports import ExportPipe, event
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, ids

SECONDS_MAX = 120


def segment(cluster: Cluster, topic: str) -> Path:
    """The only file with records of the topic's only partition."""
    data = cluster.broker.data_folder(cluster.folder)
    return data / f"{topic}-0" / f"{0:020d}.log"


def restart_with_cut(cluster: Cluster, sizes: dict[Path, int]) -> None:
    """Start the broker again with these files as short as they once were: a leader that never had the rest."""
    cluster.stop()
    for path, size in sizes.items():
        os.truncate(path, size)
    # Kafka trusts the ends that it noted unless it believes that it crashed.
    (cluster.broker.data_folder(cluster.folder) / ".kafka_cleanshutdown").unlink()
    Cluster.start(cluster.folder)


def abort(bootstrap: str, topic: str, values: Iterable[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    producer.abort_transaction(SECONDS_MAX)


def new_pipe(folder: Path, bootstrap: str, spark: SparkSession) -> Pipe:
    folder.mkdir()
    return Pipe(folder, bootstrap, spark)


def test_p3_a_log_that_was_cut_and_grew_past_the_position_stops_the_job_and_a_restart_does_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        topic, produce = Topics(cluster.bootstrap), Produce(cluster.bootstrap)
        cut, exported, whole = topic(), topic(), topic()
        produce(cut, ids(range(5)))
        produce(exported, [event("A", number) for number in range(5)])
        sizes = {segment(cluster, item): segment(cluster, item).stat().st_size for item in (cut, exported)}
        produce(cut, ids(range(5, 10)))
        produce(exported, [event("A", number) for number in range(5, 10)])
        produce(whole, ids(range(5)), transactional=True)
        pipe, steady = (new_pipe(tmp_path / name, cluster.bootstrap, spark) for name in ("cut", "whole"))
        export = ExportPipe(tmp_path, cluster.bootstrap, spark)
        pipe.describe(cut)
        steady.describe(whole, kafka="transactional: true", on="gap: record")
        export.describe(exported)
        for job in (pipe, steady, export):
            job.run_to_end()

        restart_with_cut(cluster, sizes)
        produce(cut, ids(range(100, 110)))
        produce(exported, [event("A", number) for number in range(100, 110)])
        with pytest.raises(LostTailError) as raised:
            pipe.run_to_end(retries=1)
        assert (raised.value.mark, raised.value.end) == (EpochMark(end=10, epoch=0), 5)
        assert (pipe.positions(), pipe.column("id")) == ([10], list(range(10)))
        with pytest.raises(LostTailError) as raised:
            export.run_to_end()
        assert (raised.value.mark, raised.value.end) == (EpochMark(end=10, epoch=0), 5)
        assert (export.global_positions(), export.offsets("A")) == ([10], list(range(10)))
        for proof in (verify(pipe.job, deep=False), verify(export.job, deep=False)):
            assert proof.verdict is Verdict.VIOLATED
            assert str(proof.first_violation).endswith(f"offsets [5, 10): {ViolationKind.NOT_IN_LOG}")

        # The other topic has a new epoch as well. Its first records are at offsets without a row: an aborted
        # transaction, so that the position moves on and the mark does not.
        abort(cluster.bootstrap, whole, ids(range(50, 53)))
        steady.run_to_end()
        produce(whole, ids(range(5, 10)), transactional=True)
        steady.run_to_end()
        assert steady.column("id") == list(range(10))
        [law] = [check for check in verify(steady.job, deep=False).checks if check.name == "log"]
        assert (law.ok, law.facts["epochs_compared"]) == (True, 1)
        [end] = steady.positions()
        assert end is not None
        produce(whole, ids(range(10, 15)))
        topic.cut(whole, end + 2)
        steady.run_to_end()
        assert steady.column("id") == [*range(10), 12, 13, 14]

        check_log_alone(pipe, topic, produce, whole)


def check_log_alone(pipe: Pipe, topic: Topics, produce: Produce, whole: str) -> None:
    """What needs no table: marks before what retention left, and those of a recreated topic."""
    with closing(KafkaLog(kafka_of(pipe.job))) as log:
        [partition] = log.partitions()
        [epoch] = log.leader_epochs([partition]).values()
        assert epoch is not None and epoch > 0
        assert lost_tails(log, {Partition(whole, "", 0): [EpochMark(3, 0)]}) == ()
        held, lost, later = EpochMark(5, 0), EpochMark(6, 0), EpochMark(15, epoch)
        assert lost_tails(log, {partition: [held, later]}) == ()
        assert lost_tails(log, {partition: [held, lost, later]}) == (LostTail(partition, lost, 5),)
    topic.recreate(partition.topic)
    produce(partition.topic, ids(range(20)))
    with closing(KafkaLog(kafka_of(pipe.job))) as log:
        assert lost_tails(log, {partition: [later]}) == (LostTail(partition, later, None),)
