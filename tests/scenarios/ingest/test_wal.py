"""A job from a WAL into a Delta table: every record once, proved by `verify`, and trimmed only once it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.failpoints import BATCH_STEPS, START_STEPS
from penstock.logs.log import Bounds
from penstock.logs.wal.client import WalClient
from penstock.logs.wal.server import WalServer
from penstock.watch.verify import verify
from tests.support.pipes import CrashError, Pipe, crash_at, ids, once_at
from tests.support.wal import EAGER, WalProduce, served

TOPIC = "orders"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WalServer]:
    with served(tmp_path / "wal", EAGER) as running:
        running.store.create_topic(TOPIC, 2)
        yield running


@pytest.fixture
def produce(server: WalServer) -> WalProduce:
    return WalProduce(server.url)


@pytest.fixture
def pipe(tmp_path: Path, server: WalServer, spark: SparkSession) -> Pipe:
    """A job that reads the WAL."""
    made = Pipe(tmp_path, server.url, spark)
    describe(made)
    return made


def describe(pipe: Pipe, name: str = "pipe") -> None:
    pipe.describe(TOPIC)
    text = pipe.path.read_text().replace("kafka: {bootstrap:", "wal: {url:").replace("job: pipe", f"job: {name}")
    pipe.path.write_text(text)


def bounds(server: WalServer) -> list[Bounds]:
    return [Bounds(state.first, state.end) for state in server.store.partitions(TOPIC)]


def test_records_arrive_once_and_are_trimmed_after_their_commit(
    pipe: Pipe, server: WalServer, produce: WalProduce
) -> None:
    produce(TOPIC, ids(range(7)), partition=0)
    produce(TOPIC, [*ids(range(7, 9)), "broken", '{"id": 9}'], partition=1)
    kept: list[list[Bounds]] = []
    pipe.run_to_end(at_step=once_at("committed", lambda: kept.append(bounds(server))))
    assert kept == [[Bounds(0, 7), Bounds(0, 4)]], "until the commit is shown, nothing goes"
    assert pipe.rows("partition", "offset", "id") == [
        *((0, number, number) for number in range(7)),
        *((1, 0, 7), (1, 1, 8), (1, 3, 9)),
    ]
    assert pipe.quarantined() == [(1, 2)]
    assert bounds(server) == [Bounds(7, 7), Bounds(4, 4)]
    produce(TOPIC, ids(range(10, 12)), partition=0)
    pipe.run_to_end()
    assert pipe.positions() == [9, 4]
    assert pipe.verified()


def test_verify_proves_the_table_against_what_the_wal_still_has(tmp_path: Path, spark: SparkSession) -> None:
    with served(tmp_path / "wal") as server:
        server.store.create_topic(TOPIC, 1)
        pipe = Pipe(tmp_path, server.url, spark)
        describe(pipe)
        WalProduce(server.url)(TOPIC, ids(range(20)))
        pipe.run_to_end()
        assert bounds(server) == [Bounds(0, 20)]
        report = verify(pipe.job)
        assert report.ok and pipe.column("id") == list(range(20))
        assert not pipe.status().alerts


@pytest.mark.parametrize("step", [item for item in (*START_STEPS, *BATCH_STEPS) if item != "writing"])
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    pipe: Pipe, server: WalServer, produce: WalProduce, step: str
) -> None:
    produce(TOPIC, ids(range(5)), partition=0)
    with pytest.raises(CrashError):
        pipe.run_to_end(at_step=crash_at(step))
    produce(TOPIC, ids(range(5, 8)), partition=0)
    pipe.run_to_end()
    assert pipe.column("id") == list(range(8))
    assert bounds(server)[0] == Bounds(8, 8)
    assert pipe.verified()


def test_a_job_reads_from_a_wal_server_that_requires_a_token(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is the job's secret: driver and tasks send it, and nothing prints it."""
    with served(tmp_path / "wal", EAGER, tokens=["hidden-token"]) as server:
        server.store.create_topic(TOPIC, 1)
        with WalClient(server.url, token="hidden-token") as client:
            client.append(TOPIC, map(str.encode, ids(range(3))))
        pipe = Pipe(tmp_path, server.url, spark)
        describe(pipe)
        text = pipe.path.read_text()
        with pytest.raises(PenstockError, match="does not know this token"):
            pipe.run_to_end()
        monkeypatch.setenv("WAL_TOKEN", "hidden-token")
        pipe.path.write_text(text.replace("wal: {url:", 'wal: {token: "${env:WAL_TOKEN}", url:'))
        pipe.run_to_end()
        assert pipe.column("id") == [0, 1, 2] and pipe.verified()
        assert "hidden-token" not in repr(pipe.job)


def test_a_second_job_of_the_topic_holds_what_it_has_not_read(
    pipe: Pipe, server: WalServer, produce: WalProduce, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "slow").mkdir()
    slow = Pipe(tmp_path / "slow", server.url, spark)
    describe(slow, "slow")
    slow.run_to_end()
    produce(TOPIC, ids(range(6)), partition=0)
    pipe.run_to_end()
    assert bounds(server)[0] == Bounds(0, 6)
    slow.run_to_end()
    assert bounds(server)[0] == Bounds(6, 6)
    assert pipe.column("id") == slow.column("id") == list(range(6))


def test_two_jobs_of_one_name_do_not_take_each_others_positions(
    pipe: Pipe, server: WalServer, produce: WalProduce, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "other").mkdir()
    other = Pipe(tmp_path / "other", server.url, spark)
    describe(other)
    other.run_to_end()
    produce(TOPIC, ids(range(6)), partition=0)
    pipe.run_to_end()
    assert bounds(server)[0] == Bounds(0, 6), "the table of the other job has not read them"
    other.run_to_end()
    assert pipe.column("id") == other.column("id") == list(range(6))
    assert bounds(server)[0] == Bounds(6, 6)


def test_a_recreated_topic_stops_the_job(pipe: Pipe, server: WalServer, produce: WalProduce) -> None:
    produce(TOPIC, ids(range(3)), partition=0)
    pipe.run_to_end()
    server.store.delete_topic(TOPIC)
    server.store.create_topic(TOPIC, 2)
    produce(TOPIC, ids(range(3)), partition=0)
    with pytest.raises(PenstockError) as raised:
        pipe.run_to_end()
    assert TOPIC in raised.value.primary and "recreated" in str(raised.value)
    assert pipe.column("id") == [0, 1, 2]


def test_a_recreated_table_reads_the_records_that_the_wal_still_has(tmp_path: Path, spark: SparkSession) -> None:
    with served(tmp_path / "wal") as server:
        server.store.create_topic(TOPIC, 1)
        (tmp_path / "job").mkdir()
        pipe = Pipe(tmp_path / "job", server.url, spark)
        describe(pipe)
        WalProduce(server.url)(TOPIC, ids(range(4)))
        pipe.run_to_end()
        for item in (tmp_path / "job").iterdir():
            if item.is_dir():
                item.rename(tmp_path / f"old-{item.name}")
        held: list[int | None] = []
        pipe.run_to_end(
            at_step=once_at("planned", lambda: held.extend(server.store.partitions(TOPIC)[0].positions.values()))
        )
        assert held == [0], "the server keeps everything from the new beginning on"
        assert pipe.column("id") == list(range(4))
