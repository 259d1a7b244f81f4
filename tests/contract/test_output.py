"""The contract of every output, checked on the one in memory and on a real Kafka broker."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from penstock.errors import FencedError, TransientError, UserError
from penstock.failpoints import AtStep, Failpoint, noop
from penstock.job.spec import KafkaLogSpec
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import PUBLISH_STEPS, OutputRecord, PublishBucket, PublishOutput, PublishPosition
from penstock.publish.spec import PublishSpec
from tests.support.memory_output import MemoryCluster, MemoryOutput
from tests.support.published import read_topic, some

PARTITIONS = 3
BUCKETS = 2
TABLE_ID = "table-1"


@dataclass(frozen=True, slots=True)
class World:
    """One output topic, its readers, and the buckets of one job."""

    open: Callable[[PublishBucket, AtStep], PublishOutput]
    read: Callable[[bool], list[OutputRecord]]
    """All records so far, those of one partition in its order; True: only the committed ones."""
    job: str = field(default_factory=lambda: f"job-{uuid.uuid4().hex[:8]}")

    def output(
        self, number: int = 0, at_step: AtStep = noop, *, table: str = TABLE_ID, count: int = BUCKETS
    ) -> PublishOutput:
        return self.open(PublishBucket(self.job, table, number, count), at_step)

    def committed(self) -> list[bytes]:
        return sorted(record.value for record in self.read(True))


@pytest.fixture(params=["memory", "kafka"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        cluster = MemoryCluster()
        cluster.create("out")
        return World(
            lambda bucket, at_step: MemoryOutput(cluster, "out", bucket, at_step),
            lambda committed: list(cluster.topics["out"] if committed else cluster.sent["out"]),
        )
    bootstrap, topics = request.getfixturevalue("bootstrap"), request.getfixturevalue("topic")
    return kafka_world(bootstrap, topics(PARTITIONS), f"positions-{uuid.uuid4().hex[:8]}")


def kafka_world(bootstrap: str, name: str, positions: str) -> World:
    spec, log = PublishSpec(name, positions_topic=positions, buckets=BUCKETS), KafkaLogSpec(bootstrap)
    return World(
        lambda bucket, at_step: KafkaOutput(spec, log, bucket, at_step),
        lambda committed: read_topic(bootstrap, name, committed),
    )


def failing(step: str) -> AtStep:
    return Failpoint(step, "error").at_step


def test_a_bucket_that_never_published_has_no_position(world: World) -> None:
    with closing(world.output()) as output:
        assert output.open() is None
    with closing(world.output()) as output:
        assert output.open() is None


def test_records_and_position_become_visible_together_and_the_next_producer_goes_on_from_there(world: World) -> None:
    with closing(world.output()) as output:
        output.open()
        output.publish(some("ab"), PublishPosition(1, "2"))
        output.publish(some("c"), PublishPosition(2))
    with closing(world.output()) as output:
        assert output.open() == PublishPosition(2)
    assert world.committed() == [b"a", b"b", b"c"]


def test_a_position_moves_without_records_too(world: World) -> None:
    with closing(world.output()) as output:
        output.open()
        output.publish([], PublishPosition(7))
        assert output.open() == PublishPosition(7)
    assert world.committed() == []


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_after_a_failure_at_any_step_reopening_loses_and_doubles_nothing(world: World, step: str) -> None:
    rows = some("abcdef")
    with closing(world.output(at_step=failing(step))) as output:
        position = output.open() or PublishPosition(1)
        with pytest.raises(TransientError):
            output.publish(rows[:2], PublishPosition(1, "2"))
        with pytest.raises(ValueError):
            output.publish(rows[:2], PublishPosition(1, "2"))
        position = output.open() or position
        assert position == PublishPosition(1, "2" if step == "publish_committed" else "")
        while (start := int(position.after or 0)) < len(rows):
            end = min(start + 2, len(rows))
            output.publish(rows[start:end], position := PublishPosition(1, str(end)))
    assert world.committed() == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_a_successor_takes_over_in_the_middle_and_the_first_is_fenced(world: World, step: str) -> None:
    """The first producer pauses at the step while another one takes its bucket."""
    rows, resumed = some("abcd"), list[PublishPosition]()

    def overtaken(reached: str) -> None:
        if reached == step and not resumed:
            with closing(world.output()) as second:
                resumed.append(second.open() or PublishPosition(1))
                second.publish(rows[int(resumed[0].after or 0) :], PublishPosition(1, "4"))

    first = world.output(at_step=overtaken)
    first.open()
    with pytest.raises(FencedError):
        first.publish(rows[:2], PublishPosition(1, "2"))
        # Its commit was before the other's: it is only fenced from then on.
        first.publish(some("never"), PublishPosition(1, "5"))
    assert resumed == [PublishPosition(1, "2" if step == "publish_committed" else "")]
    with closing(world.output()) as third:
        assert third.open() == PublishPosition(1, "4")
    assert world.committed() == [b"a", b"b", b"c", b"d"]


def test_of_two_producers_of_one_bucket_only_the_younger_publishes(world: World) -> None:
    with closing(world.output()) as first, closing(world.output()) as second:
        first.open()
        second.open()
        with pytest.raises(FencedError):
            first.publish(some("x"), PublishPosition(9, "9"))
        second.publish(some("a"), PublishPosition(1, "1"))
    assert world.committed() == [b"a"]


def test_buckets_publish_side_by_side_and_each_has_its_own_position(world: World) -> None:
    def other(reached: str) -> None:
        if reached == "publish_sent":
            second.publish(some("b", "two"), PublishPosition(3, "1"))

    with closing(world.output(0, other)) as first, closing(world.output(1)) as second:
        first.open()
        second.open()
        first.publish(some("a", "one"), PublishPosition(5, "2"))
    with closing(world.output(0)) as first, closing(world.output(1)) as second:
        assert (first.open(), second.open()) == (PublishPosition(5, "2"), PublishPosition(3, "1"))
    assert world.committed() == [b"a", b"b"]


def test_an_aborted_transaction_is_seen_only_by_readers_of_uncommitted_records(world: World) -> None:
    with closing(world.output(at_step=failing("publish_sent"))) as output:
        output.open()
        with pytest.raises(TransientError):
            output.publish(some("ab"), PublishPosition(1, "2"))
    assert world.committed() == []
    assert sorted(record.value for record in world.read(False)) == [b"a", b"b"]


def test_the_published_position_of_an_earlier_table_is_ignored(world: World) -> None:
    with closing(world.output(table="before")) as output:
        output.open()
        output.publish(some("a"), PublishPosition(40, "7"))
    with closing(world.output(table="after")) as output:
        assert output.open() is None
        output.publish(some("b"), PublishPosition(1, "1"))
    with closing(world.output(table="after")) as output:
        assert output.open() == PublishPosition(1, "1")
    assert world.committed() == [b"a", b"b"]


def test_ten_thousand_records_in_one_transaction_keep_the_order_of_each_key(world: World) -> None:
    rows = [OutputRecord(f"series-{n % 37}".encode(), f"{n:05}".encode()) for n in range(10_000)]
    with closing(world.output()) as output:
        output.open()
        output.publish(rows, PublishPosition(1, str(len(rows))))
    read = world.read(True)
    assert by_key(read) == by_key(rows)
    assert len(read) == len(rows)


def by_key(records: Sequence[OutputRecord]) -> dict[bytes, list[bytes]]:
    result: dict[bytes, list[bytes]] = defaultdict(list)
    for record in records:
        result[record.key].append(record.value)
    return result


def test_a_record_that_is_too_large_fails_its_transaction_and_is_named(world: World) -> None:
    large = OutputRecord(b"cpu{host=a}", b"x" * 2_000_000)
    with closing(world.output()) as output:
        output.open()
        with pytest.raises(UserError) as raised:
            output.publish([*some("a"), large], PublishPosition(1, "2"))
        assert output.open() is None
    assert "2000011" in raised.value.primary
    assert "cpu{host=a}" in raised.value.detail
    assert world.committed() == []
