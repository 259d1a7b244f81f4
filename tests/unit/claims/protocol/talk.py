"""Any talk of any members: what several lives say from older and newer views of one log, sense and nonsense alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    Beat,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ClosingRanges,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    OpeningRanges,
    Presence,
    RangeBeat,
    Record,
    ReleaseGroup,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Seeking,
    Who,
)
from penstock.claims.protocol.state import Claim, Lease, LogState
from penstock.logs.log import Partition
from tests.coordination import ANNA, BERT, CLEO, GROUP, web

LIVES = (ANNA, BERT, CLEO, Who("anna", "a2"))
PARTITIONS = (web(0), web(1))
WORDS_MAX = 120


@dataclass(frozen=True, slots=True)
class Word:
    """What somebody wants to say: `behind` records are not yet read by it, `number` is an offset or a choice.

    An `apt` word is said by whoever may say it, where the speaker's view knows one.
    """

    kind: type[Record]
    who: Who
    partition: Partition
    behind: int
    number: int
    apt: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the log, and the state before and behind it."""

    offset: int
    record: Record
    before: LogState
    after: LogState
    refusal: str | None

    def claims(self, partition: Partition) -> tuple[Claim, Claim]:
        return self.before.group(GROUP).claim(partition), self.after.group(GROUP).claim(partition)


@dataclass(frozen=True, slots=True)
class _View:
    """What a speaker knows when it speaks."""

    state: LogState
    word: Word

    @property
    def claim(self) -> Claim:
        return self.state.group(GROUP).claim(self.word.partition)

    @property
    def member_last(self) -> int | None:
        member = self.state.group(GROUP).members.get(self.word.who.client_id)
        return None if member is None else member.last

    @property
    def lease(self) -> Lease:
        leases = self.claim.leases
        return leases[self.word.number % len(leases)] if leases else Lease(0, 5, 0, 0, None)

    @property
    def next(self) -> int:
        return 0 if self.claim.ranges is None else self.claim.ranges.next

    @property
    def speaker(self) -> Who:
        if not self.word.apt or self.word.kind in _OF_ANYBODY:
            return self.word.who
        holder = self.lease.owner if self.word.kind in _OF_LEASE_HOLDERS else self.claim.owner
        return holder or self.word.who


def _range_content(view: _View) -> dict[str, Any]:
    if view.word.number % 3:
        return {"token": view.claim.token, "start": view.next, "end": view.next + 5, "if_last": None}
    lease = view.lease
    return {"token": view.claim.token, "start": lease.start, "end": lease.end, "if_last": lease.last}


_CONTENT: dict[type[Record], Callable[[_View], dict[str, Any]]] = {
    JoiningGroup: lambda view: {"if_last": view.member_last, "presence": Presence()},
    LeavingGroup: lambda view: {},
    ForgettingMember: lambda view: {"client_id": view.word.who.client_id, "if_last": view.member_last or 0},
    Heartbeat: lambda view: {
        "presence": Presence(),
        "beats": (Beat(view.word.partition, view.claim.token, view.word.number),),
        "ranges": (RangeBeat(view.word.partition, view.lease.start, view.lease.lease),),
    },
    ClaimingPartition: lambda view: {
        "if_token": view.claim.token,
        "if_last": view.claim.last,
        "floor": view.word.number // 10,
    },
    ReleasingPartition: lambda view: {"token": view.claim.token, "position": view.word.number},
    ClaimingMessages: lambda view: {"token": view.claim.token, "end": view.word.number},
    Seeking: lambda view: {"if_token": view.claim.token, "position": view.word.number},
    ReleaseGroup: lambda view: {"pause_id": f"p{view.word.number % 2}"},
    ResumingGroup: lambda view: {"pause_id": f"p{view.word.number % 2}"},
    OpeningRanges: lambda view: {
        "token": view.claim.token,
        "start": (view.claim.position or 0) + view.word.number % 2,
        "at_most_once": view.word.number % 4 < 2,
    },
    ClaimingRange: _range_content,
    FinishingRange: lambda view: {"token": view.claim.token, "start": view.lease.start, "lease": view.lease.lease},
    ReturningRange: lambda view: {"token": view.claim.token, "start": view.lease.start, "lease": view.lease.lease},
    GivingUpRange: lambda view: {"token": view.claim.token, "start": view.lease.start, "if_last": view.lease.last},
    ClosingRanges: lambda view: {"token": view.claim.token},
}
_ABOUT_NO_PARTITION = (JoiningGroup, LeavingGroup, ForgettingMember, Heartbeat, ReleaseGroup, ResumingGroup)
_OF_LEASE_HOLDERS = (FinishingRange, ReturningRange)
_OF_ANYBODY = (
    ClaimingPartition,
    ClaimingRange,
    GivingUpRange,
    JoiningGroup,
    LeavingGroup,
    ForgettingMember,
    ReleaseGroup,
    ResumingGroup,
)
_WEIGHTS: dict[type[Record], int] = {
    ClaimingPartition: 3,
    Heartbeat: 3,
    OpeningRanges: 6,
    ClaimingRange: 10,
    FinishingRange: 4,
    ResumingGroup: 3,
    ReturningRange: 2,
    JoiningGroup: 2,
}
_KINDS = [kind for kind in _CONTENT for _ in range(_WEIGHTS.get(kind, 1))]


def talks() -> st.SearchStrategy[list[Word]]:
    """Long talks by a seed: drawn word by word they would rarely come as far as the end of a range."""
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
    """The log that this talk becomes, folded."""
    states = [LogState()]
    steps = []
    for offset, word in enumerate(talk):
        seen = states[max(0, len(states) - 1 - word.behind)]
        record = _record(_View(seen, word), offset)
        after, refusal = apply(states[-1], offset, record)
        steps.append(Step(offset, record, states[-1], after, refusal))
        states.append(after)
    return steps


def _record(view: _View, seq: int) -> Record:
    word = view.word
    content = _CONTENT[word.kind](view)
    if word.kind not in _ABOUT_NO_PARTITION:
        content["partition"] = word.partition
    return word.kind(group=GROUP, who=view.speaker, seq=seq, **content)
