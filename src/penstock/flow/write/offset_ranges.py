"""Sets of offsets as half-open ranges: what a replay tells and commits instead of a number per record."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Ascending `[start, end)` pairs that neither overlap nor touch."""


def ranges_of(offsets: Iterable[int]) -> Ranges:
    """The ranges that hold exactly these offsets; their order and repetitions do not matter."""
    found: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def offsets_of(ranges: Ranges) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


def count_of(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)
