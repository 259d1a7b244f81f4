"""The contract of every log, checked on the one in memory, a real Kafka broker and a WAL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import PenstockError, UserError
from penstock.job.spec import KafkaLogSpec, StartAt
from penstock.logs.batches import mark_of
from penstock.logs.kafka.log import KafkaLog
from penstock.logs.log import Bounds, Log, Partition, Slice, SliceShrankError
from penstock.logs.wal.log import WalLog, WalLogSpec
from tests.scenarios.memory_kafka import MemoryProduce, MemoryTopics
from tests.support.kafka import Produce, Topics
from tests.support.memory_log import MemoryLog
from tests.support.wal import EAGER, WalProduce, WalTopics, served

SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class World:
    """A log and what can be done to it."""

    topics: Topics | MemoryTopics | WalTopics
    produce: Produce | MemoryProduce | WalProduce
    open: Callable[[KafkaLogSpec], Log]
    bootstrap: str = "nowhere:9092"
    has_keys: bool = True
    """Whether records have keys, headers and null values; those of a WAL have values only."""

    def log(self, topic: str, start: StartAt = "earliest") -> Log:
        return self.open(KafkaLogSpec(self.bootstrap, topics=(topic,), start=start, group=f"group-{topic}"))


@pytest.fixture(params=["memory", "kafka", "wal"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "wal":
        with served(tmp_path, EAGER) as server:
            yield World(WalTopics(server.url), WalProduce(server.url), partial(_open_wal, server.url), has_keys=False)
    else:
        yield _kafka_world(request)


@pytest.fixture(params=["memory", "kafka"])
def kafka_world(request: pytest.FixtureRequest) -> World:
    """A log whose topics have settings, and producers transactions."""
    return _kafka_world(request)


def _kafka_world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        memory = MemoryLog()
        return World(MemoryTopics(memory), MemoryProduce(memory), memory.view)
    bootstrap = request.getfixturevalue("bootstrap")
    return World(request.getfixturevalue("topic"), request.getfixturevalue("produce"), KafkaLog, bootstrap)


def _open_wal(url: str, spec: KafkaLogSpec) -> Log:
    return WalLog(
        WalLogSpec(url, topics=spec.topics, topic_pattern=spec.topic_pattern, start=spec.start, group=spec.group)
    )


@pytest.fixture
def filled(world: World) -> Iterator[tuple[World, str, Log, Partition]]:
    """Five records in the first of two partitions."""
    name = world.topics(2)
    if isinstance(world.produce, WalProduce):
        world.produce(name, [b"0", b"1", b"2", b"3", b"4"], partition=0)
    else:
        world.produce(name, [b"0", b"1", None, b"3", b"4"], partition=0, key=b"k", headers=[("a", b"1")])
    with closing(world.log(name)) as log:
        yield world, name, log, log.partitions()[0]


def test_partitions_have_the_identity_of_their_topic(filled: tuple[World, str, Log, Partition]) -> None:
    _, name, log, _ = filled
    partitions = log.partitions()
    [topic_id] = {item.topic_id for item in partitions}
    assert [(partition.topic, partition.number) for partition in partitions] == [(name, 0), (name, 1)]
    assert log.topic_ids([name, "no-such-topic"]) == {name: topic_id}


def test_bounds_are_half_open_and_retention_moves_their_beginning(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    other = log.partitions()[1]
    assert log.bounds([partition, other]) == {partition: Bounds(0, 5), other: Bounds(0, 0)}
    world.topics.cut(name, 2)
    assert log.bounds([partition]) == {partition: Bounds(2, 5)}


@pytest.mark.parametrize(("start", "offset"), [("earliest", 0), ("latest", 5)])
def test_a_job_starts_at_its_configured_start(
    filled: tuple[World, str, Log, Partition], start: StartAt, offset: int
) -> None:
    world, name, log, partition = filled
    with closing(world.log(name, start)) as started:
        assert started.start_offsets([partition], log.bounds([partition])) == {partition: offset}


def test_a_source_gives_each_record_of_its_slices_once_as_it_was(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    source = log.source([Slice(partition, 1, 5, 1)], 2, 1024 * 1024)
    numbers = pa.RecordBatch.from_pydict({"number": pa.array(range(len(source.pieces)), pa.int64())})
    batches = list(source([numbers]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    null = None if world.has_keys else b"2"
    assert [(row["offset"], row["value"]) for row in rows] == [(1, b"1"), (2, null), (3, b"3"), (4, b"4")]
    assert {(row["topic"], row["partition"], row["key"]) for row in rows} == {
        (name, 0, b"k" if world.has_keys else None)
    }
    assert rows[0]["headers"] == ([{"key": "a", "value": b"1"}] if world.has_keys else None)
    assert abs(rows[0]["timestamp"].timestamp() - time.time()) < 300
    assert all(mark_of(batch) is not None for batch in batches if not batch.num_rows)


def test_records_and_offsets_are_those_of_the_range(filled: tuple[World, str, Log, Partition]) -> None:
    _, _, log, partition = filled
    counts: list[int] = []
    assert [row["offset"] for batch in log.records(partition, 3, 5) for row in batch.to_pylist()] == [3, 4]
    assert log.offsets(partition, 1, 4, counts.append).tolist() == [1, 2, 3]
    assert sum(counts) == 3


def test_a_transaction_marker_occupies_an_offset_but_is_not_a_record(kafka_world: World) -> None:
    name = kafka_world.topics()
    kafka_world.produce(name, [b"a", b"b"], partition=0, transactional=True)
    kafka_world.produce(name, [b"c"], partition=0)
    with closing(kafka_world.log(name)) as log:
        [partition] = log.partitions()
        assert log.bounds([partition]) == {partition: Bounds(0, 4)}
        assert log.offsets(partition, 0, 4, lambda _: None).tolist() == [0, 1, 3]


def test_a_slice_that_retention_overtook_is_planned_again(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    world.topics.cut(name, 3)
    with pytest.raises(SliceShrankError):
        list(log.records(partition, 1, 5))


def test_positions_are_shown_and_never_move_back(filled: tuple[World, str, Log, Partition]) -> None:
    _, _, log, partition = filled
    assert log.shown([partition]) == {}
    for _ in range(2):
        assert log.show({partition: 3}) == {}
        assert log.shown([partition]) == {partition: 3}
    assert set(log.show({partition: 2})) == {partition}
    assert log.shown([partition]) == {partition: 3}


def test_a_position_of_zero_is_shown_and_every_group_has_its_own(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    assert log.show({partition: 0}) == {}
    spec = KafkaLogSpec(world.bootstrap, topics=(name,), group=f"other-{name}")
    with closing(world.open(spec)) as other:
        assert (log.shown([partition]), other.shown([partition])) == ({partition: 0}, {})


def test_the_maximum_record_size_comes_from_the_topic(kafka_world: World) -> None:
    small, large = kafka_world.topics(), kafka_world.topics(config={"max.message.bytes": "5000000"})
    for name, bytes_max in ((small, 1_048_588), (large, 5_000_000)):
        with closing(kafka_world.log(name)) as log:
            assert log.record_bytes_max(name) == bytes_max


def test_a_recreated_topic_has_another_identity(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    world.topics.recreate(name)
    deadline = time.monotonic() + SECONDS_MAX
    while (result := log.topic_ids([name]).get(name)) in (None, partition.topic_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert result != partition.topic_id


def test_the_age_of_the_oldest_unread_record_is_shown(filled: tuple[World, str, Log, Partition]) -> None:
    _, _, log, partition = filled
    record_times = log.record_times({partition: 2}, SECONDS_MAX)
    assert abs(record_times[partition] - time.time()) < 300


def test_a_time_has_the_offset_of_the_first_record_from_then_on(filled: tuple[World, str, Log, Partition]) -> None:
    _, _, log, partition = filled
    bounds = log.bounds([partition])[partition]
    times = {
        offset: log.record_times({partition: offset}, SECONDS_MAX)[partition]
        for offset in range(bounds.first, bounds.end)
    }
    for at in (0.0, times[bounds.first], times[2], max(times.values()), max(times.values()) + 1):
        expected = min((offset for offset, made_at in times.items() if made_at >= at), default=bounds.end)
        assert log.offset_at(partition, at, bounds) == expected


def test_a_missing_topic_is_a_user_error(world: World) -> None:
    with closing(world.log("no-such-topic")) as log, pytest.raises(UserError) as raised:
        log.partitions()
    assert "no-such-topic" in raised.value.primary


def test_requests_for_a_deleted_topic_raise_our_error(filled: tuple[World, str, Log, Partition]) -> None:
    world, name, log, partition = filled
    world.topics.delete(name)
    deadline = time.monotonic() + SECONDS_MAX
    with pytest.raises(PenstockError):
        while time.monotonic() < deadline:
            log.bounds([partition])
            time.sleep(0.05)
