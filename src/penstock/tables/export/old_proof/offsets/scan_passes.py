"""Offsets in bounded memory: the whole range is cut into passes that each hold a part of every partition. Pure.

Comparing a pass of 8 million offsets took 29 to 43 bytes per offset, measured: 8 for the offset in the table or in
quarantine, 8 in the log, the rest for sorting and comparing. So a pass of `OFFSETS_PER_PASS_MAX` needs about 350 MB
above the process itself, and smaller tables less. Rows that are in the table more than once come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.logs.log import Partition

OFFSETS_PER_PASS_MAX = 8_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """The part `[lo, hi)` of a partition that one pass looks at; the outermost ones also take what lies outside."""

    lo: int
    hi: int
    takes_lower: bool = True
    takes_higher: bool = True

    def takes(self, lowest: int, highest: int) -> bool:
        """Whether offsets between `lowest` and `highest`, both included, may fall into this part."""
        return (self.takes_lower or highest >= self.lo) and (self.takes_higher or lowest < self.hi)


Pass = Mapping[Partition, Part]


def passes(ranges: Mapping[Partition, tuple[int, int]], offsets_max: int = OFFSETS_PER_PASS_MAX) -> list[Pass]:
    """Cut every partition into equally many parts, so that files which mix partitions are read about once."""
    total = sum(hi - lo for lo, hi in ranges.values())
    count = max(1, -(-total // offsets_max))
    return [
        {
            partition: Part(
                lo + (hi - lo) * number // count,
                lo + (hi - lo) * (number + 1) // count,
                takes_lower=number == 0,
                takes_higher=number == count - 1,
            )
            for partition, (lo, hi) in ranges.items()
        }
        for number in range(count)
    ]


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in as few ranges as possible, ascending."""
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        else:
            found.append((lo, hi))
    return found
