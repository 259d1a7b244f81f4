"""Members over a real broker: who holds what, how fast it moves, and who is never disturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.claims.member.agent import Agent, default_client_id
from penstock.claims.member.membership import DuplicateClientError, MemberOptions, ReplacedError
from penstock.claims.protocol.records import TEXT_CHARACTERS_MAX, Seeking
from penstock.errors import TransientError, UserError
from penstock.job.spec import HEARTBEAT_SECONDS_MIN, KafkaLogSpec
from tests.support.claimants import HEARTBEAT_SECONDS, LATE_SECONDS, Crew, Held, hits, hits_up_to, other_process
from tests.support.waiting import wait_until


@pytest.fixture
def crew(bootstrap: str) -> Iterator[Crew]:
    crew = Crew(bootstrap, hits_up_to(12))
    yield crew
    crew.close()


def kept(before: Held, after: Held) -> bool:
    """Whether everything that is held still has the same token."""
    return all(before.get(partition, token) == token for partition, token in after.items())


# shares


def test_one_to_three_to_one_members_share_without_pauses(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(12))
    alone = anna.held()

    crew.join("bert")
    crew.join("cleo")
    smallest = 12

    def fair() -> bool:
        nonlocal smallest
        smallest = min(smallest, len(anna.held()))
        return crew.shared(4, 4, 4)

    wait_until(fair)
    assert smallest == 4
    assert kept(alone, anna.held())
    among_three = anna.held()

    crew.leave("bert")
    crew.leave("cleo")
    wait_until(lambda: crew.shared(12))
    assert {item: anna.held()[item] for item in among_three} == among_three
    assert "claim lost" not in crew.names("anna")


def test_partitions_that_the_job_no_longer_has_are_released(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(12))
    anna.request(hits_up_to(3), {})
    wait_until(lambda: set(anna.held()) == set(hits_up_to(3)))


# who vanishes and who comes back


def test_partitions_of_a_killed_process_are_taken_over_within_three_heartbeat_intervals(crew: Crew) -> None:
    anna = crew.join("anna")
    with other_process(crew, "bert") as process:
        wait_until(lambda: crew.shared(6))
        kept_by_anna = anna.held()
        process.kill()
        assert wait_until(lambda: crew.shared(12)) < 3 * HEARTBEAT_SECONDS + LATE_SECONDS
    assert kept(kept_by_anna, {item: anna.held()[item] for item in kept_by_anna})
    won = {key: token for key, token in anna.held().items() if key not in kept_by_anna}
    assert all(token >= 2 for token in won.values())


def test_a_restarted_client_id_takes_its_claims_back_under_a_higher_token(crew: Crew) -> None:
    with other_process(crew, "anna") as process:
        process.kill()
        process.wait()
        with crew.journal() as journal:
            _, end = journal.bounds()
        anna = crew.join("anna")
        wait_until(lambda: crew.shared(12))
    assert set(anna.held().values()) == {2}
    assert end >= 3, "a join, a target, and one record that claims all"


def test_of_two_processes_with_one_id_that_start_together_one_remains(crew: Crew) -> None:
    one = crew.join("anna")
    other = crew.join("anna")

    def ended(agent: Agent) -> bool:
        try:
            agent.held()
        except (DuplicateClientError, ReplacedError):
            return True
        return False

    wait_until(lambda: ended(one) or ended(other))
    remaining = one if ended(other) else other
    wait_until(lambda: len(remaining.held()) == 12)
    one.close()


# tokens (RULES M1)


def test_m1_a_claim_is_above_the_token_of_its_table(crew: Crew) -> None:
    anna = crew.join("anna", floors={hits(0): 41})
    wait_until(lambda: crew.shared(12))
    assert anna.held()[hits(0)] == 42
    assert anna.held()[hits(1)] == 1


# records that an application sends


def test_the_position_of_a_held_partition_reaches_every_member(crew: Crew) -> None:
    anna, bert = crew.join("anna"), crew.join("bert")
    wait_until(lambda: crew.shared(6, 6))
    partition = next(iter(anna.held()))
    anna.progress(partition, 1000, 25)

    def position_shown() -> bool:
        with bert.looking() as participant:
            claim = participant.view.claim(partition)
            return (claim.position, claim.lag) == (1000, 25)

    wait_until(position_shown, 2 * HEARTBEAT_SECONDS + LATE_SECONDS)


def test_every_record_is_shown_with_its_verdict(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(12))
    accepted = anna.send(Seeking, hits(0), if_token=1, position=7, reason="")
    assert accepted.refusal is None
    refused = anna.send(Seeking, hits(0), if_token=9, position=7, reason="")
    assert refused.refusal is not None
    assert refused.offset > accepted.offset


def test_an_invalid_record_is_refused_for_its_sender_without_effect_on_others(crew: Crew) -> None:
    anna = crew.join("anna")
    wait_until(lambda: crew.shared(12))
    with pytest.raises(ValueError):
        anna.send(Seeking, hits(0), if_token=1, position=-7, reason="")
    assert crew.shared(12)


def test_nothing_is_sent_or_held_before_the_group_is_joined() -> None:
    anna = Agent(KafkaLogSpec("localhost:1"), MemberOptions("shop", "anna"))
    assert anna.held() == {}
    with pytest.raises(TransientError):
        anna.send(Seeking, hits(0), if_token=1, position=7, reason="")


# who may not become a member at all


@pytest.mark.parametrize("text", ["", "x" * (TEXT_CHARACTERS_MAX + 1), "\ud800"], ids=["empty", "long", "no text"])
def test_p5_an_invalid_id_is_refused_before_any_record_is_sent(text: str) -> None:
    spec = KafkaLogSpec("localhost:1")
    for options in (MemberOptions(text, "anna"), MemberOptions("shop", text)):
        with pytest.raises(UserError):
            Agent(spec, options)


def test_a_heartbeat_that_is_too_fast_is_refused() -> None:
    spec = KafkaLogSpec("localhost:1")
    with pytest.raises(UserError):
        Agent(spec, MemberOptions("shop", "anna", HEARTBEAT_SECONDS_MIN / 2))


def test_generated_client_ids_are_unique() -> None:
    assert default_client_id() != default_client_id()
