"""The limitations of kafka-delta-ingest (L and C numbers of its users' list), each with the right outcome here."""

from __future__ import annotations

import gzip
import json
import signal
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.embedded.broker import Cluster
from penstock.engine.round import open_rounds
from penstock.environment import Environment
from penstock.errors import FencedError
from penstock.lake.delta.table import open_table
from penstock.lake.delta.vacuum import Dead
from penstock.lake.state import Totals
from penstock.plan import GapError
from penstock.tables.delta.vacuum import vacuum
from tests.kafka import Produce, Topics
from tests.pipes import CrashError, Pipe, Recorder, crash_at, ids, once_at
from tests.processes import penstock

BAD = '{"id": "not-a-number"}'


def test_l1_a_value_of_the_wrong_type_is_put_aside_and_its_neighbours_land(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [*ids(range(10)), BAD, *ids(range(11, 21))])
    pipe.describe(name)
    pipe.run_to_end()
    assert pipe.column("offset") == [*range(10), *range(11, 21)]
    [(offset, error, value)] = pipe.quarantined("offset", "error", "value")
    assert (offset, value) == (10, BAD.encode())
    assert error.startswith("id: expected long")
    pipe.run_to_end()
    assert pipe.quarantined() == [(0, 10)]


def test_l2_bad_records_at_the_end_are_kept_once_however_often_the_job_restarts(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    name = topic(2)
    produce(name, [*ids(range(3)), BAD, BAD], partition=0)
    produce(name, [BAD, BAD, BAD], partition=1)
    pipe.describe(name)
    for _ in range(3):
        pipe.run_to_end()
    assert pipe.positions() == [5, 3]
    assert pipe.quarantined() == [(0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]
    assert pipe.verified()


def test_l4_offsets_that_retention_took_stop_the_job_unless_it_says_otherwise(
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
    found = pipe.status()
    assert found.gap_offsets == 30
    assert [(each.start, each.end) for each in found.gaps] == [(20, 50)]
    assert pipe.totals() == Totals(read=30, written=30, gap=30)
    assert pipe.verified()


def test_l4_a_gap_that_opens_behind_the_end_of_a_bounded_run_is_recorded_up_to_it(
    pipe: Pipe, topic: Topics, produce: Produce
) -> None:
    """Retention passes the end that `run --once` saw first: the run takes the gap up to there and ends."""
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name, on="gap: record")

    def retention() -> None:
        produce(name, ids(range(10, 30)))
        topic.cut(name, 20)

    pipe.run_to_end(once_at("planned", retention), retries=2)
    assert pipe.positions() == [10]
    assert pipe.totals() == Totals(gap=10)
    pipe.run_to_end()
    assert pipe.column("id") == list(range(20, 30))
    assert pipe.totals() == Totals(read=10, written=10, gap=20)


def test_l5_a_hundred_and_fifty_bad_records_are_one_commit(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    pipe.describe(name)
    pipe.run_to_end()
    version = pipe.version()
    produce(name, [BAD] * 150)
    pipe.run_to_end()
    assert pipe.version() == version + 1
    quarantine = DeltaTable(pipe.quarantine)
    assert [each["operation"] for each in quarantine.history()] == ["WRITE", "CREATE TABLE"]
    assert len(pipe.quarantined()) == 150


def test_l6_a_broker_that_is_away_at_the_start_is_waited_for(tmp_path: Path, spark: SparkSession) -> None:
    with Cluster.start(tmp_path / "kafka") as cluster:
        name = Topics(cluster.bootstrap)()
        Produce(cluster.bootstrap)(name, ids(range(5)))
        cluster.stop()
        pipe = Pipe(tmp_path, cluster.bootstrap, spark)
        pipe.describe(name)
        reasons: list[str] = []

        class Helper(Recorder):
            def event(self, name: str, **fields: object) -> None:
                if name == "retrying":
                    reasons.append(f"{fields['reason']} {fields['detail']}")
                    Cluster.start(tmp_path / "kafka")

        pipe.run_to_end(retries=3, heard=Helper())
        assert len(reasons) == 1
        assert cluster.bootstrap in reasons[0]
        assert pipe.column("id") == list(range(5))


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
        told = [each["event"] for each in process.rest()]
    assert "batch committed" in told
    assert told[-1] == "job stopped"
    assert pipe.column("id") == list(range(10))
    assert [each.mirrored for each in pipe.status().partitions] == [10]


def test_l9_files_of_a_batch_that_was_never_committed_are_vacuumed(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ids(range(10)))
    pipe.describe(name)
    with pytest.raises(CrashError):
        pipe.run_to_end(crash_at("staged"))
    orphans = {path for path in Path(pipe.table).iterdir() if path.is_file()}
    assert orphans
    pipe.run_to_end()
    report = vacuum(open_table(pipe.job.table, pipe.job.name))
    assert {Path(pipe.table) / each.path for each in report.deleted} == orphans
    assert {each.reason for each in report.deleted} == {Dead.PASSED}
    assert not any(orphan.exists() for orphan in orphans)
    assert pipe.column("id") == list(range(10))


def test_l12_a_partition_that_is_read_to_its_end_has_no_lag(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    name = topic(2)
    produce(name, ids(range(7)), partition=0)
    pipe.describe(name)
    pipe.run_to_end()
    found = [(each.position, each.lag_records, each.mirrored) for each in pipe.status().partitions]
    assert found == [(7, 0, 7), (0, 0, None)]


def test_c6_two_topics_of_one_job_do_not_meet(pipe: Pipe, topic: Topics, produce: Produce) -> None:
    first, second = sorted([topic(), topic()])
    produce(first, ids(range(4)))
    produce(second, ids(range(100, 107)))
    pipe.describe(first, second, columns="topic: kafka.topic")
    pipe.run_to_end()
    produce(first, ids(range(4, 6)))
    pipe.run_to_end()
    assert pipe.positions() == [6, 7]
    rows = sorted(pipe.rows("topic", "id"))
    assert rows == [(first, number) for number in range(6)] + [(second, number) for number in range(100, 107)]
    assert pipe.verified()


@pytest.mark.parametrize(
    ("policy", "rows", "quarantined", "totals"),
    [
        ("filter", [1, 2], [], Totals(read=3, written=2, filtered=1)),
        ("row", [1, None, 2], [], Totals(read=3, written=3)),
        ("quarantine", [1, 2], [(0, 1)], Totals(read=3, written=2, quarantined=1)),
    ],
)
def test_a_tombstone_follows_its_policy_and_is_counted(
    pipe: Pipe,
    topic: Topics,
    produce: Produce,
    policy: str,
    rows: list[int | None],
    quarantined: list[tuple[int, int]],
    totals: Totals,
) -> None:
    name = topic()
    produce(name, ['{"id": 1}', None, '{"id": 2}'], key="k")
    pipe.describe(name, columns="key: kafka.key", on=f"tombstone: {policy}")
    pipe.run_to_end()
    assert pipe.column("id") == rows
    assert pipe.column("key") == [b"k"] * len(rows)
    assert (pipe.quarantined() if quarantined else []) == quarantined
    assert pipe.totals() == totals


@pytest.mark.parametrize("payload", ["gzip", "zstd"])
def test_c7_packed_records_are_unpacked_and_broken_ones_put_aside(
    pipe: Pipe, topic: Topics, produce: Produce, payload: str
) -> None:
    name = topic()
    plain = [text.encode() for text in ids(range(3))]
    packed = [gzip.compress(each) if payload == "gzip" else pa.compress(each, "zstd", asbytes=True) for each in plain]
    produce(name, [*packed, packed[0][:-4], plain[0]])
    pipe.describe(name, decode=f"{{format: json, payload: {payload}}}")
    pipe.run_to_end()
    assert pipe.column("id") == [0, 1, 2]
    assert pipe.quarantined("offset", "value") == [(3, packed[0][:-4]), (4, plain[0])]


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
    heard = Recorder()

    def rival() -> None:
        other = open_rounds(pipe.job, pipe.spark, Environment(listener=heard))
        other.round(flush_now=True)
        other.close()

    with pytest.raises(FencedError):
        pipe.run_to_end(once_at("staged", rival), retries=3)
    assert pipe.column("id") == list(range(5))
    assert len(heard.named("batch committed")) == 1
