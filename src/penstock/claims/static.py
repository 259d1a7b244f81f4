"""The engine's port for claims, and the claims of a job with a single process, which holds everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.logs.log import Partition


class Claims(Protocol):
    """Which partitions this process may work on, each with the token that proves it."""

    shared: bool
    """Whether other processes work on the job too, so that a refused partition is an ordinary event."""

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        """The held partitions with their tokens; `table_tokens` is the floor under each (RULES M1).

        Called at the start of a round: no work is in progress on partitions that are not returned.
        """
        ...

    def keeps(self, partition: Partition, token: int) -> bool:
        """Whether the claim under this token is still ours; called before a commit."""
        ...

    def announce(self, ends: Mapping[Partition, int], tokens: Mapping[Partition, int]) -> frozenset[Partition]:
        """Claim the messages below these offsets for processing at most once; returns where it was granted."""
        ...

    def announced(self, partition: Partition) -> int | None:
        """The offset up to which messages were claimed for processing at most once."""
        ...

    def progress(self, positions: Mapping[Partition, int], lags: Mapping[Partition, int]) -> None:
        """Report to other processes how far this one is."""
        ...

    def working(self) -> None:
        """The work shows a sign of life: a round begins, a step is reached, a Spark task has ended.

        Claims are renewed by a thread of their own, which would renew them for a loop that hangs too: without a sign
        for `claims.work_timeout` they are released. May be called from any thread, and costs nothing.
        """
        ...

    def correct(self, partition: Partition, token: int, position: int) -> int | None:
        """Lower the shown position to the table's if it is ahead of it (RULES M2); returns the old one if so."""
        ...

    def renounce(self, partition: Partition) -> None:
        """The table has a newer token than this claim: release, and claim again above it (RULES M1)."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class StaticClaims:
    """Holds everything. Safe with one process; a second one is refused by the table's positions."""

    FIRST_TOKEN = 1
    shared = False

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return {each: max(self.FIRST_TOKEN, table_tokens.get(each, 0)) for each in partitions}

    def keeps(self, partition: Partition, token: int) -> bool:
        return True

    def announce(self, ends: Mapping[Partition, int], tokens: Mapping[Partition, int]) -> frozenset[Partition]:
        return frozenset(ends)

    def announced(self, partition: Partition) -> int | None:
        return None

    def progress(self, positions: Mapping[Partition, int], lags: Mapping[Partition, int]) -> None:
        """There is no other process."""

    def working(self) -> None:
        """There is nobody who could take over."""

    def correct(self, partition: Partition, token: int, position: int) -> int | None:
        return None

    def renounce(self, partition: Partition) -> None:
        """The next round starts with the table's token."""

    def close(self) -> None:
        """There is nothing to release."""
