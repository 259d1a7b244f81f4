"""What a process proposes to commit, and the pure check that accepts or refuses it partition by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, assert_never

from penstock.flow.write.manifest import Counts, StagedFile, Vector
from penstock.lake.state import DeltaState, Numbers, Totals, slice_totals
from penstock.logs.log import EpochMark, Partition, Slice


@dataclass(frozen=True, slots=True)
class StartPart:
    """A partition's first position: committed without rows before anything is read (RULES P1)."""

    partition: Partition
    offset: int
    token: int
    numbers: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True, slots=True)
class SlicePart:
    """One slice of a batch with its token, counts and staged files."""

    piece: Slice
    token: int
    counts: Counts
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    mark: EpochMark | None = None
    """The last record of the slice; None if it has none, or its log keeps no leader epochs."""
    numbers: Numbers = field(default_factory=Numbers)
    begins: bool = False
    """Whether the slice is the first of its partition in this table, which has no position of it yet."""
    deferred: int = 0
    """Of the records read, those that are left to types that lag."""

    @property
    def partition(self) -> Partition:
        return self.piece.partition

    @property
    def totals(self) -> Totals:
        return slice_totals(self.piece, self.counts) + Totals(deferred=self.deferred)


@dataclass(frozen=True, slots=True)
class FencePart:
    """A token raised over a partition without rows: the first act of a new owner (RULES C5)."""

    partition: Partition
    token: int
    totals: Totals = field(default_factory=Totals)
    """What it adds to the totals: a catch-up changes them and moves no position."""
    numbers: Numbers = field(default_factory=Numbers)


ProposalPart = StartPart | SlicePart | FencePart


class AcceptedPart(Protocol):
    """What every accepted part has, including one that a kind of table defines."""

    @property
    def partition(self) -> Partition: ...

    @property
    def token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """The parts of one commit; `batch_id` identifies it afterwards (RULES C2)."""

    job: str
    batch_id: str
    parts: tuple[ProposalPart, ...]
    extra: Mapping[str, int] = field(default_factory=dict)
    """Further numbers that the table keeps with the commit, by name."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Partition columns that the commit itself fills in: with the number of this name, as of the version it follows."""
    files: tuple[StagedFile, ...] = ()
    """Files of the batch as a whole, not of one slice."""
    removes: tuple[RemovedFile, ...] = ()
    files_elsewhere: tuple[StagedFile, ...] = ()
    """Files that the batch committed to other logs; only the history shows them."""
    counts_elsewhere: Counts = field(default_factory=Counts)
    """What these logs count of the batch; only the history shows them."""
    log_ends: Mapping[Partition, int] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    """As in a batch; only the history shows both."""
    whole: bool = False
    """Whether a refusal of one part refuses them all."""


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that the commit takes out of the table; it must be active in the version that the commit follows."""

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the table refuses the part of this partition: another process moved it, or holds a newer token."""

    partition: Partition
    reason: str


P = TypeVar("P", bound=AcceptedPart)


@dataclass(frozen=True, slots=True)
class Checked(Generic[P]):
    accepted: tuple[P, ...]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a proposal: the version that holds the accepted parts, and the refused partitions."""

    version: int | None
    accepted: tuple[AcceptedPart, ...] = ()
    refused: tuple[Refusal, ...] = ()


def check(proposal: Proposal, state: DeltaState) -> Checked[ProposalPart]:
    """Split a proposal into the parts that this version of the table accepts and those that it refuses (RULES C4)."""
    checked = split(proposal.parts, lambda part: _refusal(part, state))
    return Checked((), checked.refused) if proposal.whole and checked.refused else checked


def split(parts: Iterable[P], refusal: Callable[[P], str | None]) -> Checked[P]:
    """The accepted parts, and the others with the reason, partition by partition."""
    reasons = [(part, refusal(part)) for part in parts]
    refused = (Refusal(part.partition, reason) for part, reason in reasons if reason is not None)
    return Checked(tuple(part for part, reason in reasons if reason is None), tuple(refused))


def _refusal(part: ProposalPart, state: DeltaState) -> str | None:
    position, token = state.of(part.partition).position, state.of(part.partition).token
    if part.token < token:
        return f"token {part.token} is older than the table's {token}"
    match part:
        case StartPart():
            return None if position is None else f"already started, position is {position}"
        case SlicePart():
            if position == (None if part.begins else part.piece.start):
                return None
            return f"the slice starts at {part.piece.start}, the table's position is {position}"
        case FencePart():
            return None
        case _:
            assert_never(part)
