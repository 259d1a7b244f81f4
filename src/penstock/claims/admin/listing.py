"""What a group holds now, as values for people and programs: members, claims, pauses, each with its freshness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.claims.admin.log_reader import LogReader
from penstock.claims.protocol.group_view import Freshness, freshness
from penstock.claims.protocol.state import Claim, Ranges
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
    """A partition. `owner` is kept after a release; `age_seconds` is how long it was silent, None if free."""

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
    state, ages = reader.view.state, _Ages(reader, at)
    claims = Counter(each.owner.client_id for each in state.claims.values() if each.held and each.owner is not None)
    return ClaimsListing(
        group=reader.of.group,
        topic=reader.of.topic,
        at=at,
        members=tuple(
            ListedMember(
                key,
                ages.freshness(key) if each.present else None,
                ages.silent_seconds(key),
                claims[key],
                each.presence.claims_max,
                each.presence.lag,
            )
            for key, each in sorted(state.members.items())
        ),
        claims=tuple(_claim(ages, partition, claim) for partition, claim in sorted(state.claims.items())),
        pauses=tuple(
            ListedPause(key, each.by, each.until_at, each.reason) for key, each in sorted(state.pauses.items())
        ),
    )


@dataclass(frozen=True, slots=True)
class _Ages:
    """How long members had been silent at a time."""

    reader: LogReader
    at: float

    def silent_seconds(self, client_id: str) -> float:
        return max(0.0, self.reader.view.silence_seconds(client_id, self.at))

    def freshness(self, client_id: str) -> Freshness:
        return freshness(self.silent_seconds(client_id), self.reader.heartbeat_seconds)


def _claim(ages: _Ages, partition: Partition, claim: Claim) -> ListedClaim:
    owner = None if claim.owner is None else claim.owner.client_id
    heard = owner is not None and claim.held
    return ListedClaim(
        partition=partition,
        owner=owner,
        held=claim.held,
        token=claim.token,
        position=claim.position,
        claimed_end=claim.claimed,
        lag=claim.lag,
        age_seconds=ages.silent_seconds(owner or "") if heard else None,
        freshness=ages.freshness(owner or "") if heard else None,
        ranges=None if claim.ranges is None else _ranges(ages, claim.ranges),
        given_up=claim.given_up,
    )


def _ranges(ages: _Ages, ranges: Ranges) -> ListedRanges:
    leases = []
    for each in ranges.leases:
        owner = None if each.owner is None else each.owner.client_id
        fresh = None if owner is None or each.done else ages.freshness(owner)
        leases.append(ListedLease(each.start, each.end, owner, each.attempts, each.done, fresh))
    return ListedRanges(ranges.next, ranges.at_most_once, tuple(leases))
