"""What a group holds now, as values for people and programs: members, claims, pauses, each with its freshness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.claims.admin.log_reader import LogReader
from penstock.claims.protocol.group_view import Freshness, freshness
from penstock.claims.protocol.state import Claim, Pause, Ranges
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
class ClaimsListing:
    """A group at `at`, the broker's time."""

    group: str
    topic: str
    at: float
    members: tuple[ListedMember, ...]
    claims: tuple[ListedClaim, ...]
    pauses: Mapping[str, Pause]

    @property
    def paused(self) -> bool:
        return bool(self.pauses)

    @property
    def held(self) -> tuple[ListedClaim, ...]:
        return tuple(each for each in self.claims if each.held)


def listing_of(reader: LogReader, at: float) -> ClaimsListing:
    """The group as the reader has read it; silence counts from append times to `at`."""
    state = reader.view.state
    silent = {key: max(0.0, reader.view.silence_seconds(key, at)) for key in state.members}
    fresh = {key: freshness(each, reader.heartbeat_seconds) for key, each in silent.items()}
    held = Counter(each.owner.client_id for each in state.claims.values() if each.held and each.owner is not None)
    members = []
    for key, member in sorted(state.members.items()):
        shown = fresh[key] if member.present else None
        presence = member.presence
        members.append(ListedMember(key, shown, silent[key], held[key], presence.claims_max, presence.lag))
    claims = [_claim(each, claim, silent, fresh) for each, claim in sorted(state.claims.items())]
    pauses = dict(sorted(state.pauses.items()))
    return ClaimsListing(reader.of.group, reader.of.topic, at, tuple(members), tuple(claims), pauses)


def _claim(
    partition: Partition, claim: Claim, silent: Mapping[str, float], fresh: Mapping[str, Freshness]
) -> ListedClaim:
    owner = None if claim.owner is None else claim.owner.client_id
    holder = (owner or "") if claim.held else ""
    return ListedClaim(
        partition=partition,
        owner=owner,
        held=claim.held,
        token=claim.token,
        position=claim.position,
        claimed_end=claim.claimed,
        lag=claim.lag,
        age_seconds=silent.get(holder),
        freshness=fresh.get(holder),
        ranges=None if claim.ranges is None else _ranges(claim.ranges, fresh),
        given_up=claim.given_up,
    )


def _ranges(ranges: Ranges, fresh: Mapping[str, Freshness]) -> ListedRanges:
    leases = []
    for each in ranges.leases:
        owner = None if each.owner is None else each.owner.client_id
        state = None if each.done else fresh.get(owner or "")
        leases.append(ListedLease(each.start, each.end, owner, each.attempts, each.done, state))
    return ListedRanges(ranges.next, ranges.at_most_once, tuple(leases))
