"""Which items of one claim were delivered and which are done: the position follows the finished prefix. Pure."""

from __future__ import annotations

from collections import deque

from penstock.errors import FencedError, UserError
from penstock.logs.log import Partition


class LostClaimError(FencedError):
    """The item was delivered under a claim that this member has lost or cannot prove: another may do it again."""

    def __init__(self, partition: Partition, offset: int, token: int) -> None:
        super().__init__(
            f"the claim on {partition} under token {token} is lost",
            detail=f"offset {offset} was handed out under it; the present holder of the partition decides about it",
            hint="drop the item, and do not count it as done",
        )
        self.partition = partition
        self.offset = offset
        self.token = token


class NotInFlightError(UserError):
    """`done` was called for an item that is done already, or was never handed out under this claim."""

    def __init__(self, partition: Partition, offset: int, what: str, hint: str) -> None:
        super().__init__(f"offset {offset} of {partition} {what}", hint=hint)
        self.partition = partition
        self.offset = offset


class Acks:
    """The items of one claim. `in_flight_max` limits those that the position has not passed, done or not.

    Items done after one that is not count too: they would be done again after a crash, and they take memory.
    """

    def __init__(self, partition: Partition, token: int, start: int, in_flight_max: int) -> None:
        if in_flight_max < 1:
            raise ValueError(f"in_flight_max is {in_flight_max}, must be at least 1")
        self.partition = partition
        self.token = token
        self.in_flight_max = in_flight_max
        self._next = start
        self._tracked: deque[int] = deque()
        self._undone: set[int] = set()

    @property
    def position(self) -> int:
        """The offset after the finished prefix; if nothing is in flight, after everything that was read."""
        return self._tracked[0] if self._tracked else self._next

    @property
    def tracked(self) -> int:
        """How many items the position has not passed."""
        return len(self._tracked)

    @property
    def undone(self) -> int:
        return len(self._undone)

    @property
    def capacity(self) -> int:
        """How many items may be handed out now."""
        return self.in_flight_max - len(self._tracked)

    def deliver(self, offset: int) -> None:
        """Deliver an item; offsets rise, and may skip what the log does not hold."""
        if offset < self._next:
            raise ValueError(f"offset {offset} of {self.partition} comes after {self._next - 1}")
        if self.capacity < 1:
            raise ValueError(f"{self.in_flight_max} items of {self.partition} are in flight already")
        self._tracked.append(offset)
        self._undone.add(offset)
        self._next = offset + 1

    def pass_over(self, offset: int) -> None:
        """The log holds no further record below this offset."""
        self._next = max(self._next, offset)

    def done(self, offset: int, token: int) -> bool:
        """An item is finished, in any order; returns whether the position moved."""
        if token != self.token:
            raise LostClaimError(self.partition, offset, token)
        if offset not in self._undone:
            if offset < self.position or offset in self._tracked:
                hint = "call done() once for every item, when its work is finished"
                raise NotInFlightError(self.partition, offset, "is done already", hint)
            hint = "pass the item itself to done(), as poll() returned it"
            raise NotInFlightError(self.partition, offset, "was not handed out", hint)
        before = self.position
        self._undone.discard(offset)
        while self._tracked and self._tracked[0] not in self._undone:
            self._tracked.popleft()
        return self.position != before
