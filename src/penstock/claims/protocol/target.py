"""The target: which partitions each member should hold. Balanced, sticky, and the same for every reader. Pure.

It is part of the fold, computed at a record: so nobody races. A member claims only what the target gives it and
releases what the target takes away. A unit is what is claimed as one: a partition, or a whole topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from operator import attrgetter

from penstock.claims.protocol.records import Wanted
from penstock.claims.protocol.state import Group, MemberState
from penstock.logs.log import Partition

TOPICS_KEPT_MAX = 10_000

Unit = tuple[Partition, ...]
_PLACE = attrgetter("topic", "topic_id", "number")


@dataclass(slots=True)
class _Seat:
    """A member while units are given out."""

    load: int = 0
    room: int = 0
    claims_max: int | None = None
    enough: int | None = None

    def bound(self, soft: bool) -> int | None:
        bounds = [each for each in (self.claims_max, self.enough if soft else None) if each is not None]
        return min(bounds, default=None)


def balance(group: Group) -> dict[str, tuple[Partition, ...]]:
    """The partitions of each present member: as few as possible move, and loads differ by one at most.

    Units are shared among those that want them, the most particular first. `claims_max` is never exceeded; `enough`
    only by units that would be owned by nobody. What a member refused goes to another, if one can take it.
    """
    members = {key: each for key, each in sorted(group.members.items()) if each.present}
    seats = {
        key: _Seat(claims_max=each.presence.claims_max, enough=each.presence.enough) for key, each in members.items()
    }
    given: dict[str, list[Unit]] = {key: [] for key in seats}
    former = _former(group)
    whole_topics = group.terms is not None and group.terms.unit == "topic"
    for wanting, units in sorted(_classes(members, whole_topics).items(), key=lambda each: (len(each[0]), each)):
        chosen = {key: seats[key] for key in wanting}
        keepers = [former.get(unit[0]) for unit in units]
        refusers = [group.claim(unit[0]).refused_by for unit in units]
        for unit, client_id in _share(list(zip(units, keepers, refusers, strict=True)), chosen):
            given[client_id].append(unit)
    return {
        key: tuple(sorted((each for unit in units for each in unit), key=_PLACE))
        for key, units in given.items()
        if units
    }


def _former(group: Group) -> dict[Partition, str]:
    """Who was to have each partition so far, else who holds it."""
    former = {key: each.owner.client_id for key, each in group.claims.items() if each.held and each.owner is not None}
    for client_id, partitions in group.target.items():
        if client_id in group.members and group.members[client_id].present:
            former |= dict.fromkeys(partitions, client_id)
    return former


def _classes(members: Mapping[str, MemberState], whole_topics: bool) -> dict[tuple[str, ...], list[Unit]]:
    """The units in a fixed order, by the members that want them. Most often all members want the same."""
    profiles: dict[tuple[Wanted, ...], list[str]] = {}
    for client_id, member in members.items():
        profiles.setdefault(member.wants, []).append(client_id)
    if len(profiles) == 1:
        [(wants, client_ids)] = profiles.items()
        return {
            tuple(client_ids): list(_units((each for wanted in wants for each in _partitions(wanted)), whole_topics))
        }
    wanting: dict[Partition, set[tuple[Wanted, ...]]] = {}
    for wants in profiles:
        for partition in (each for wanted in wants for each in _partitions(wanted)):
            wanting.setdefault(partition, set()).add(wants)
    found: dict[tuple[str, ...], list[Unit]] = {}
    for unit in _units(sorted(wanting, key=_PLACE), whole_topics):
        who = {wants for partition in unit for wants in wanting[partition]}
        found.setdefault(tuple(sorted(each for wants in who for each in profiles[wants])), []).append(unit)
    return found


def _units(partitions: Iterable[Partition], whole_topics: bool) -> Iterator[Unit]:
    if not whole_topics:
        yield from ((each,) for each in partitions)
        return
    topics: dict[tuple[str, str], list[Partition]] = {}
    for each in partitions:
        topics.setdefault((each.topic, each.topic_id), []).append(each)
    yield from (tuple(together) for together in topics.values())


@lru_cache(maxsize=TOPICS_KEPT_MAX)
def _partitions(wanted: Wanted) -> tuple[Partition, ...]:
    return tuple(
        Partition(wanted.topic, wanted.topic_id, number) for start, end in wanted.spans for number in range(start, end)
    )


def _share(
    units: Sequence[tuple[Unit, str | None, str | None]], seats: Mapping[str, _Seat]
) -> Iterator[tuple[Unit, str]]:
    """Who gets each unit of one class, given who kept and who refused it; what nobody may take is left out."""
    _set_rooms(seats, [keeper for _, keeper, _ in units])
    left: list[Unit] = []
    refused: list[tuple[Unit, str]] = []
    for unit, keeper, refuser in units:
        if refuser is not None and refuser in seats:
            refused.append((unit, refuser))
        elif keeper is not None and keeper in seats and seats[keeper].room > 0:
            yield unit, _taken(seats, keeper)
        else:
            left.append(unit)
    for unit, refuser in refused:
        others = [key for key, seat in seats.items() if key != refuser and seat.bound(soft=False) != seat.load]
        if others:
            yield unit, _taken(seats, max(others, key=lambda key: (seats[key].room, -seats[key].load, key)))
        else:
            left.append(unit)
    open_seats = cycle(list(seats))
    places = sum(max(0, seat.room) for seat in seats.values())
    for unit in left[:places]:
        yield unit, _taken(seats, next(key for key in open_seats if seats[key].room > 0))


def _taken(seats: Mapping[str, _Seat], client_id: str) -> str:
    seats[client_id].room -= 1
    seats[client_id].load += 1
    return client_id


def _set_rooms(seats: Mapping[str, _Seat], keepers: Sequence[str | None]) -> None:
    """How many of these units each member gets, on top of its load: within wishes first, then within limits."""
    kept = Counter(keepers)
    for seat in seats.values():
        seat.room = 0
    left = len(keepers)
    for soft in (True, False):
        left -= _fill(left, [(seat, kept[key]) for key, seat in seats.items()], soft)


def _fill(units: int, seats: Sequence[tuple[_Seat, int]], soft: bool) -> int:
    """Fill the lowest seats up to one level; returns how many units had a place.

    The remainder goes to those that would have to give something up, so that nothing moves without need.
    """
    bounds = [seat.bound(soft) for seat, _ in seats]

    def rooms(level: int) -> list[int]:
        return [
            max(0, (level if bound is None else min(level, bound)) - seat.load - seat.room)
            for (seat, _), bound in zip(seats, bounds, strict=True)
        ]

    low, high = 0, units + max((seat.load + seat.room for seat, _ in seats), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(rooms(middle)) <= units else (low, middle - 1)
    filled, more = rooms(low), rooms(low + 1)
    left = units - sum(filled)
    for (seat, _), room in zip(seats, filled, strict=True):
        seat.room += room
    wanting = [each for each, room, one_more in zip(seats, filled, more, strict=True) if one_more > room]
    for seat, _ in sorted(wanting, key=lambda each: each[0].room - each[1])[:left]:
        seat.room += 1
        left -= 1
    return units - left
