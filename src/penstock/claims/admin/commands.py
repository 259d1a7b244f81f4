"""The core of `penstock claims`: list, history, pause, resume, release.

An administrator is not a member: it joins nothing, and claims a partition only to release it. Reading its records back
shows whether they were accepted, and every wait is bounded.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.claims.admin.history import History, HistoryReader
from penstock.claims.admin.listing import ClaimsListing, ListedClaim, listing_of
from penstock.claims.admin.log_reader import CoordinatedGroup, LogReader
from penstock.claims.protocol.codec import TEXT_CHARACTERS_MAX
from penstock.claims.protocol.group_view import Freshness, coordination_partition
from penstock.claims.protocol.records import ClaimingPartition, ReleaseGroup, ReleasingPartition, ResumingGroup, Seeking
from penstock.claims.protocol.state import Claim
from penstock.errors import FencedError, TransientError, UserError, near_words
from penstock.logs.log import Partition

HISTORY_LINES = 50
HISTORY_RECORDS_MAX = 200_000
RELEASE_ATTEMPTS_MAX = 10
"""A live owner's heartbeat between our read and our claim refuses the claim; then we read again."""
RELEASE_REASON = "released by an administrator"
NAMES_SHOWN_MAX = 10

_PLACE = re.compile(r"(?P<topic>[^/]+)/(?P<number>\d{1,10})")


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


def owners(of: CoordinatedGroup) -> dict[Partition, str]:
    """Who holds what according to the log, alive or not: does not wait."""
    with _reading(of) as reader:
        return {
            partition: claim.owner.client_id
            for partition, claim in reader.view.claims()
            if claim.held and claim.owner is not None
        }


def find_claim(of: CoordinatedGroup, place: str) -> ListedClaim:
    """One claim, by TOPIC/PARTITION."""
    with _reading(of) as reader:
        partition, _ = _found(reader, place)
        listed = listing_of(reader, _broker_now(reader))
        return next(each for each in listed.claims if each.partition == partition)


def history(
    of: CoordinatedGroup,
    partition: str | None = None,
    limit: int | None = HISTORY_LINES,
    records_max: int = HISTORY_RECORDS_MAX,
) -> History:
    """How ownership changed, the newest lines; of one partition (TOPIC/PARTITION), or of the whole group.

    At most about `records_max` records are read. What came before them is inferred, and `starts` says where they start.
    """
    wanted = None if partition is None else _place_of(partition)
    with LogReader(of) as reader:
        count = reader.topic.partitions
        places = None if wanted is None else [coordination_partition(*wanted, count)]
        begun, entries = reader.entries(records_max, places)
        history_reader = HistoryReader(of.group, begun)
        groups: set[str] = set()
        for each in entries:
            if each.record is not None:
                groups.add(each.record.group)
            history_reader.read(each.place, each.offset, each.appended_at, each.record, each.fault)
        if of.group not in groups and partition is None:
            raise _unknown_group(of, sorted(groups))
    found = history_reader.history(None if wanted is not None else limit)
    if wanted is None:
        return found
    lines = [each for each in found.lines if each.pause_id or _is(each.partition, wanted)]
    if not any(_is(each.partition, wanted) for each in lines):
        known = {str(each.partition) for each in found.lines if each.partition is not None}
        raise _unknown_partition(of, str(partition), sorted(known))
    chosen = lines if limit is None else lines[max(0, len(lines) - limit) :]
    return replace(found, lines=tuple(chosen))


def pause(
    of: CoordinatedGroup,
    for_seconds: float | None = None,
    reason: str = "",
    wait_seconds: float = 0.0,
    progress: Callable[[tuple[ListedClaim, ...]], None] = lambda holders: None,
) -> PauseReport:
    """Pause a group: members release everything and claim nothing; wait for that at most so long.

    With `for_seconds` the members resume by themselves after that time (RULES M4).
    """
    if len(reason) > TEXT_CHARACTERS_MAX:
        raise UserError(f"the reason is longer than {TEXT_CHARACTERS_MAX} characters")
    pause_id = uuid.uuid4().hex[:8]
    until_at = None if for_seconds is None else time.time() + for_seconds
    with _reading(of) as reader:
        content = {"pause_id": pause_id, "until_at": until_at, "reason": reason}
        reader.say(
            [(place, reader.outbox.record_of(ReleaseGroup, **content)) for place in range(reader.topic.partitions)]
        )
        holders = _wait_released(reader, pause_id, wait_seconds, progress)
    return PauseReport(pause_id, until_at, holders)


def resume(of: CoordinatedGroup, pause_id: str | None = None) -> tuple[str, ...]:
    """End a pause of a group, or all of them; returns their ids."""
    with _reading(of) as reader:
        found = sorted(reader.view.pauses())
        if pause_id is not None and pause_id not in found:
            known = f"its pauses: {', '.join(found)}" if found else "it is not paused"
            raise UserError(f"group {of.group} has no pause {pause_id}", detail=known)
        if not found:
            raise UserError(f"group {of.group} is not paused")
        ended = found if pause_id is None else [pause_id]
        for each in ended:
            # Refused: a member was faster, and the pause is over either way.
            places = reader.view.paused_places(each)
            reader.say([(place, reader.outbox.record_of(ResumingGroup, pause_id=each)) for place in places])
    return tuple(ended)


def release(of: CoordinatedGroup, place: str, seek: int | None = None, if_token: int | None = None) -> ReleaseReport:
    """Free the claim of TOPIC/PARTITION, whoever holds it: a higher token fences its owner.

    `seek` sets the position too. `if_token` makes it conditional: FencedError if the owner changed meanwhile.
    """
    with _reading(of) as reader:
        partition, _ = _found(reader, place)
        listed = listing_of(reader, _broker_now(reader))
        before = next(each for each in listed.claims if each.partition == partition)
        if if_token is not None and before.token != if_token:
            raise FencedError(f"{place} has another owner meanwhile: {before.owner}, token {before.token}")
        if not before.held and seek is None:
            return ReleaseReport(before, before.token, before.position, released=False)
        _refuse_paused(reader)
        token = _free(reader, partition, before.token, seek)
        return ReleaseReport(before, token, reader.view.claim(partition).position, released=True)


# steps


@contextmanager
def _reading(of: CoordinatedGroup) -> Iterator[LogReader]:
    with LogReader(of) as reader:
        reader.catch_up()
        if of.group not in reader.groups():
            raise _unknown_group(of, reader.groups())
        yield reader


def _broker_now(reader: LogReader) -> float:
    """The broker's time; a log that seems silent is watched for an interval, as our clock may be wrong."""
    heartbeat_seconds, newest_at = reader.of.heartbeat_seconds, reader.newest_at
    if time.time() - newest_at < heartbeat_seconds:
        return reader.broker_now()
    heard = reader.follow(heartbeat_seconds, lambda: reader.newest_at > newest_at)
    # Live members would have sent something, so the silence is real: only our clock measures it.
    return reader.broker_now() if heard else max(time.time(), reader.broker_now())


def _wait_released(
    reader: LogReader, pause_id: str, seconds: float, progress: Callable[[tuple[ListedClaim, ...]], None]
) -> tuple[ListedClaim, ...]:
    """Follow the log until no live member holds a claim, the pause has ended, or the time is over."""
    holders: tuple[ListedClaim, ...] = ()

    def settled() -> bool:
        nonlocal holders
        before, holders = holders, listing_of(reader, reader.broker_now()).held
        if len(before) != len(holders):
            progress(holders)
        waiting = any(each.freshness is not Freshness.STALE for each in holders)
        return not waiting or pause_id not in reader.view.pauses()

    reader.follow(seconds, settled)
    return holders


def _free(reader: LogReader, partition: Partition, token: int, seek: int | None) -> int:
    """Take a partition over and release it, by compare and swap until it succeeds; returns the token that fences.

    All records are sent together: the new token is known beforehand, records after a refused claim are refused too, and
    members have no time to count the administrator in their shares.
    """
    place = reader.view.place_of(partition)
    fence = token + 1
    for _ in range(RELEASE_ATTEMPTS_MAX):
        seen = reader.view.claim(partition)
        if seen.token != token:
            raise FencedError(
                f"{partition} was claimed by another member meanwhile", hint="run `penstock claims list`, then decide"
            )
        said = [
            reader.outbox.record_of(ClaimingPartition, partition=partition, if_token=token, if_last=seen.last, floor=0),
            reader.outbox.record_of(
                ReleasingPartition, partition=partition, token=fence, position=None, reason=RELEASE_REASON
            ),
        ]
        if seek is not None:
            sought = {"if_token": fence, "position": seek, "reason": RELEASE_REASON}
            said.insert(1, reader.outbox.record_of(Seeking, partition=partition, **sought))
        refusals = reader.say([(place, each) for each in said])
        if refusals[0] is None:
            if refusals[-1] is not None:
                raise FencedError(f"{partition} was claimed by another member meanwhile", detail=refusals[-1])
            return fence
        # Either a live owner renewed its claim in between, or the group was paused.
        _refuse_paused(reader)
    raise TransientError(f"{partition} changed at every one of {RELEASE_ATTEMPTS_MAX} attempts to claim it")


def _refuse_paused(reader: LogReader) -> None:
    pauses = reader.view.pauses()
    if pauses:
        raise UserError(
            f"group {reader.of.group} is paused: no claim can change its owner",
            detail=f"pauses: {', '.join(sorted(pauses))}",
            hint="`penstock claims resume` first",
        )


# names


def _place_of(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise UserError(f"{text} is not a partition", hint="write TOPIC/PARTITION, such as orders/0")
    return found["topic"], int(found["number"])


def _found(reader: LogReader, text: str) -> tuple[Partition, Claim]:
    """The claim of TOPIC/PARTITION; of a recreated topic, that of its newest topic id."""
    wanted = _place_of(text)
    claims = [(partition, claim) for partition, claim in reader.view.claims() if _is(partition, wanted)]
    if not claims:
        raise _unknown_partition(reader.of, text, sorted(str(each) for each, _ in reader.view.claims()))
    return max(claims, key=lambda pair: -1 if pair[1].last is None else pair[1].last)


def _is(partition: Partition | None, wanted: tuple[str, int]) -> bool:
    return partition is not None and (partition.topic, partition.number) == wanted


def _unknown_group(of: CoordinatedGroup, groups: list[str]) -> UserError:
    return UserError(
        f"nothing is known about group {of.group} in {of.topic}",
        detail=_named("groups there", groups, of.group),
        hint="a group is known once a member has joined it",
    )


def _unknown_partition(of: CoordinatedGroup, text: str, known: list[str]) -> UserError:
    return UserError(
        f"group {of.group} never claimed {text}",
        detail=_named("claims", known, text),
        hint="`penstock claims list` shows all",
    )


def _named(what: str, names: list[str], wanted: str) -> str:
    """The names nearest to the wanted one first."""
    near = near_words(wanted, names, NAMES_SHOWN_MAX)
    ordered = [*near, *(each for each in names if each not in near)]
    more = f" and {len(ordered) - NAMES_SHOWN_MAX} more" if len(ordered) > NAMES_SHOWN_MAX else ""
    return f"{what}: {', '.join(ordered[:NAMES_SHOWN_MAX]) or 'none'}{more}"
