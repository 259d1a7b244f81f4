"""Fair shares: how many units each member of a group should hold, and who may take which. Pure.

A unit is what is claimed as one: a partition, or a whole topic. Everybody computes the same from the same state, and
nobody stops for it: who holds too much releases, who holds too little claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seat:
    """A live member: how many units it holds, and the most that it takes."""

    client_id: str
    held: int
    units_max: int | None = None


def targets(seats: Collection[Seat], units: int) -> dict[str, int]:
    """How many units each member should hold: equal up to one, within each one's bound.

    The odd ones go to those that hold most already, so that nothing moves without need.
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
    """The one of these members that goes first for a free unit: others would only lose the race against it."""
    return max(client_ids, key=lambda client_id: _score(unit, client_id), default=None)


def _score(unit: str, client_id: str) -> bytes:
    """The same for every process and every run: whoever scores highest is the favourite."""
    return hashlib.blake2b(f"{len(unit)}:{unit}{client_id}".encode(), digest_size=8).digest()
