"""What the tests of claims share: names, and the log of a group in memory that folds what is appended to it."""

from __future__ import annotations

from typing import Any

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    BalancingGroup,
    Beat,
    ClaimingPartition,
    ClaimRequest,
    Heartbeat,
    JoiningGroup,
    MemberId,
    Record,
    ReleasingPartition,
    requested_topics,
)
from penstock.claims.protocol.state import Claim, GroupState
from penstock.logs.log import Partition

GROUP = "shop"
INTERVAL = 10.0
ANNA = MemberId("anna", "a1")
BERT = MemberId("bert", "b1")
CLEO = MemberId("cleo", "c1")
WEB = Partition("web", "id-of-web", 0)


def web(number: int) -> Partition:
    return Partition("web", "id-of-web", number)


class Log:
    """One group: the state after everything appended so far. Anna, Bert and Cleo are members from the beginning."""

    def __init__(self, *members: MemberId) -> None:
        self.state = GroupState()
        self.records: list[Record] = []
        for who in members or (ANNA, BERT, CLEO):
            assert self.join(who) is None

    @property
    def end(self) -> int:
        return self.state.next_offset

    def claim_of(self, partition: Partition = WEB) -> Claim:
        return self.state.claim(partition)

    def append_record(self, record: Record) -> str | None:
        """Append a record; why it was refused, None if it was accepted."""
        self.records.append(record)
        return apply(self.state, self.end, record, float(self.end))

    def append(self, kind: type[Record], who: MemberId, **content: object) -> str | None:
        return self.append_record(kind(who=who, seq=len(self.records) + 1, **content))  # type: ignore[arg-type]

    def join(self, who: MemberId, **content: Any) -> str | None:
        """Join, by a process that has read everything."""
        before = self.state.members.get(who.client_id)
        joining = {
            "if_last": None if before is None else before.last,
            "heartbeat_seconds": INTERVAL,
            "wants": requested_topics([WEB]),
            **content,
        }
        return self.append(JoiningGroup, who, **joining)

    def balance(self, who: MemberId = ANNA) -> str | None:
        return self.append(BalancingGroup, who, if_changed=self.state.changed)

    def claim(self, who: MemberId, *partitions: Partition, floor: int = 0) -> str | None:
        """Claim partitions, by a process that has read everything."""
        requests = tuple(
            ClaimRequest(partition, self.claim_of(partition).token, floor) for partition in partitions or (WEB,)
        )
        return self.append(ClaimingPartition, who, requests=requests)

    def release(self, who: MemberId, token: int, position: int | None = None, **content: Any) -> str | None:
        beats = (Beat(WEB, token, position, seeks=self.claim_of().seeks),)
        return self.append(ReleasingPartition, who, beats=beats, **content)

    def beat(self, who: MemberId, token: int, position: int | None = None, partition: Partition = WEB) -> str | None:
        beats = (Beat(partition, token, position, seeks=self.claim_of(partition).seeks),)
        return self.append(Heartbeat, who, beats=beats)
