"""Fair shares: how many units each member of a group should hold, and who may take which. Pure.

A unit is what is claimed as one: a partition, or a whole topic. Every member computes the same from the same state,
and nothing stops for it: members with too many units release some, members with too few claim some.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

NAMES_KEPT_MAX = 100_000
_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15
"""An odd multiplier whose bits are evenly spread: it carries every bit of a number into the high ones."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A live member: how many units it holds, and the most that it takes."""

    client_id: str
    held: int
    units_max: int | None = None


def targets(seats: Collection[Seat], units: int) -> dict[str, int]:
    """How many units each member should hold: equal up to one, within each member's limit.

    The remainder goes to those that already hold most, so that nothing moves without need.
    """
    shares = dict.fromkeys((seat.client_id for seat in seats), 0)
    left = units
    open_seats = sorted(seats, key=lambda seat: (-seat.held, seat.client_id))
    while left > 0 and open_seats:
        level = max(1, left // len(open_seats))
        for seat in open_seats:
            room = level if seat.units_max is None else min(level, seat.units_max - shares[seat.client_id])
            given = min(room, left)
            shares[seat.client_id] += given
            left -= given
        open_seats = [seat for seat in open_seats if seat.units_max is None or shares[seat.client_id] < seat.units_max]
    return shares


def needy(seats: Collection[Seat], shares: Mapping[str, int]) -> tuple[str, ...]:
    """The members that hold less than their share."""
    return tuple(sorted(seat.client_id for seat in seats if seat.held < shares[seat.client_id]))


def favourite(unit: str, client_ids: Collection[str]) -> str | None:
    """The member that claims a free unit first: the others would only lose the race."""
    return max(client_ids, key=lambda client_id: _score(unit, client_id), default=None)


def _score(unit: str, client_id: str) -> int:
    """The same in every process and every run: the highest score is the favourite."""
    mixed = ((_number(unit) ^ _number(client_id)) * _ODD) & _MASK
    return ((mixed ^ (mixed >> 32)) * _ODD) & _MASK


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _number(name: str) -> int:
    """A hash of a name, kept because every member is compared for every free unit."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
