"""What a group holds now, as values for people and programs: members, claims, pauses, each with its freshness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.claims.admin.log_reader import LogReader
from penstock.claims.protocol.group_view import Freshness, freshness
from penstock.claims.protocol.state import Claim, Pause
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
class ListedClaim:
    """A partition; `age_seconds` is how long its owner was silent, `freshness` in words, None if it is free."""

    partition: Partition
    claim: Claim
    age_seconds: float | None
    freshness: Freshness | None

    @property
    def owner(self) -> str | None:
        """Kept after a release."""
        return None if self.claim.owner is None else self.claim.owner.client_id


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
    def held(self) -> tuple[ListedClaim, ...]:
        return tuple(each for each in self.claims if each.claim.held)


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
    claims = []
    for partition, claim in sorted(state.claims.items()):
        owner = claim.owner.client_id if claim.held and claim.owner is not None else ""
        claims.append(ListedClaim(partition, claim, silent.get(owner), fresh.get(owner)))
    pauses = dict(sorted(state.pauses.items()))
    return ClaimsListing(reader.of.group, reader.of.topic, at, tuple(members), tuple(claims), pauses)
