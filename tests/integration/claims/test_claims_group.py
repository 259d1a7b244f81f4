"""What the engine asks of the claims of a group, over a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.group import GroupClaims, open_group
from penstock.claims.member.health import TOO_SLOW
from penstock.events import Event, WorkHangs
from penstock.job.spec import ClaimsSpec, KafkaLogSpec
from penstock.logs.log import Partition
from tests.support.claimants import HEARTBEAT_SECONDS, PLACES, Crew, hits_up_to
from tests.support.waiting import wait_until


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(2))
    yield crew
    crew.close()


def test_a_process_that_cannot_keep_up_lets_a_partition_go_to_one_that_can(crew: Crew) -> None:
    slow = GroupClaims(crew.join("slow"))
    idle = GroupClaims(crew.join("swift"))
    wait_until(lambda: crew.shared(1, 1))
    [partition] = slow.agent.held()
    end = 0

    def fall_behind() -> bool:
        nonlocal end
        end += 100
        slow.progress({partition: end // 10}, {partition: end - end // 10})
        idle.progress(dict.fromkeys(idle.agent.held(), 0), {})
        return len(idle.agent.held()) == 2

    wait_until(fall_behind)
    assert ("claim released", {"partition": str(partition), "reason": TOO_SLOW}) in crew.events["slow"]


def test_a_process_whose_work_hangs_leaves_its_partitions_to_others_until_it_works_again(crew: Crew) -> None:
    heard: list[Event] = []
    options = ClaimsSpec("hanging", HEARTBEAT_SECONDS, crew.topic, PLACES, work_timeout_seconds=3.0)
    claims = open_group(KafkaLogSpec(crew.bootstrap, group=crew.group), options, heard.append)
    other = crew.join("swift")

    def works() -> int:
        claims.working()
        return len(claims.held(crew.wanted, {}))

    try:
        wait_until(lambda: works() == 1 and len(other.held()) == 1)
        [(partition, token)] = claims.agent.held().items()
        # Its agent lives on, and would renew the claim for ever.
        wait_until(lambda: len(other.held()) == 2)
        assert not claims.keeps(partition, token)
        assert [each for each in heard if isinstance(each, WorkHangs)]
        wait_until(lambda: works() == 1 and len(other.held()) == 1)
    finally:
        claims.close()


def test_m2_the_shown_position_follows_a_table_that_was_set_back(crew: Crew) -> None:
    claims = GroupClaims(crew.join("anna"))
    partition, other = crew.wanted
    wait_until(lambda: crew.shared(2))
    claims.progress({partition: 500, other: 70}, {})
    wait_until(lambda: shown(claims, partition) == 500)
    token = claims.agent.held()[partition]
    assert claims.correct(partition, token, 300) == 500
    assert shown(claims, partition) == 300
    assert claims.correct(other, claims.agent.held()[other], 70) is None


def test_messages_are_announced_once_and_a_later_announcement_covers_an_earlier_one(crew: Crew) -> None:
    claims = GroupClaims(crew.join("anna"))
    partition, other = crew.wanted
    wait_until(lambda: crew.shared(2))
    tokens = claims.agent.held()
    assert claims.announce({partition: 10, other: 20}, tokens) == {partition, other}
    assert (claims.announced(partition), claims.announced(other)) == (10, 20)
    assert claims.announce({partition: 5}, tokens) == {partition}
    assert claims.announced(partition) == 10


def shown(claims: GroupClaims, partition: Partition) -> int | None:
    with claims.agent.looking() as participant:
        return participant.view.claim(partition).position


def test_m1_a_claim_below_the_tables_token_is_let_go_and_claimed_again_above_it(crew: Crew) -> None:
    claims = GroupClaims(crew.join("anna"))
    partition = crew.wanted[0]
    wait_until(lambda: crew.shared(2))
    assert claims.held(crew.wanted, {})[partition] == 1
    # The table says 7: somebody owned it under a coordination topic that is gone.
    claims.held(crew.wanted, {partition: 7})
    claims.renounce(partition)
    wait_until(lambda: claims.held(crew.wanted, {partition: 7}).get(partition) == 8)
