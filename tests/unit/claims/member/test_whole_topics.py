"""Whole topics per member: a topic is taken, shared and let go as one (upstream 35 to 39)."""

from __future__ import annotations

from collections import Counter

from penstock.logs.log import Partition
from tests.unit.claims.member.room import Attendant, Room


def topics(*sizes: int) -> list[Partition]:
    return [Partition(f"t{topic}", f"id{topic}", number) for topic, size in enumerate(sizes) for number in range(size)]


def enter_for_topics(room: Room, name: str, claims_max: int | None = None) -> Attendant:
    return room.enter(name, unit="topic", claims_max=claims_max)


def test_upstream_35_a_topic_is_taken_as_a_whole() -> None:
    room = Room(topics(2))
    anna = enter_for_topics(room, "anna")
    room.run(3)
    assert room.held(anna) == topics(2)


def test_upstream_36_a_topic_is_not_taken_while_another_member_holds_a_part_of_it() -> None:
    room = Room(topics(2))
    bert = enter_for_topics(room, "bert")
    room.run(3)
    bert.participant.holdings.using(topics(2))
    anna = enter_for_topics(room, "anna")
    bert.participant.shed(topics(2)[0], "slow", room.now)
    bert.participant.holdings.using([topics(2)[1]])
    room.run(0.7)
    assert room.owners() == [None, "bert"]
    assert room.held(anna) == []
    bert.participant.holdings.using([])
    room.run(1)
    assert room.held(anna) == topics(2)


def test_upstream_37_a_topic_goes_as_a_whole() -> None:
    room = Room(topics(2, 2))
    anna, bert = enter_for_topics(room, "anna"), enter_for_topics(room, "bert")
    room.run(3)
    [first, second] = room.held(anna)
    anna.participant.shed(second, "slow", room.now)
    room.run(1)
    assert room.held(anna) == []
    assert {first, second} <= set(room.held(bert))


def test_upstream_38_one_member_takes_all_topics() -> None:
    room = Room(topics(2, 3))
    anna = enter_for_topics(room, "anna")
    room.run(3)
    assert room.held(anna) == topics(2, 3)


def test_upstream_39_a_bound_counts_topics() -> None:
    room = Room(topics(2, 3))
    anna = enter_for_topics(room, "anna", claims_max=1)
    room.run(2)
    assert len({each.topic for each in room.held(anna)}) == 1
    bert = enter_for_topics(room, "bert")
    room.run(3)
    assert {each.topic for each in room.held(anna)} | {each.topic for each in room.held(bert)} == {"t0", "t1"}
    assert len(room.held(anna)) + len(room.held(bert)) == 5


def test_two_members_share_topics_and_never_split_one() -> None:
    room = Room(topics(3, 2, 4, 1))
    members = [enter_for_topics(room, "anna"), enter_for_topics(room, "bert")]
    room.run(5)
    split = [{each.topic for each in room.held(member)} for member in members]
    assert sorted(map(len, split)) == [2, 2]
    assert not split[0] & split[1]
    assert None not in room.owners()


def test_room_for_whole_topics_is_counted_in_topics() -> None:
    room = Room(topics(3, 3, 3))
    anna = enter_for_topics(room, "anna")
    room.run(3)
    enter_for_topics(room, "bert", claims_max=2)
    room.run(3)
    assert Counter(room.owners()) == {"anna": 6, "bert": 3}
    assert anna.participant.takers(room.now)
