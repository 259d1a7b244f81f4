"""Cases in which the only other implementation of such a protocol failed, or which it never tried."""

from __future__ import annotations

import pytest

from penstock.claims.protocol.records import (
    BalancingGroup,
    ClaimingPartition,
    Heartbeat,
    JoiningGroup,
    Record,
    ReleasingPartition,
)
from penstock.logs.log import Partition
from tests.unit.claims.member.room import Attendant, Room


def topics(count: int, partitions: int) -> list[Partition]:
    return [
        Partition(f"topic-{topic}", f"id-{topic}", number) for topic in range(count) for number in range(partitions)
    ]


def test_p8_a_restarted_member_takes_back_the_partitions_of_all_its_topics() -> None:
    room = Room(topics(count=3, partitions=2))
    anna = room.enter("anna")
    room.run(2)
    assert room.held(anna) == room.partitions
    anna.gone = True
    again = room.enter("anna", nonce="2")
    room.run(2.5)
    assert room.held(again) == room.partitions


class Deaf:
    """Loses the first record of one kind, on its way there or with its acknowledgement on the way back."""

    def __init__(self, room: Room, attendant: Attendant, kind: type[Record], arrives: bool) -> None:
        self.room, self.attendant, self.kind, self.arrives = room, attendant, kind, arrives
        self.lost: list[Record] = []

    def turn(self) -> None:
        self.room.now += 1
        self.room.hear(self.attendant)
        for record in self.attendant.participant.decide(self.room.now):
            if isinstance(record, self.kind) and not self.lost:
                self.lost.append(record)
                self.attendant.participant.outbox.failed(record)
                if not self.arrives:
                    continue
            self.room.append([record])


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "landed and reported as failed"])
@pytest.mark.parametrize("kind", [JoiningGroup, BalancingGroup, ClaimingPartition, Heartbeat])
def test_p9_p11_a_failure_at_each_step_of_acquiring_costs_time_and_nothing_else(
    kind: type[Record], arrives: bool
) -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    deaf = Deaf(room, anna, kind, arrives)
    for _ in range(60):
        deaf.turn()
    assert deaf.lost
    assert room.held(anna) == room.partitions


def test_p9_a_lost_release_is_sent_again() -> None:
    room = Room(partitions=2)
    anna = room.enter("anna")
    room.run(2)
    bert = room.enter("bert")
    deaf = Deaf(room, anna, ReleasingPartition, arrives=False)
    for _ in range(60):
        deaf.turn()
        room.turn(bert)
    assert deaf.lost
    assert (len(room.held(anna)), len(room.held(bert))) == (1, 1)


def test_p10_a_backlog_of_any_length_is_read_to_its_end() -> None:
    room = Room(partitions=1)
    anna = room.enter("anna")
    room.run(2)
    room.run(400, step_seconds=5.0)
    assert len(room.log) > 800
    bert = room.enter("bert")
    room.hear(anna)
    assert bert.participant.view.claim(room.partitions[0]) == anna.participant.view.claim(room.partitions[0])


def test_a_won_claim_that_an_unclean_election_cuts_off_is_won_again_above_the_tables_token() -> None:
    room = Room(partitions=1)
    [partition] = room.partitions
    anna = room.enter("anna")
    room.run(2)
    assert anna.participant.held(room.now)[partition] == 1
    # The broker comes back with an older log: the claim and everything behind it is gone for whoever reads it now.
    cut = next(offset for offset, (record, _) in enumerate(room.log) if isinstance(record, ClaimingPartition))
    del room.log[cut:]
    anna.asleep = True
    bert = room.enter("bert")
    # Anna has fenced the table: its token is the floor of the next claim, although the log knows nothing of it.
    bert.participant.want(room.partitions, {partition: 1})
    room.run(4)
    assert bert.participant.held(room.now)[partition] == 2
