"""Any talk of any members: what several lives say from older and newer views of one log, sense and nonsense alike."""

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
    wants_of,
)
from penstock.claims.protocol.state import Claim, GroupState
from penstock.logs.log import Partition
from tests.support.coordination import ANNA, BERT, CLEO, INTERVAL, web

LIVES = (ANNA, BERT, CLEO, MemberId("anna", "a2"))
PARTITIONS = (web(0), web(1))
WORDS_MAX = 120


@dataclass(frozen=True, slots=True)
class Word:
    """What somebody wants to say: `behind` records are not yet read by it, `number` is an offset or a choice.

    An `apt` word is said by whoever may say it, where the speaker's view knows one.
    """

    kind: type[Record]
    who: MemberId
    partition: Partition
    behind: int
    number: int
    apt: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the log, and the state before and behind it."""

    offset: int
    record: Record
    before: GroupState
    after: GroupState
    refusal: str | None

    def claims(self, partition: Partition) -> tuple[Claim, Claim]:
        return self.before.claim(partition), self.after.claim(partition)


@dataclass(frozen=True, slots=True)
class _View:
    """What a speaker knows when it speaks."""

    state: GroupState
    word: Word

    @property
    def claim(self) -> Claim:
        return self.state.claim(self.word.partition)

    @property
    def member_last(self) -> int | None:
        member = self.state.members.get(self.word.who.client_id)
        return None if member is None else member.last

    @property
    def speaker(self) -> MemberId:
        owner = self.claim.owner if self.word.kind in _OF_OWNERS else None
        return (owner or self.word.who) if self.word.apt else self.word.who


def _beats(view: _View) -> tuple[Beat, ...]:
    return (Beat(view.word.partition, view.claim.token, view.word.number, seeks=view.claim.seeks),)


def _requests(view: _View) -> tuple[ClaimRequest, ...]:
    several = PARTITIONS if view.word.number % 3 == 0 else (view.word.partition,)
    return tuple(ClaimRequest(item, view.state.claim(item).token, view.word.number // 10) for item in several)


_CONTENT: dict[type[Record], Callable[[_View], dict[str, Any]]] = {
    JoiningGroup: lambda view: {
        "if_last": view.member_last,
        "heartbeat_seconds": INTERVAL,
        "wants": wants_of(PARTITIONS),
    },
    LeavingGroup: lambda view: {"beats": _beats(view)},
    ForgettingMember: lambda view: {"client_id": view.word.who.client_id, "if_last": view.member_last or 0},
    BalancingGroup: lambda view: {"if_changed": view.state.changed or 0},
    Heartbeat: lambda view: {"wants": wants_of(PARTITIONS[: view.word.number % 5]), "beats": _beats(view)},
    ClaimingPartition: lambda view: {"requests": _requests(view)},
    ReleasingPartition: lambda view: {"beats": _beats(view)},
    ClaimingMessages: lambda view: {
        "token": view.claim.token,
        "if_seeks": view.claim.seeks,
        "end": max(view.word.number, (view.claim.claimed or 0) + 1),
    },
    Seeking: lambda view: {
        "if_token": view.claim.token,
        "if_seeks": view.claim.seeks,
        "position": view.word.number,
    },
    FreeingPartition: lambda view: {
        "if_token": view.claim.token,
        "position": view.word.number if view.word.number % 2 else None,
    },
    ForgettingPartitions: lambda view: {"partitions": (view.word.partition,)},
    ReleaseGroup: lambda view: {"pause_id": f"p{view.word.number % 2}"},
    ResumingGroup: lambda view: {"pause_id": f"p{view.word.number % 2}"},
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


def talks() -> st.SearchStrategy[list[Word]]:
    """Long talks by a seed: drawn word by word they would rarely come far."""
    return st.integers(0, 2**32 - 1).map(talk_of)


def talk_of(seed: int) -> list[Word]:
    rng = random.Random(seed)
    return [
        Word(
            kind=rng.choice(_KINDS),
            who=rng.choice(LIVES),
            partition=rng.choice((*PARTITIONS, PARTITIONS[0])),
            behind=rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 5)),
            number=rng.randrange(40),
            apt=rng.random() < 0.8,
        )
        for _ in range(rng.randrange(WORDS_MAX))
    ]


def spoken(talk: list[Word]) -> list[Step]:
    """The log that this talk becomes, folded; two members have joined before."""
    states = [GroupState()]
    steps = []
    joins = [Word(JoiningGroup, who, PARTITIONS[0], 0, 0, False) for who in (ANNA, BERT)]
    for offset, word in enumerate([*joins, *talk]):
        seen = states[max(0, len(states) - 1 - word.behind)]
        record = _record(_View(seen, word), offset)
        after = states[-1].copy()
        refusal = apply(after, offset, record, float(offset))
        steps.append(Step(offset, record, states[-1], after, refusal))
        states.append(after)
    return steps


def _record(view: _View, seq: int) -> Record:
    word = view.word
    content = _CONTENT[word.kind](view)
    if word.kind not in _ABOUT_NO_PARTITION:
        content["partition"] = word.partition
    return word.kind(who=view.speaker, seq=seq, **content)
