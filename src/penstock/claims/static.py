"""The claims of a job with one process: every partition is held, under the token that the table has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.log.offsets import Partition


class Claims(Protocol):
    """Which partitions this process may work on now, each with the token that proves it."""

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the held partitions with their tokens; `table_tokens` is the floor under each (RULES M1)."""
        ...


class StaticClaims:
    """Holds everything. Safe with one process; a second one is refused by the table's positions."""

    FIRST_TOKEN = 1

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return {each: max(self.FIRST_TOKEN, table_tokens.get(each, 0)) for each in partitions}
