"""Random logs: records that several processes send from older and newer views of one log, valid and invalid ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    BalancingGroup,
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimRequest,
    ForgettingMember,
    ForgettingPartitions,
    FreeingPartition,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    MemberId,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    Seeking,
    requested_topics,
)
from penstock.claims.protocol.state import Claim, GroupState
from penstock.logs.log import Partition
from tests.support.coordination import ANNA, BERT, CLEO, INTERVAL, web

INCARNATIONS = (ANNA, BERT, CLEO, MemberId("anna", "a2"))
PARTITIONS = (web(0), web(1))
PLANNED_MAX = 120


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """A record to be: its sender has not yet read the last `behind` records; `number` is an offset or a choice.

    A `plausible` one is sent by the owner of the partition, where the kind of record needs one.
    """

    kind: type[Record]
    who: MemberId
    partition: Partition
    behind: int
    number: int
    plausible: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the log, and the state before and after it."""

    offset: int
    record: Record
    before: GroupState
    after: GroupState
    refusal: str | None

    def claims(self, partition: Partition) -> tuple[Claim, Claim]:
        return self.before.claim(partition), self.after.claim(partition)


@dataclass(frozen=True, slots=True)
class _View:
    """What the sender has read when it sends the record."""

    state: GroupState
    planned: PlannedRecord

    @property
    def claim(self) -> Claim:
        return self.state.claim(self.planned.partition)

    @property
    def member_last(self) -> int | None:
        member = self.state.members.get(self.planned.who.client_id)
        return None if member is None else member.last

    @property
    def sender(self) -> MemberId:
        owner = self.claim.owner if self.planned.kind in _OF_OWNERS else None
        return (owner or self.planned.who) if self.planned.plausible else self.planned.who


def _beats(view: _View) -> tuple[Beat, ...]:
    return (Beat(view.planned.partition, view.claim.token, view.planned.number, seeks=view.claim.seeks),)


def _requests(view: _View) -> tuple[ClaimRequest, ...]:
    several = PARTITIONS if view.planned.number % 3 == 0 else (view.planned.partition,)
    return tuple(ClaimRequest(item, view.state.claim(item).token, view.planned.number // 10) for item in several)


_CONTENT: dict[type[Record], Callable[[_View], dict[str, Any]]] = {
    JoiningGroup: lambda view: {
        "if_last": view.member_last,
        "heartbeat_seconds": INTERVAL,
        "wants": requested_topics(PARTITIONS),
    },
    LeavingGroup: lambda view: {"beats": _beats(view)},
    ForgettingMember: lambda view: {"client_id": view.planned.who.client_id, "if_last": view.member_last or 0},
    BalancingGroup: lambda view: {"if_changed": view.state.changed or 0},
    Heartbeat: lambda view: {"wants": requested_topics(PARTITIONS[: view.planned.number % 5]), "beats": _beats(view)},
    ClaimingPartition: lambda view: {"requests": _requests(view)},
    ReleasingPartition: lambda view: {"beats": _beats(view)},
    ClaimingMessages: lambda view: {
        "token": view.claim.token,
        "if_seeks": view.claim.seeks,
        "end": max(view.planned.number, (view.claim.claimed or 0) + 1),
    },
    Seeking: lambda view: {
        "if_token": view.claim.token,
        "if_seeks": view.claim.seeks,
        "position": view.planned.number,
    },
    FreeingPartition: lambda view: {
        "if_token": view.claim.token,
        "position": view.planned.number if view.planned.number % 2 else None,
    },
    ForgettingPartitions: lambda view: {"partitions": (view.planned.partition,)},
    ReleaseGroup: lambda view: {"pause_id": f"p{view.planned.number % 2}"},
    ResumingGroup: lambda view: {"pause_id": f"p{view.planned.number % 2}"},
}
_ABOUT_NO_PARTITION = (
    JoiningGroup,
    LeavingGroup,
    ForgettingMember,
    BalancingGroup,
    Heartbeat,
    ClaimingPartition,
    ReleasingPartition,
    ForgettingPartitions,
    ReleaseGroup,
    ResumingGroup,
)
_OF_OWNERS = (ReleasingPartition, ClaimingMessages, Seeking)
_WEIGHTS: dict[type[Record], int] = {
    ClaimingPartition: 8,
    Heartbeat: 3,
    ResumingGroup: 3,
    JoiningGroup: 8,
}
_KINDS = [kind for kind in _CONTENT for _ in range(_WEIGHTS.get(kind, 1))]


def random_plans() -> st.SearchStrategy[list[PlannedRecord]]:
    """Long lists by a seed: hypothesis, drawing one at a time, would mostly draw short ones."""
    return st.integers(0, 2**32 - 1).map(drafts_of)


def drafts_of(seed: int) -> list[PlannedRecord]:
    rng = random.Random(seed)
    return [
        PlannedRecord(
            kind=rng.choice(_KINDS),
            who=rng.choice(INCARNATIONS),
            partition=rng.choice((*PARTITIONS, PARTITIONS[0])),
            behind=rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 5)),
            number=rng.randrange(40),
            plausible=rng.random() < 0.8,
        )
        for _ in range(rng.randrange(PLANNED_MAX))
    ]


def log_of(planned_records: list[PlannedRecord]) -> list[Step]:
    """The log that these records become, folded; two members have joined before."""
    states = [GroupState()]
    steps = []
    joins = [PlannedRecord(JoiningGroup, who, PARTITIONS[0], 0, 0, False) for who in (ANNA, BERT)]
    for offset, planned in enumerate([*joins, *planned_records]):
        state = states[max(0, len(states) - 1 - planned.behind)]
        record = _record(_View(state, planned), offset)
        after = states[-1].copy()
        refusal = apply(after, offset, record, float(offset))
        steps.append(Step(offset, record, states[-1], after, refusal))
        states.append(after)
    return steps


def _record(view: _View, seq: int) -> Record:
    planned = view.planned
    content = _CONTENT[planned.kind](view)
    if planned.kind not in _ABOUT_NO_PARTITION:
        content["partition"] = planned.partition
    return planned.kind(who=view.sender, seq=seq, **content)
