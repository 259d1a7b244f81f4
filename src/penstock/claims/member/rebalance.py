"""What one member should claim and release now, from what it has read. Pure: time and state are parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.claims.member.fair_shares import Seat, favourite, needy, targets
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Presence, Who
from penstock.logs.log import Partition

ABOVE_SHARE = "above the fair share"
TOPIC_LOST = "another part of the topic was lost"
NOT_WANTED = "the partition is no longer part of the job"


@dataclass(frozen=True, slots=True)
class Unit:
    """What is claimed together; the holder of the first partition holds the unit."""

    name: str
    partitions: tuple[Partition, ...]

    @property
    def lock(self) -> Partition:
        return self.partitions[0]


@dataclass(frozen=True, slots=True)
class OwnState:
    """What a member knows about itself when it decides."""

    who: Who
    units: tuple[Unit, ...]
    presence: Presence
    held: frozenset[Partition]
    claiming: frozenset[Partition] = frozenset()
    cooling: frozenset[Partition] = frozenset()
    in_use: frozenset[Partition] = frozenset()
    joined_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Rebalance:
    claim: tuple[Partition, ...] = ()
    release: Mapping[Partition, str] = field(default_factory=dict)


def units_of(wanted: Iterable[Partition], unit: Literal["partition", "topic"]) -> tuple[Unit, ...]:
    """The units of a group: each partition by itself, or all partitions of a topic together."""
    if unit == "partition":
        return tuple(Unit(f"{each.topic}\x00{each.topic_id}\x00{each.number}", (each,)) for each in wanted)
    topics: dict[str, list[Partition]] = {}
    for each in wanted:
        topics.setdefault(f"{each.topic}\x00{each.topic_id}", []).append(each)
    return tuple(Unit(name, tuple(partitions)) for name, partitions in topics.items())


def rebalance(view: GroupView, me: OwnState, now: float) -> Rebalance:
    """Claim up to the fair share, release what exceeds it if a member waits for more; a unit moves as a whole."""
    units = me.units
    holders = {unit.name: _holder(view, unit.lock, now) for unit in units}
    seats = _seats(view, me, holders, now)
    shares = targets(seats, len(units))
    waiting = needy(seats, shares)
    mine = [unit for unit in units if unit.lock in me.held]
    surplus = len(mine) - shares[me.who.client_id]
    wanted = {each for unit in units for each in unit.partitions}
    release: dict[Partition, str] = dict.fromkeys(me.held - wanted, NOT_WANTED)
    if surplus > 0 and any(each != me.who.client_id for each in waiting):
        for unit in sorted(mine, key=lambda unit: (unit.lock in me.in_use, unit.name))[:surplus]:
            release |= dict.fromkeys((each for each in unit.partitions if each in me.held), ABOVE_SHARE)
    claim = _wanted_units(view, me, units, holders, shares[me.who.client_id] - len(mine), waiting, now)
    release |= _broken_units(me, units)
    claim += _rest_of_units(view, me, [unit for unit in mine if unit.lock not in release], now)
    return Rebalance(tuple(claim), release)


def _holder(view: GroupView, partition: Partition, now: float) -> str | None:
    """Who seems to hold a partition; None if it is free, or if its owner is suspected."""
    claim = view.claim(partition)
    if not claim.held or claim.owner is None or view.suspected(partition, now):
        return None
    return claim.owner.client_id


def _seats(view: GroupView, me: OwnState, holders: Mapping[str, str | None], now: float) -> list[Seat]:
    held = Counter(holder for holder in holders.values() if holder is not None)
    bounds = {each.who.client_id: each.presence.claims_max for each in view.live_members(now)}
    bounds[me.who.client_id] = me.presence.claims_max
    # A holder that is not a member, such as an administrator, keeps what it has and wants no more.
    bounds |= {holder: count for holder, count in held.items() if holder not in bounds}
    return [Seat(client_id, held[client_id], bound) for client_id, bound in bounds.items()]


def _wanted_units(
    view: GroupView,
    me: OwnState,
    units: Sequence[Unit],
    holders: Mapping[str, str | None],
    room: int,
    waiting: tuple[str, ...],
    now: float,
) -> list[Partition]:
    """The free units to claim: first those held before a restart, then those that this member is the favourite for."""
    former = [
        unit.lock
        for unit in units
        if holders[unit.name] == me.who.client_id
        and unit.lock not in me.held
        and unit.lock not in me.claiming
        and _held_before_restart(view, unit.lock, me)
    ]
    # What exceeds the share is released later: cleaner than letting it become stale.
    claim = list(former)
    room -= len(former) + sum(unit.lock in me.claiming for unit in units)
    for unit in units:
        if room <= 0:
            break
        free = holders[unit.name] is None and unit.lock not in me.claiming and unit.lock not in me.cooling
        if not free or unit.lock in me.held or unit.lock in claim:
            continue
        if favourite(unit.name, waiting) == me.who.client_id or _left_over(view, unit.lock, me, now):
            claim.append(unit.lock)
            room -= 1
    return claim


def _held_before_restart(view: GroupView, partition: Partition, me: OwnState) -> bool:
    claim = view.claim(partition)
    if not claim.held or claim.owner is None:
        return False
    return claim.owner.client_id == me.who.client_id and claim.owner.nonce != me.who.nonce


def _left_over(view: GroupView, partition: Partition, me: OwnState, now: float) -> bool:
    """Whether a partition has been free for so long that its favourite will not claim it."""
    claim = view.claim(partition)
    interval = view.heartbeat_seconds
    if claim.last is None:
        return now - me.joined_at > interval
    return view.silence_seconds(partition, now) > (3 * interval if claim.held else interval)


def _broken_units(me: OwnState, units: Sequence[Unit]) -> dict[Partition, str]:
    """Held partitions of topics whose first partition is not, or no longer, ours."""
    return {
        each: TOPIC_LOST
        for unit in units
        if unit.lock not in me.held and unit.lock not in me.claiming
        for each in unit.partitions
        if each in me.held
    }


def _rest_of_units(view: GroupView, me: OwnState, mine: list[Unit], now: float) -> list[Partition]:
    return [
        each
        for unit in mine
        for each in unit.partitions[1:]
        if each not in me.held
        and each not in me.claiming
        and each not in me.cooling
        and (_holder(view, each, now) is None or _held_before_restart(view, each, me))
    ]
