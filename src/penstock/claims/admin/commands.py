"""The core of `penstock claims`: list, history, pause, resume, release.

An administrator is not a member: it joins nothing and holds nothing. Reading its records back shows whether they were
accepted, and every wait is bounded.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.claims.admin.history import History
from penstock.claims.admin.log_reader import CoordinatedGroup, LogReader
from penstock.claims.member.journal import JournalEntry
from penstock.claims.member.session import catch_up
from penstock.claims.protocol.group_view import Freshness, freshness
from penstock.claims.protocol.records import (
    TEXT_CHARACTERS_MAX,
    FreeingPartition,
    ReleaseGroup,
    ResumingGroup,
)
from penstock.claims.protocol.state import Claim, Pause
from penstock.errors import FencedError, UserError, near_words
from penstock.logs.log import Partition

HISTORY_LINES = 50
HISTORY_RECORDS_MAX = 200_000
RELEASE_REASON = "released by an administrator"
NAMES_SHOWN_MAX = 10

_PLACE = re.compile(r"[^/]+/\d{1,10}")


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A client id. `freshness` is None once it has left; `claims` counts partitions, `lag` counts records."""

    client_id: str
    freshness: Freshness | None
    silent_seconds: float
    claims: int
    lag: int


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A partition; `age_seconds` is how long its owner was silent; `freshness` is None if it is free."""

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
        return tuple(claim for claim in self.claims if claim.claim.held)


@dataclass(frozen=True, slots=True)
class PauseReport:
    """A pause that is in the log. `holders` are the claims that were still held when we stopped waiting."""

    pause_id: str
    until_at: float | None
    holders: tuple[ListedClaim, ...]


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """A partition that is free now. `before` is its previous state; `token` fences that owner.

    `released` is false if it was already free.
    """

    before: ListedClaim
    token: int
    position: int | None
    released: bool


def list_claims(of: CoordinatedGroup) -> ClaimsListing:
    """Members, claims and pauses of a group, each with its freshness by the broker's append times."""
    with _reading(of) as reader:
        return listing_of(reader, _broker_now(reader))


def listing_of(reader: LogReader, at: float) -> ClaimsListing:
    """The group as the reader has read it; silence counts from append times to `at`."""
    state = reader.view.state
    silent = {key: max(0.0, reader.view.silence_seconds(key, at)) for key in state.members}
    fresh = {key: freshness(item, reader.heartbeat_seconds) for key, item in silent.items()}
    held, lags = Counter[str](), Counter[str]()
    for claim in state.claims.values():
        if claim.held and claim.owner is not None:
            held[claim.owner.client_id] += 1
            lags[claim.owner.client_id] += claim.lag
    members = [
        ListedMember(key, fresh[key] if member.present else None, silent[key], held[key], lags[key])
        for key, member in sorted(state.members.items())
    ]
    claims = []
    for partition, claim in sorted(state.claims.items()):
        owner = claim.owner.client_id if claim.held and claim.owner is not None else ""
        claims.append(ListedClaim(partition, claim, silent.get(owner), fresh.get(owner)))
    pauses = dict(sorted(state.pauses.items()))
    return ClaimsListing(reader.of.group, reader.of.topic, at, tuple(members), tuple(claims), pauses)


def history(of: CoordinatedGroup, limit: int | None = HISTORY_LINES, records_max: int = HISTORY_RECORDS_MAX) -> History:
    """The newest records of a group with their verdicts, without heartbeats that are applied.

    At most about `records_max` records are read, from the offset `start` on.
    """
    with LogReader(of) as reader:
        result = _history(reader, records_max)
        if not result.exists:
            raise _unknown_group(reader)
    if limit is not None:
        del result.records[:-limit]
    return result


def overview(of: CoordinatedGroup, records_max: int) -> tuple[ClaimsListing, History]:
    """The group now and its history, at once: a log that seems silent is not watched, so freshness is a first guess."""
    with _reading(of) as reader:
        newest_at = reader.broker_now()
        silent = time.time() - reader.view.broker_at >= reader.heartbeat_seconds
        return listing_of(reader, max(time.time(), newest_at) if silent else newest_at), _history(reader, records_max)


def _history(reader: LogReader, records_max: int) -> History:
    first, end = reader.journal.bounds()
    snapshots = [snapshot for snapshot in reader.journal.snapshots() if snapshot.topic_id == reader.topic.topic_id]
    result = History(max(first, end - records_max), snapshots)

    def take(entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            result.read(entry.offset, entry.appended_at, entry.record, entry.fault)

    catch_up(reader.journal, take, result.start)
    return result


def pause(
    of: CoordinatedGroup,
    for_seconds: float | None = None,
    reason: str = "",
    wait_seconds: float = 0.0,
) -> PauseReport:
    """Pause a group: members release everything and claim nothing; wait for that at most so long.

    With `for_seconds` the members resume by themselves after that time (RULES M4).
    """
    if len(reason) > TEXT_CHARACTERS_MAX:
        raise UserError(f"the reason is longer than {TEXT_CHARACTERS_MAX} characters")
    pause_id = uuid.uuid4().hex[:8]
    with _reading(of) as reader:
        reader.append(reader.outbox.record_of(ReleaseGroup, pause_id=pause_id, for_seconds=for_seconds, reason=reason))
        until_at = reader.view.state.pauses[pause_id].until_at if pause_id in reader.view.state.pauses else None
        holders = _wait_released(reader, pause_id, wait_seconds)
    return PauseReport(pause_id, until_at, holders)


def resume(of: CoordinatedGroup, pause_id: str | None = None) -> tuple[str, ...]:
    """End a pause of a group, or all of them; returns their ids."""
    with _reading(of) as reader:
        pauses = sorted(reader.view.state.pauses)
        if pause_id is not None and pause_id not in pauses:
            pauses_text = f"its pauses: {', '.join(pauses)}" if pauses else "it is not paused"
            raise UserError(f"group {of.group} has no pause {pause_id}", detail=pauses_text)
        if not pauses:
            raise UserError(f"group {of.group} is not paused")
        ended = pauses if pause_id is None else [pause_id]
        # Refused: a member was faster, and the pause is over either way.
        reader.append(*(reader.outbox.record_of(ResumingGroup, pause_id=item) for item in ended))
    return tuple(ended)


def release(of: CoordinatedGroup, place: str, seek: int | None = None) -> ReleaseReport:
    """Free the claim of TOPIC/PARTITION, whichever process holds it: a higher token fences its owner.

    `seek` sets the position too. FencedError if the owner changes meanwhile.
    """
    with _reading(of) as reader:
        before = _claim_named(reader, place)
        token = before.claim.token
        if not before.claim.held and seek is None:
            return ReleaseReport(before, token, before.claim.position, released=False)
        _refuse_paused(reader)
        freeing = {"partition": before.partition, "if_token": token, "position": seek}
        [refusal] = reader.append(reader.outbox.record_of(FreeingPartition, **freeing, reason=RELEASE_REASON))
        if refusal is not None:
            _refuse_paused(reader)
            raise FencedError(
                f"{before.partition} was claimed by another member meanwhile",
                detail=refusal,
                hint="run `penstock claims list`, then decide",
            )
        return ReleaseReport(before, token + 1, reader.view.claim(before.partition).position, released=True)


# steps


@contextmanager
def _reading(of: CoordinatedGroup) -> Iterator[LogReader]:
    with LogReader(of) as reader:
        reader.catch_up()
        if not reader.exists:
            raise _unknown_group(reader)
        yield reader


def _broker_now(reader: LogReader) -> float:
    """The broker's time; a log that seems silent is watched for an interval, as our clock may be wrong."""
    heartbeat_seconds, newest_at = reader.heartbeat_seconds, reader.view.broker_at
    if time.time() - newest_at < heartbeat_seconds:
        return reader.broker_now()
    newer = reader.follow(heartbeat_seconds, lambda: reader.view.broker_at > newest_at)
    # Live members would have sent something, so the silence is real: only our clock measures it.
    return reader.broker_now() if newer else max(time.time(), reader.broker_now())


def _wait_released(reader: LogReader, pause_id: str, seconds: float) -> tuple[ListedClaim, ...]:
    """Follow the log until no live member holds a claim, the pause has ended, or the time is over."""

    def holders() -> tuple[ListedClaim, ...]:
        return listing_of(reader, reader.broker_now()).held

    def released() -> bool:
        live = any(claim.freshness is not Freshness.STALE for claim in holders())
        return not live or pause_id not in reader.view.state.pauses

    reader.follow(seconds, released)
    return holders()


def _refuse_paused(reader: LogReader) -> None:
    pauses = reader.view.state.pauses
    if pauses:
        raise UserError(
            f"group {reader.of.group} is paused: no claim can change its owner",
            detail=f"pauses: {', '.join(sorted(pauses))}",
            hint="`penstock claims resume` first",
        )


# names


def _claim_named(reader: LogReader, place: str) -> ListedClaim:
    """The claim of TOPIC/PARTITION; of a recreated topic, that of its newest topic id."""
    if not _PLACE.fullmatch(place):
        raise UserError(f"{place} is not a partition", hint="write TOPIC/PARTITION, such as orders/0")
    claims = reader.view.state.claims
    of_place = [partition for partition in claims if str(partition) == place]
    if not of_place:
        near = near_words(place, sorted(map(str, claims)), NAMES_SHOWN_MAX)
        raise UserError(
            f"group {reader.of.group} never claimed {place}",
            detail=f"similar claims: {', '.join(near)}" if near else "",
            hint="`penstock claims list` shows all",
        )
    newest = max(of_place, key=lambda partition: claims[partition].last or 0)
    return next(claim for claim in listing_of(reader, _broker_now(reader)).claims if claim.partition == newest)


def _unknown_group(reader: LogReader) -> UserError:
    """The error for a group without records; GrownTopicError if they may be in another partition."""
    reader.journal.check_new()
    return UserError(
        f"nothing is known about group {reader.of.group} in {reader.of.topic}",
        hint="a group is known once a member has joined it; check --group and --topic",
    )
