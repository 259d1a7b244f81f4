"""The target: balanced, sticky, and per topic over those who want it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.claims.protocol.records import MemberId, requested_topics
from penstock.claims.protocol.state import Claim, GroupState, MemberState
from penstock.claims.protocol.target import balance
from penstock.logs.log import Partition


def parts(count: int, topic: str = "t") -> list[Partition]:
    return [Partition(topic, f"id-{topic}", number) for number in range(count)]


def member(name: str, partitions: Sequence[Partition]) -> MemberState:
    return MemberState(MemberId(name, "1"), 0, True, requested_topics(partitions))


def group(*members: MemberState) -> GroupState:
    return GroupState(members={item.who.client_id: item for item in members})


def counts(target: dict[str, tuple[Partition, ...]]) -> dict[str, int]:
    return {key: len(item) for key, item in target.items()}


def moved(before: dict[str, tuple[Partition, ...]], after: dict[str, tuple[Partition, ...]]) -> int:
    owner = {partition: key for key, partitions in before.items() for partition in partitions}
    return sum(owner.get(partition) not in (None, key) for key, partitions in after.items() for partition in partitions)


def test_shares_differ_by_at_most_one_partition() -> None:
    state = group(*(member(f"m{number}", parts(11)) for number in range(4)))
    target = balance(state)
    assert sorted(counts(target).values()) == [2, 3, 3, 3]
    assert sorted(partition for partitions in target.values() for partition in partitions) == parts(11)


def test_a_new_member_takes_its_share_and_nothing_else_moves() -> None:
    state = group(*(member(f"m{number}", parts(100)) for number in range(4)))
    state.target = balance(state)
    state.members["zoe"] = member("zoe", parts(100))
    after = balance(state)
    assert set(counts(after).values()) == {20}
    assert moved(state.target, after) == 20


def test_the_share_of_a_lost_member_is_spread_and_nothing_else_moves() -> None:
    state = group(*(member(f"m{number}", parts(100)) for number in range(5)))
    state.target = balance(state)
    gone = state.target["m2"]
    del state.members["m2"]
    after = balance(state)
    assert set(counts(after).values()) == {25}
    assert moved({key: item for key, item in state.target.items() if key != "m2"}, after) == 0
    assert {partition for partitions in after.values() for partition in partitions} >= set(gone)


def test_an_owner_keeps_what_it_holds_where_there_was_no_target() -> None:
    state = group(member("anna", parts(4)), member("bert", parts(4)))
    state.claims = {part: Claim(1, MemberId("bert", "1"), True) for part in parts(4)[:2]}
    assert set(balance(state)["bert"]) == set(parts(4)[:2])


def test_topics_are_shared_among_members_that_request_them() -> None:
    """Members with different lists: nothing is unowned, and each member has only what it requests."""
    both = parts(10, "a") + parts(10, "b")
    state = group(member("anna", parts(10, "a")), member("bert", both), member("cleo", both))
    target = balance(state)
    assert sorted(partition for partitions in target.values() for partition in partitions) == both
    assert {item.topic for item in target["anna"]} == {"a"}
    assert counts(target) == {"anna": 6, "bert": 7, "cleo": 7} or max(counts(target).values()) <= 7


def test_a_topic_requested_by_one_member_goes_to_it_and_others_get_more_of_the_rest() -> None:
    state = group(member("anna", parts(6, "a") + parts(4, "b")), member("bert", parts(6, "a")))
    target = balance(state)
    assert counts(target) == {"anna": 5, "bert": 5}
    assert {item for item in target["anna"] if item.topic == "b"} == set(parts(4, "b"))


def test_freed_partition_goes_to_another_member_and_back_only_if_there_is_none() -> None:
    state = group(member("anna", parts(4)), member("bert", parts(4)))
    state.target = balance(state)
    slow = state.target["anna"][0]
    state.claims[slow] = Claim(1, freed_from="anna")
    assert slow in balance(state)["bert"]
    del state.members["bert"]
    assert slow in balance(state)["anna"]


@given(
    st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=6),
    st.integers(1, 9),
)
def test_every_requested_partition_is_owned_and_a_second_target_moves_nothing(lists: list[set[str]], size: int) -> None:
    requested = [[partition for topic in sorted(names) for partition in parts(size, topic)] for names in lists]
    state = group(*(member(f"m{number}", item) for number, item in enumerate(requested)))
    target = balance(state)
    given_out = Counter(partition for partitions in target.values() for partition in partitions)
    assert max(given_out.values(), default=0) <= 1
    for number, partitions in enumerate(requested):
        given = target.get(f"m{number}", ())
        assert set(given) <= set(partitions)
        assert set(partitions) <= set(given_out)
    state.target = target
    assert balance(state) == target
