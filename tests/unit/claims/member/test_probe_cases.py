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
from tests.unit.claims.member.virtual_group import VirtualGroup, VirtualProcess


def topics(count: int, partitions: int) -> list[Partition]:
    return [
        Partition(f"topic-{topic}", f"id-{topic}", number) for topic in range(count) for number in range(partitions)
    ]


def test_p8_a_restarted_member_takes_back_the_partitions_of_all_its_topics() -> None:
    group = VirtualGroup(topics(count=3, partitions=2))
    anna = group.start("anna")
    group.run(2)
    assert group.held(anna) == group.partitions
    anna.gone = True
    again = group.start("anna", nonce="2")
    group.run(2.5)
    assert group.held(again) == group.partitions


class LossyProcess:
    """Loses the first record of one kind, on its way there or with its acknowledgement on the way back."""

    def __init__(self, group: VirtualGroup, process: VirtualProcess, kind: type[Record], arrives: bool) -> None:
        self.group, self.process, self.kind, self.arrives = group, process, kind, arrives
        self.lost: list[Record] = []

    def step(self) -> None:
        self.group.now += 1
        self.group.read_log(self.process)
        for record in self.process.participant.decide(self.group.now):
            if isinstance(record, self.kind) and not self.lost:
                self.lost.append(record)
                self.process.participant.outbox.failed(record)
                if not self.arrives:
                    continue
            self.group.append([record])


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "landed and reported as failed"])
@pytest.mark.parametrize("kind", [JoiningGroup, BalancingGroup, ClaimingPartition, Heartbeat])
def test_p9_p11_a_failure_at_each_step_of_acquiring_costs_time_and_nothing_else(
    kind: type[Record], arrives: bool
) -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    lossy = LossyProcess(group, anna, kind, arrives)
    for _ in range(60):
        lossy.step()
    assert lossy.lost
    assert group.held(anna) == group.partitions


def test_p9_a_lost_release_is_sent_again() -> None:
    group = VirtualGroup(partitions=2)
    anna = group.start("anna")
    group.run(2)
    bert = group.start("bert")
    lossy = LossyProcess(group, anna, ReleasingPartition, arrives=False)
    for _ in range(60):
        lossy.step()
        group.step(bert)
    assert lossy.lost
    assert (len(group.held(anna)), len(group.held(bert))) == (1, 1)


def test_p10_a_backlog_of_any_length_is_read_to_its_end() -> None:
    group = VirtualGroup(partitions=1)
    anna = group.start("anna")
    group.run(2)
    group.run(400, step_seconds=5.0)
    assert len(group.log) > 800
    bert = group.start("bert")
    group.read_log(anna)
    assert bert.participant.view.claim(group.partitions[0]) == anna.participant.view.claim(group.partitions[0])


def test_a_won_claim_that_an_unclean_election_cuts_off_is_won_again_above_the_tables_token() -> None:
    group = VirtualGroup(partitions=1)
    [partition] = group.partitions
    anna = group.start("anna")
    group.run(2)
    assert anna.participant.held(group.now)[partition] == 1
    # The broker comes back with an older log: the claim and everything after it is gone for new readers.
    cut = next(offset for offset, (record, _) in enumerate(group.log) if isinstance(record, ClaimingPartition))
    del group.log[cut:]
    anna.asleep = True
    bert = group.start("bert")
    # Anna has fenced the table: its token is the floor of the next claim, although the log knows nothing of it.
    bert.participant.request(group.partitions, {partition: 1})
    group.run(4)
    assert bert.participant.held(group.now)[partition] == 2
