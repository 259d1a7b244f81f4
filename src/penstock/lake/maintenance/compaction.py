"""The steps of a compaction: small files are grouped, each group is merged aside, and a commit swaps them.

A room says which files may be grouped, where the merged files go, and how a commit is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from penstock.failpoints import Reach
from penstock.flow.write.manifest import StagedFile

Progress = Callable[[int, int], None]
"""Hears how much is done, of how much."""
T = TypeVar("T")


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=Sized)


@dataclass(frozen=True, slots=True)
class Group(Generic[F]):
    """Files that become one, in the order of their rows."""

    files: tuple[F, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


@dataclass(frozen=True, slots=True)
class Merged(Generic[F]):
    """A group and the files that hold its rows, staged and not yet committed."""

    group: Group[F]
    outputs: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class Limit(Generic[T]):
    """How much may lie together; it is passed by one item at most, a `firm` one by none."""

    weight: Callable[[T], int]
    most: int
    firm: bool = False


def gather(items: Iterable[T], *limits: Limit[T]) -> Iterator[tuple[T, ...]]:
    """Neighbours together, until they reach one of the limits."""
    pending: list[T] = []
    sums = [0] * len(limits)
    for item in items:
        weights = [each.weight(item) for each in limits]
        more = [total + weight for total, weight in zip(sums, weights, strict=True)]
        if pending and any(limit.firm and total > limit.most for limit, total in zip(limits, more, strict=True)):
            yield tuple(pending)
            pending, more = [], weights
        pending.append(item)
        sums = more
        if any(total >= limit.most for limit, total in zip(limits, sums, strict=True)):
            yield tuple(pending)
            pending, sums = [], [0] * len(limits)
    if pending:
        yield tuple(pending)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much one compaction takes on; by default everything that is small."""

    alike_min: int | None = None
    """Only files of about one size, if there are so many: a row is then written again once for every eightfold growth
    of its file."""
    bytes_max: int | None = None

    def worthwhile(self, files: Sequence[F]) -> list[list[F]]:
        """The files that may be grouped with each other, in their order."""
        if self.alike_min is None:
            return [list(files)]
        sizes: dict[int, list[F]] = {}
        for file in files:
            sizes.setdefault(file.size_bytes.bit_length() // 3, []).append(file)
        return [alike for _, alike in sorted(sizes.items()) if len(alike) >= self.alike_min]

    def within(self, groups: Sequence[Group[F]]) -> Sequence[Group[F]]:
        """The first groups, until they reach the bound."""
        total = 0
        for number, each in enumerate(groups):
            if self.bytes_max is not None and total >= self.bytes_max:
                return groups[:number]
            total += each.size_bytes
        return groups

    def after(self, size_bytes: int) -> Effort:
        """What is left of it."""
        return self if self.bytes_max is None else replace(self, bytes_max=self.bytes_max - size_bytes)


EVERYTHING = Effort()


def group(files: Iterable[F], target_bytes: int, *limits: Limit[F]) -> Iterator[Group[F]]:
    """Neighbours together, until they have the size that is aimed at; a file that is alone is in no group."""
    size: Limit[F] = Limit(lambda each: each.size_bytes, target_bytes)
    return (Group(each) for each in gather(files, size, *limits) if len(each) > 1)


def portions(groups: Iterable[Group[F]], bytes_max: int, *limits: Limit[Group[F]]) -> Iterator[tuple[Group[F], ...]]:
    return gather(groups, Limit(lambda each: each.size_bytes, bytes_max), *limits)


def swap(
    groups: Sequence[Group[F]],
    merge: Callable[[Group[F]], Merged[F] | None],
    commit: Callable[[Sequence[Merged[F]]], Sequence[Merged[F]]],
    reach: Reach,
) -> Sequence[Merged[F]]:
    """Merge the groups, then commit them together; those that landed come back.

    `merge` gives None, and `commit` leaves out, what another writer has changed meanwhile.
    """
    merged = [done for each in groups if (done := merge(each)) is not None]
    reach("compact_staged")
    landed = commit(merged) if merged else ()
    if landed:
        reach("compact_committed")
    return landed
