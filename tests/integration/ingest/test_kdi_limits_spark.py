"""The limitations of kafka-delta-ingest (L and C numbers of its users' list), each with the right outcome here."""

from __future__ import annotations

import json
import signal
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import FencedError, UnreachableError
from penstock.events import Event, Retrying
from penstock.job.spec import kafka_of
from penstock.lake.state import Totals
from penstock.logs.kafka.log import KafkaLog
from penstock.plan import GapError
from tests.support.kafka import Produce, Topics
from tests.support.pipes import Pipe, Recorder, ids, once_at
from tests.support.processes import penstock


def test_l4_offsets_deleted_by_retention_stop_the_job_unless_the_policy_allows_gaps(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    pipe.describe(name)
    produce(name, ids(range(20)))
    pipe.run_to_end()
    produce(name, ids(range(20, 60)))
    topic.cut(name, 50)
    with pytest.raises(GapError) as raised:
        pipe.run_to_end(retries=5)
    assert (raised.value.position, raised.value.first) == (20, 50)
    assert pipe.positions() == [20]
    pipe.describe(name, on="gap: record")
    pipe.run_to_end()
    assert pipe.column("id") == [*range(20), *range(50, 60)]
    status = pipe.status()
    assert status.gap_offsets == 30
    assert [(gap.start, gap.end) for gap in status.gaps] == [(20, 50)]
    assert pipe.totals() == Totals(read=30, written=30, gap=30)
    assert pipe.verified()


def test_l6_a_broker_that_is_away_at_the_start_ends_the_run_and_one_that_goes_in_mid_run_is_waited_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        name = Topics(cluster.bootstrap)()
        Produce(cluster.bootstrap)(name, ids(range(10)))
        cluster.stop()
        pipe = Pipe(tmp_path, cluster.bootstrap, spark)
        # Two batches: the broker goes once the first is committed.
        pipe.describe(name, flush="min_bytes_per_file: 1, max_messages_per_batch: 5, max_bytes_per_batch: 1")
        with pytest.raises(UnreachableError):
            pipe.run_to_end(retries=10)
        assert not Path(pipe.table).exists()
        Cluster.start(tmp_path / "kafka")
        reasons: list[str] = []
        rows: list[int] = []

        class Helper(Recorder):
            def event(self, event: Event) -> None:
                if isinstance(event, Retrying):
                    reasons.append(f"{event.reason} {event.detail}")
                    rows.append(len(pipe.column("id")))
                    if cluster.pid is None:
                        Cluster.start(tmp_path / "kafka")

        pipe.run_to_end(
            once_at("committed", cluster.kill),
            retries=10,
            recorder=Helper(),
            open_log=lambda job: KafkaLog(kafka_of(job), call_seconds_max=2.0),
        )
        assert 5 in rows, rows
        assert all(cluster.bootstrap in reason for reason in reasons), reasons
        assert pipe.column("id") == list(range(10))


def test_l7_a_missing_table_is_made_and_may_be_split_by_date(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    times = ["2024-02-28T23:59:59Z", "2024-02-29T00:00:00Z", "2024-02-29T01:00:00+02:00", None]
    produce(name, [json.dumps({"id": number, "at": at}) for number, at in enumerate(times)])
    pipe.describe(name, schema="id: long, at: timestamp", columns="day: day(at)", partition_by="day")
    pipe.run_to_end()
    assert pipe.column("day") == [date(2024, 2, 28), date(2024, 2, 29), date(2024, 2, 28), None]
    folders = sorted(path.name for path in Path(pipe.table).glob("day=*"))
    assert folders == ["day=2024-02-28", "day=2024-02-29", "day=__HIVE_DEFAULT_PARTITION__"]
    by_spark = pipe.spark.read.format("delta").load(pipe.table).where("day = date'2024-02-28'").orderBy("id")
    assert [row["id"] for row in by_spark.collect()] == [0, 2]


def test_l8_sigterm_finishes_the_batch_under_way_and_ends_well(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name, flush="allowed_latency: 100ms")
    with penstock("run", str(pipe.path), "--json", failpoint="staged:stop") as process:
        process.wait_stopped()
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)
        assert process.exit_code() == 0
        events = [item["event"] for item in process.rest()]
    assert "batch committed" in events
    assert events[-1] == "job stopped"
    assert pipe.column("id") == list(range(10))
    assert [partition.mirrored for partition in pipe.status().partitions] == [10]


def test_headers_and_time_of_a_record_can_be_columns(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(1)), headers=[("trace", b"7"), ("none", None)])
    pipe.describe(name, columns="headers: kafka.headers, day: day(kafka.timestamp)")
    pipe.run_to_end()
    [(headers, day)] = pipe.rows("headers", "day")
    assert headers == [{"key": "trace", "value": b"7"}, {"key": "none", "value": None}]
    assert abs((day - date.today()).days) <= 1  # noqa: DTZ011


def test_a_second_process_on_the_same_table_is_refused_and_nothing_is_there_twice(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    """The conflict of two workers (L9, and the rebalance scenarios): the later commit is refused."""
    name = topic()
    produce(name, ids(range(5)))
    pipe.describe(name)
    recorder = Recorder()

    def rival() -> None:
        other = open_rounds(pipe.job, pipe.spark, Environment(listener=recorder))
        other.round(flush_now=True)
        other.close()

    with pytest.raises(FencedError):
        pipe.run_to_end(once_at("staged", rival), retries=3)
    assert pipe.column("id") == list(range(5))
    assert len(recorder.named("batch committed")) == 1
