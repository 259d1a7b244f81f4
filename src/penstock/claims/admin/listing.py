"""What a group holds now, as values for people and programs: members, claims, pauses, each with its freshness."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.claims.admin.log_reader import LogReader
from penstock.claims.protocol.group_view import Freshness, freshness
from penstock.claims.protocol.state import Claim, Lease, Ranges
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A client id. `freshness` is None once it has left; `claims` counts partitions, `lag` counts records."""

    client_id: str
    freshness: Freshness | None
    silent_seconds: float
    claims: int
    claims_max: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class ListedLease:
    start: int
    end: int
    owner: str | None
    attempts: int
    done: bool
    freshness: Freshness | None


@dataclass(frozen=True, slots=True)
class ListedRanges:
    """A shared partition: `next` is where the next range begins."""

    next: int
    at_most_once: bool
    leases: tuple[ListedLease, ...]


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A partition. `owner` is kept after a release; `age_seconds` counts since the last record about it."""

    partition: Partition
    owner: str | None
    held: bool
    token: int
    position: int | None
    claimed_end: int | None
    lag: int
    age_seconds: float | None
    freshness: Freshness | None
    ranges: ListedRanges | None = None
    given_up: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ListedPause:
    id: str
    by: str
    until_at: float | None
    reason: str
    places: int


@dataclass(frozen=True, slots=True)
class ClaimsListing:
    """A group at `at`, the broker's time."""

    group: str
    topic: str
    at: float
    members: tuple[ListedMember, ...]
    claims: tuple[ListedClaim, ...]
    pauses: tuple[ListedPause, ...]

    @property
    def paused(self) -> bool:
        return bool(self.pauses)

    @property
    def held(self) -> tuple[ListedClaim, ...]:
        return tuple(each for each in self.claims if each.held)


def listing_of(reader: LogReader, at: float) -> ClaimsListing:
    """The group as the reader has read it; silence counts from append times to `at`."""
    claims = sorted(reader.view.claims(), key=lambda pair: pair[0])
    return ClaimsListing(
        group=reader.of.group,
        topic=reader.of.topic,
        at=at,
        members=_members(reader, at),
        claims=tuple(_claim(reader, partition, claim, at) for partition, claim in claims),
        pauses=tuple(
            ListedPause(key, each.by, each.until_at, each.reason, len(reader.view.paused_places(key)))
            for key, each in sorted(reader.view.pauses().items())
        ),
    )


def _members(reader: LogReader, at: float) -> tuple[ListedMember, ...]:
    owners = [claim.owner.client_id for _, claim in reader.view.claims() if claim.held and claim.owner is not None]
    found = []
    for each in sorted(reader.view.members(), key=lambda member: member.who.client_id):
        client_id = each.who.client_id
        silent = max(0.0, at - reader.appended_at(reader.view.home_of(client_id), each.last))
        fresh = freshness(silent, reader.of.heartbeat_seconds) if each.present else None
        presence = each.presence
        held = owners.count(client_id)
        found.append(ListedMember(client_id, fresh, silent, held, presence.claims_max, presence.lag))
    return tuple(found)


def _claim(reader: LogReader, partition: Partition, claim: Claim, at: float) -> ListedClaim:
    place = reader.view.place_of(partition)
    age = None if claim.last is None else max(0.0, at - reader.appended_at(place, claim.last))
    held_and_aged = claim.held and age is not None
    return ListedClaim(
        partition=partition,
        owner=None if claim.owner is None else claim.owner.client_id,
        held=claim.held,
        token=claim.token,
        position=claim.position,
        claimed_end=claim.claimed,
        lag=claim.lag,
        age_seconds=age,
        freshness=freshness(age or 0.0, reader.of.heartbeat_seconds) if held_and_aged else None,
        ranges=None if claim.ranges is None else _ranges(reader, place, claim.ranges, at),
        given_up=claim.given_up,
    )


def _ranges(reader: LogReader, place: int, ranges: Ranges, at: float) -> ListedRanges:
    return ListedRanges(ranges.next, ranges.at_most_once, tuple(_leases(reader, place, ranges.leases, at)))


def _leases(reader: LogReader, place: int, leases: Iterable[Lease], at: float) -> Iterable[ListedLease]:
    for each in leases:
        fresh = None
        if each.owner is not None and not each.done:
            silent = max(0.0, at - reader.appended_at(place, each.last))
            fresh = freshness(silent, reader.of.heartbeat_seconds)
        owner = None if each.owner is None else each.owner.client_id
        yield ListedLease(each.start, each.end, owner, each.attempts, each.done, fresh)
