"""What the engine asks of the claims of a group, over a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.group import GroupClaims, open_group
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


def test_a_process_whose_work_hangs_releases_its_partitions_until_it_works_again(crew: Crew) -> None:
    events: list[Event] = []
    options = ClaimsSpec("hanging", HEARTBEAT_SECONDS, crew.topic, PLACES, work_timeout_seconds=3.0)
    claims = open_group(KafkaLogSpec(crew.bootstrap, group=crew.group), options, events.append)
    other = crew.join("swift")

    def works() -> int:
        claims.working()
        return len(claims.held(crew.requested, {}))

    try:
        wait_until(lambda: works() == 1 and len(other.held()) == 1)
        [(partition, token)] = claims.agent.held().items()
        # Its agent still runs, and would renew the claim for ever.
        wait_until(lambda: len(other.held()) == 2)
        assert not claims.keeps(partition, token)
        assert [item for item in events if isinstance(item, WorkHangs)]
        wait_until(lambda: works() == 1 and len(other.held()) == 1)
    finally:
        claims.close()


def test_m2_the_shown_position_follows_a_table_that_was_set_back(crew: Crew) -> None:
    claims = GroupClaims(crew.join("anna"))
    partition, other = crew.requested
    wait_until(lambda: crew.shared(2))
    claims.progress({partition: 500, other: 70}, {})
    wait_until(lambda: shown(claims, partition) == 500)
    token = claims.agent.held()[partition]
    assert claims.correct(partition, token, 300) == 500
    assert shown(claims, partition) == 300
    assert claims.correct(other, claims.agent.held()[other], 70) is None


def shown(claims: GroupClaims, partition: Partition) -> int | None:
    with claims.agent.looking() as participant:
        return participant.view.claim(partition).position


def test_m1_a_claim_below_the_tables_token_is_released_and_claimed_again_above_it(crew: Crew) -> None:
    claims = GroupClaims(crew.join("anna"))
    partition = crew.requested[0]
    wait_until(lambda: crew.shared(2))
    assert claims.held(crew.requested, {})[partition] == 1
    # The table has token 7: a process owned the partition under a coordination topic that was deleted.
    claims.held(crew.requested, {partition: 7})
    claims.renounce(partition)
    wait_until(lambda: claims.held(crew.requested, {partition: 7}).get(partition) == 8)
