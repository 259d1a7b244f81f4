"""What the tests of claims share: names, and a coordination partition in memory that folds what is said to it."""

from __future__ import annotations

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    Beat,
    ClaimingPartition,
    ClaimingRange,
    Heartbeat,
    Presence,
    RangeBeat,
    Record,
    Who,
)
from penstock.claims.protocol.state import Claim, Group, Lease, LogState
from penstock.logs.log import Partition

GROUP = "shop"
ANNA = Who("anna", "a1")
BERT = Who("bert", "b1")
CLEO = Who("cleo", "c1")
WEB = Partition("web", "id-of-web", 0)


def web(number: int) -> Partition:
    return Partition("web", "id-of-web", number)


class Log:
    """One coordination partition: the state behind everything said so far."""

    def __init__(self) -> None:
        self.state = LogState()
        self.records: list[Record] = []

    @property
    def end(self) -> int:
        return self.state.next_offset

    def group(self, name: str = GROUP) -> Group:
        return self.state.group(name)

    def claim_of(self, partition: Partition = WEB) -> Claim:
        return self.group().claim(partition)

    def lease(self, start: int, partition: Partition = WEB) -> Lease:
        return next(each for each in self.claim_of(partition).leases if each.start == start)

    def hear(self, record: Record) -> str | None:
        """Append a record; why it was refused, None if it was accepted."""
        self.records.append(record)
        self.state, refusal = apply(self.state, self.end, record)
        return refusal

    def say(self, kind: type[Record], who: Who, group: str = GROUP, **content: object) -> str | None:
        return self.hear(kind(group=group, who=who, seq=len(self.records) + 1, **content))  # type: ignore[arg-type]

    def claim(self, who: Who, partition: Partition = WEB, floor: int = 0) -> str | None:
        """Claim a partition by somebody who has read everything."""
        seen = self.claim_of(partition)
        return self.say(
            ClaimingPartition, who, partition=partition, if_token=seen.token, if_last=seen.last, floor=floor
        )

    def beat(self, who: Who, token: int, position: int | None = None, partition: Partition = WEB) -> str | None:
        return self.say(Heartbeat, who, beats=(Beat(partition, token, position),))

    def beat_at_home(self, who: Who, claims_max: int | None = None) -> str | None:
        return self.say(Heartbeat, who, presence=Presence(claims_max))

    def beat_range(self, who: Who, start: int, lease: int, partition: Partition = WEB) -> str | None:
        return self.say(Heartbeat, who, ranges=(RangeBeat(partition, start, lease),))

    def lease_next(self, who: Who, size: int = 10, partition: Partition = WEB) -> str | None:
        """Claim the next unclaimed offsets of a shared partition."""
        seen = self.claim_of(partition)
        assert seen.ranges is not None
        start = seen.ranges.next
        return self.say(
            ClaimingRange,
            who,
            partition=partition,
            token=seen.token,
            start=start,
            end=start + size,
            if_last=None,
        )
