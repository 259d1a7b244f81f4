"""`Member` against a real broker: claims, records, positions. Numbers are those of the upstream scenarios."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from penstock.claims import DuplicateClientError, LostClaimError, Member, NotInFlightError, Work
from penstock.errors import UserError
from penstock.events import Event
from penstock.job.spec import KafkaLogSpec
from tests.support.kafka import Produce, Topics
from tests.support.members import COORDINATION, SECONDS_MAX, Members, places, taken, until, worked

LONG_SECONDS = 30.0
"""An interval that nothing in a test waits for."""


def test_importing_the_library_loads_neither_spark_nor_delta_and_starts_no_thread() -> None:
    script = (
        "import sys, threading, penstock.claims\n"
        "print([name for name in ('pyspark', 'deltalake', 'polars') if name in sys.modules], threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"


def test_1_4_24_41_a_claim_is_seen_from_win_to_release_with_the_position_of_its_heartbeats(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [str(number) for number in range(20)])
    with Members(bootstrap, name) as members, Members(bootstrap, name) as other_group:
        member = members.alone("anna")
        assert not other_group.claim().held, "another group sees nothing of it"
        [token] = member.held().values()
        assert token == 1
        for work in taken(member, 20)[:10]:
            member.done(work)
        until(lambda: members.claim().position == 10, "the heartbeat with position 10")
        claim = members.claim()
        assert claim.owner is not None
        assert (claim.held, claim.owner.client_id, claim.token) == (True, "anna", 1)
        member.close()
        claim = members.claim()
        assert claim.owner is not None
        assert (claim.held, claim.owner.client_id, claim.position) == (False, "anna", 10)
        with pytest.raises(UserError):
            member.poll(0.1)


def test_2_30_34_45_one_member_takes_every_partition_and_sees_every_record_once_in_order(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=4)
    produced = produce(name, [f"m{number}" for number in range(400)])
    with Members(bootstrap, name) as members:
        member = members.alone()
        result = worked(member, 400)
        assert places(result) == sorted(produced)
        for number in range(4):
            offsets = [work.offset for work in result if work.partition.number == number]
            assert offsets == sorted(offsets)
        assert member.poll(0.3) == []


def test_a_failing_listener_does_not_stop_records(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name, event_names = topic(), set[str]()
    produce(name, ["one", "two"])

    def listener(event: Event) -> None:
        event_names.add(event.name)
        raise RuntimeError("a fault of the listener's own")

    with Members(bootstrap, name) as members:
        assert len(worked(members.join(listener=listener), 2)) == 2
    assert {"claim won", "reading begins"} <= event_names


def test_a_record_carries_key_value_headers_and_time_and_a_tombstone_has_no_value(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    # Not so old that the topic's retention takes it away.
    name, at_ms = topic(), int(time.time() * 1000) - 60_000
    produce(name, ["body"], key="k", headers=[("h", b"1"), ("empty", None)], timestamp_ms=at_ms)
    produce(name, [None], key="k")
    with Members(bootstrap, name) as members:
        first, second = taken(members.alone(), 2)
    headers = (("h", b"1"), ("empty", None))
    assert first == Work(first.partition, 0, b"k", b"body", headers, at_ms, first.token)
    assert (first.partition.topic, second.offset, second.value, second.headers) == (name, 1, None, ())


def test_3_44_46_a_second_member_gets_its_share_and_no_partition_has_two_owners(bootstrap: str, topic: Topics) -> None:
    name = topic(partitions=4)
    with Members(bootstrap, name) as members:
        anna = members.alone("anna")
        bert = members.join("bert")
        seconds = until(lambda: len(anna.held()) == len(bert.held()) == 2, "fair shares")
        assert seconds < 6
        assert not anna.held().keys() & bert.held().keys()


def test_5_32_52_partitions_of_a_closed_member_are_taken_over_at_once_from_its_last_position(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """No lease is waited for: a release is enough. Nothing that was done comes again."""
    name = topic(partitions=2)
    produce(name, [str(number) for number in range(40)], partition=0)
    produce(name, [str(number) for number in range(40)], partition=1)
    with Members(bootstrap, name) as members:
        anna = members.alone("anna", heartbeat_seconds=LONG_SECONDS)
        worked(anna, 80)
        anna.close()
        assert not members.claim(0).held
        assert not members.claim(1).held
        produce(name, ["new"], partition=1)
        bert = members.join("bert", heartbeat_seconds=LONG_SECONDS)
        started_at = time.monotonic()
        assert places(worked(bert, 1)) == [(1, 40)]
        assert time.monotonic() - started_at < LONG_SECONDS


def test_16_23_lag_is_what_the_log_holds_beyond_the_position(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    with Members(bootstrap, name) as members:
        member = members.alone()
        [partition] = member.held()
        until(lambda: member.lag() == {partition: 0})
        produce(name, ["a", "b", "c"])
        until(lambda: member.lag() == {partition: 3}, "a lag of three")
        worked(member, 3)
        until(lambda: member.lag() == {partition: 0}, "no lag")


def test_17_18_22_31_43_records_done_out_of_order_hold_the_position_back_also_for_the_successor(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, [str(number) for number in range(6)])
    with Members(bootstrap, name) as members:
        anna = members.alone("anna")
        six = taken(anna, 6)
        anna.done(six[0])
        anna.done(six[2])
        assert list(anna.positions().values()) == [1]
        anna.done(six[1])
        assert list(anna.positions().values()) == [3]
        anna.done(six[4])
        anna.close()
        assert members.claim().position == 3
        assert places(worked(members.join("bert"), 3)) == [(0, 3), (0, 4), (0, 5)]


def test_19_20_closing_twice_is_fine_and_nothing_can_be_done_afterwards(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a"])
    with Members(bootstrap, name) as members:
        member = members.alone()
        taken(member, 1)
        member.close()
        member.close()
        assert not members.claim().held
        for act in (member.start, lambda: member.poll(0.1)):
            with pytest.raises(UserError):
                act()


def test_21_closing_ends_a_poll_of_another_thread(bootstrap: str, topic: Topics, produce: Produce) -> None:
    """Upstream blocked with a full queue; here the poll waits with one record that is never done."""
    name = topic()
    produce(name, ["a", "b", "c"])
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=1)
        assert places(taken(member, 1)) == [(0, 0)]
        works: list[Work] = []
        thread = threading.Thread(target=lambda: works.extend(member.poll(10 * SECONDS_MAX)))
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        member.close()
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
        assert works == []
        assert members.claim().position == 0


def test_53_a_partition_is_won_released_and_won_again_each_time_under_a_greater_token(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a", "b", "c"])
    with Members(bootstrap, name) as members:
        tokens: list[int] = []
        for expected in ([(0, 0)], [(0, 1)], [(0, 2)]):
            member = members.alone("anna", in_flight_max=1)
            assert places(worked_one(member)) == expected
            tokens += member.held().values()
            member.close()
        assert tokens == [1, 2, 3]


def worked_one(member: Member) -> list[Work]:
    result = taken(member, 1)
    member.done(result[0])
    return result


def test_48_a_second_live_process_with_the_same_client_id_is_refused_and_the_first_continues(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """The correction of upstream's FastReclaim; P4."""
    name = topic()
    with Members(bootstrap, name) as members:
        first = members.alone("anna")
        second = members.join("anna")
        with pytest.raises(DuplicateClientError):
            for _ in range(1000):
                assert second.poll(0.1) == []
        produce(name, ["a"])
        assert places(worked(first, 1)) == [(0, 0)]


def test_51_added_partitions_are_read_from_the_beginning_regardless_of_start(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["old"])
    with Members(bootstrap, name) as members:
        member = members.alone(start="latest")
        until(lambda: list(member.positions().values()) == [1])
        topic.grow(name, 2)
        produce(name, ["new"], partition=1)
        assert places(worked(member, 1)) == [(1, 0)]
        assert len(member.held()) == 2


def test_p1_a_partition_added_together_with_a_member_is_read_from_its_beginning(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    """The newcomer has seen nothing but both partitions: the group's position on the other one shows which is new."""
    name = topic()
    produce(name, ["old"])
    with Members(bootstrap, name) as members:
        anna = members.alone("anna", start="latest")
        until(lambda: list(anna.positions().values()) == [1])
        topic.grow(name, 2)
        produce(name, ["new"], partition=1)
        assert places(worked(members.join("bert", start="latest"), 1)) == [(1, 0)]


def test_p16_acknowledging_twice_or_without_delivery_is_refused(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a"])
    with Members(bootstrap, name) as members:
        member = members.alone()
        [work] = worked(member, 1)
        with pytest.raises(NotInFlightError):
            member.done(work)
        unknown = Work(work.partition, 99, None, None, (), None, work.token)
        with pytest.raises(NotInFlightError):
            member.done(unknown)
        old = Work(work.partition, 0, None, None, (), None, work.token - 1)
        with pytest.raises(LostClaimError):
            member.done(old)


@pytest.mark.parametrize(
    "options",
    [
        {"topics": []},
        {"topics": "web"},
        {"topics": ["web"], "delivery": "exactly_once"},
        {"topics": ["web"], "start": "yesterday"},
        {"topics": ["web"], "in_flight_max": 0},
        {"topics": ["web"], "heartbeat_seconds": 0.1},
        {"topics": ["web"], "client_id": "x" * 600},
    ],
    ids=lambda options: "-".join(options),
)
def test_invalid_options_are_refused_before_anything_starts(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Member("localhost:1", **{"group": "g", **options})  # type: ignore[arg-type]


def test_a_topic_that_does_not_exist_is_refused_with_the_name_that_was_meant(bootstrap: str, topic: Topics) -> None:
    name = topic()
    with pytest.raises(UserError) as unknown, Member(bootstrap, group="g", topics=[name + "x"]):
        pass
    assert name in unknown.value.hint


def test_a_full_log_section_works_like_a_bootstrap_address(bootstrap: str, topic: Topics, produce: Produce) -> None:
    name = topic()
    produce(name, ["a"])
    spec = KafkaLogSpec(bootstrap, topics=(name,), client_settings={"fetch.max.bytes": "1000000"})
    with Member(spec, group=f"group-of-{name}", heartbeat_seconds=1.0, coordination=COORDINATION) as member:
        assert places(worked(member, 1)) == [(0, 0)]


def test_polling_a_member_that_was_not_started_is_refused(bootstrap: str) -> None:
    member = Member(bootstrap, group="g", topics=["t"])
    with pytest.raises(UserError):
        member.poll(0.1)
    member.close()


def test_an_unresponsive_consumer_is_replaced_and_every_record_is_read_once(
    bootstrap: str, topic: Topics, produce: Produce
) -> None:
    name = topic(partitions=2)
    produced = produce(name, [str(number) for number in range(400)])
    with Members(bootstrap, name) as members:
        member = members.alone(in_flight_max=50)
        under_way = member.poll(30.0, count_max=30)
        member._supervisor.stuck = True
        for work in under_way:
            member.done(work)
        result = under_way + worked(member, 400 - len(under_way))
        assert not member._supervisor.stuck
        assert places(result) == sorted(produced)
