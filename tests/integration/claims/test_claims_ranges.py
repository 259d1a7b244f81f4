"""Range claims over a real broker: several members work on one partition, and every range is somebody's once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.member.agent import Agent
from penstock.claims.member.range_client import ATTEMPTS_MAX, OPEN_RANGES_MAX, HeldRange, RangeClient
from penstock.claims.protocol.state import Claim
from penstock.errors import TransientError
from tests.claimants import HEARTBEAT_SECONDS, LATE_SECONDS, Crew, eventually, hits, hits_up_to

HOT = hits(0)


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    """Three members; the first holds the one partition that there is."""
    crew = Crew(bootstrap, hits_up_to(1))
    crew.join("anna")
    eventually(lambda: crew.shared(1))
    for client_id in ("bert", "cleo"):
        crew.join(client_id)
    eventually(lambda: all(is_member(agent) for agent in crew.agents.values()))
    yield crew
    crew.close()


def is_member(agent: Agent) -> bool:
    try:
        with agent.looking():
            return True
    except TransientError:
        return False


def clients(crew: Crew) -> tuple[RangeClient, RangeClient, RangeClient]:
    anna, bert, cleo = (RangeClient(crew.agents[client_id]) for client_id in ("anna", "bert", "cleo"))
    return anna, bert, cleo


def seen_by(crew: Crew, client_id: str) -> Claim:
    with crew.agents[client_id].looking() as participant:
        return participant.view.claim(HOT)


def open_to_all(crew: Crew, start: int = 100, at_most_once: bool = False) -> int:
    """Share the partition, and wait until everybody has read it; the token."""
    [token] = crew.agents["anna"].held().values()
    assert RangeClient(crew.agents["anna"]).open(HOT, token, start, at_most_once)
    for client in clients(crew):
        eventually(lambda client=client: client.shared() == {HOT: token})  # type: ignore[misc]
    return token


def claimed(client: RangeClient, size: int = 10, end: int | None = None) -> HeldRange:
    """The next range, whoever else is trying."""
    found: list[HeldRange] = []

    def got() -> bool:
        held = client.claim(HOT, size, end)
        found.extend([] if held is None else [held])
        return bool(found)

    eventually(got)
    return found[0]


def bounds(*ranges: HeldRange) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in ranges]


def test_three_members_work_on_one_partition_and_the_position_moves_over_the_finished_beginning(crew: Crew) -> None:
    anna, bert, cleo = clients(crew)
    token = open_to_all(crew)
    first, second, third = claimed(anna), claimed(bert), claimed(cleo)
    assert bounds(first, second, third) == [(100, 110), (110, 120), (120, 130)]
    assert {first.token, second.token, third.token} == {token}

    assert cleo.finish(third)
    assert bert.finish(second)
    # Finished out of order: the beginning is still being worked on, so the position stays.
    assert seen_by(crew, "bert").position is None
    assert anna.finish(first)
    eventually(lambda: seen_by(crew, "cleo").position == 130)
    assert seen_by(crew, "anna").leases == ()


def test_a_range_may_lie_ahead_of_the_data_or_end_with_it(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    open_to_all(crew, start=0)
    assert bounds(claimed(anna, size=1000, end=300)) == [(0, 300)]
    eventually(lambda: len(seen_by(crew, "bert").leases) == 1)
    assert bert.claim(HOT, 1000, end=300) is None
    assert bounds(claimed(bert, size=1000)) == [(300, 1300)]


def test_a_finished_range_is_not_finished_again(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    open_to_all(crew)
    mine = claimed(anna)
    assert not bert.finish(mine)
    assert anna.finish(mine)
    assert not anna.finish(mine)
    assert not anna.give_back(mine)


def test_a_returned_range_is_the_next_to_be_claimed(crew: Crew) -> None:
    anna, bert, cleo = clients(crew)
    open_to_all(crew)
    first, second = claimed(anna), claimed(bert)
    assert anna.give_back(first)
    eventually(lambda: any(each.owner is None for each in seen_by(crew, "cleo").leases))
    again = claimed(cleo)
    assert bounds(again) == [(100, 110)]
    assert again.lease > second.lease
    assert not anna.finish(first)
    assert cleo.finish(again)


def test_the_ranges_of_a_dead_member_are_taken_over_the_lowest_first_within_three_intervals(crew: Crew) -> None:
    anna, bert, cleo = clients(crew)
    open_to_all(crew)
    lost = [claimed(bert), claimed(bert)]
    kept = claimed(anna)
    vanish(crew, "bert")
    taken: list[HeldRange] = []

    def both() -> bool:
        held = cleo.claim(HOT, 10, end=130)
        taken.extend([] if held is None else [held])
        return len(taken) == 2

    assert eventually(both) < 3 * HEARTBEAT_SECONDS + LATE_SECONDS
    assert bounds(*taken) == bounds(*lost)
    # Who lives keeps its range, however long it takes.
    assert anna.finish(kept)


def test_a_range_that_nobody_finishes_is_given_up_in_the_end(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    open_to_all(crew)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        client = (anna, bert)[attempt % 2]
        held = claimed(client, end=110)
        assert bounds(held) == [(100, 110)]
        assert client.give_back(held)
    eventually(lambda: seen_by(crew, "anna").leases[0].attempts == ATTEMPTS_MAX)
    eventually(lambda: seen_by(crew, "anna").leases[0].owner is None)
    assert anna.claim(HOT, 10, end=110) is None
    assert seen_by(crew, "anna").given_up == ((100, 110),)
    assert seen_by(crew, "anna").position == 110
    assert bounds(claimed(anna)) == [(110, 120)]


def test_a_range_of_at_most_once_work_is_given_up_and_not_done_again(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    open_to_all(crew, at_most_once=True)
    claimed(bert)
    vanish(crew, "bert")

    def given_up() -> bool:
        assert anna.claim(HOT, 10, end=110) is None
        return seen_by(crew, "anna").given_up == ((100, 110),)

    eventually(given_up, 4 * HEARTBEAT_SECONDS + LATE_SECONDS)
    assert seen_by(crew, "anna").position == 110


def test_everything_is_void_under_a_new_owner(crew: Crew) -> None:
    anna, bert, cleo = clients(crew)
    token = open_to_all(crew)
    done, open_range = claimed(bert), claimed(cleo)
    assert bert.finish(done)
    crew.leave("anna")
    eventually(lambda: any(crew.held().values()))
    [(owner, held)] = [(client_id, held) for client_id, held in crew.held().items() if held]
    assert held[HOT] == token + 1
    assert not cleo.finish(open_range)
    assert not cleo.give_back(open_range)
    assert cleo.shared() == {}
    # Only what was finished from the beginning on counts; the rest is the new owner's.
    assert seen_by(crew, owner).position == 110
    assert cleo.claim(HOT, 10) is None
    assert isinstance(anna, RangeClient)


def test_the_owner_works_alone_again_once_no_range_is_being_worked_on(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    token = open_to_all(crew)
    held = claimed(bert)
    assert not anna.close(HOT, token)
    assert bert.finish(held)
    assert anna.close(HOT, token)
    eventually(lambda: bert.shared() == {})
    assert bert.claim(HOT, 10) is None


def test_only_the_owner_opens_a_partition(crew: Crew) -> None:
    anna, bert, _ = clients(crew)
    [token] = crew.agents["anna"].held().values()
    assert not bert.open(HOT, token, 0)
    assert not anna.open(HOT, token + 1, 0)
    assert anna.open(HOT, token, 0)
    assert not anna.open(HOT, token, 0)


def test_finished_work_that_waits_for_an_unfinished_range_is_bounded(crew: Crew) -> None:
    anna, _, _ = clients(crew)
    open_to_all(crew)
    held = [anna.claim(HOT, 1) for _ in range(OPEN_RANGES_MAX)]
    assert all(each is not None for each in held)
    assert anna.claim(HOT, 1) is None


def vanish(crew: Crew, client_id: str) -> None:
    """Silence a member without a farewell, as a cut network does."""
    agent = crew.vanished(client_id)
    with agent.looking() as participant:
        participant.decide = lambda now: []  # type: ignore[method-assign]
