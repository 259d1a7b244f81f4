"""What one member holds, claims and releases, following the target of its group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.outbox import Outbox
from penstock.claims.protocol import records
from penstock.claims.protocol.fold import further
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Beat, ClaimRequest, MemberId, Record, partitions_of
from penstock.events import ClaimLost, ClaimReleased, ClaimWon, Event
from penstock.logs.log import Partition

ABOVE_SHARE = "above the fair share"
NOT_REQUESTED = "the partition is no longer part of the job"
PAUSED = "the group is paused"
CLAIMED_AT_ONCE_MAX = 500
"""Partitions in one record."""


@dataclass(slots=True)
class _Leaving:
    """A claim to release as soon as no work on it is in progress, or when the grace period is over."""

    since: float
    reason: str
    sent: bool = False
    """From then on it may be read at any time, so it is not called off."""


class Holdings:
    """The claims of one member. A member claims only what the target gives it, and releases what it takes away."""

    def __init__(
        self, options: MemberOptions, who: MemberId, view: GroupView, outbox: Outbox, events: list[Event]
    ) -> None:
        self._options = options
        self._who = who
        self._view = view
        self._outbox = outbox
        self._events = events
        self.in_use: frozenset[Partition] = frozenset()
        self._requested: frozenset[Partition] = frozenset()
        self._floors: Mapping[Partition, int] = {}
        self._held: dict[Partition, Beat] = {}
        """With positions and lags that may be newer than those in the log."""
        self._leaving: dict[Partition, _Leaving] = {}

    # what is

    @property
    def changing(self) -> bool:
        return bool(self._leaving)

    def token(self, partition: Partition) -> int | None:
        held = self._held.get(partition)
        return None if held is None else held.token

    def kept(self) -> dict[Partition, int]:
        """The partitions that are not being released, with their tokens."""
        return {key: held.token for key, held in self._held.items() if key not in self._leaving}

    def request(self, partitions: frozenset[Partition], floors: Mapping[Partition, int]) -> None:
        self._requested, self._floors = partitions, dict(floors)

    def using(self, partitions: Iterable[Partition]) -> None:
        """The partitions being worked on: they are not released before that ends, within a limit."""
        self.in_use = frozenset(partitions)

    def progress(self, partition: Partition, position: int, lag: int = 0) -> None:
        """Note how far a held partition is processed, for the next heartbeat."""
        if partition in self._held:
            self._held[partition] = replace(self._held[partition], position=position, lag=lag)

    def release_later(self, partitions: Iterable[Partition], reason: str, now: float) -> None:
        """Release what is held of these, as soon as no work on it is in progress."""
        for partition in partitions:
            if partition in self._held:
                self._leaving.setdefault(partition, _Leaving(now, reason))

    # following the log

    def follow(self, record: Record, refusal: str | None) -> None:
        """Take up what a record of ours won, and drop what is no longer ours."""
        if not self._view.state.present(self._who):
            self._drop(tuple(self._held), record)
            return
        if isinstance(record, records.ClaimingPartition):
            if record.who == self._who and refusal is None:
                claims = {request.partition: self._view.claim(request.partition) for request in record.requests}
                for partition, claim in claims.items():
                    if claim.held_by(self._who) and partition not in self._held:
                        self._held[partition] = Beat(partition, claim.token, claim.position)
                        self._events.append(ClaimWon(str(partition), claim.token))
            return
        named = [partition for partition in partitions_of(record) if partition in self._held]
        gone = [
            partition
            for partition in named
            if not self._view.claim(partition).held_by(self._who, self._held[partition].token)
        ]
        if gone:
            self._drop(gone, record)
        if isinstance(record, records.Seeking) and record.partition in self._held and refusal is None:
            self._held[record.partition] = replace(self._held[record.partition], position=record.position)

    def _drop(self, partitions: Iterable[Partition], record: Record) -> None:
        for partition in partitions:
            held, leaving = self._held.pop(partition), self._leaving.pop(partition, None)
            if isinstance(record, records.ReleasingPartition) and record.who == self._who:
                self._events.append(ClaimReleased(str(partition), leaving.reason if leaving else record.reason))
            else:
                self._events.append(ClaimLost(str(partition), held.token))

    # what to do

    def claims(self, now: float) -> list[Record]:
        """Mark what the target takes away for release, and claim what it gives and is free."""
        state = self._view.state
        if state.pauses:
            self.release_later(self._held, PAUSED, now)
            return []
        given = state.target.get(self._who.client_id, ())
        self.release_later((key for key in self._held if key not in self._requested), NOT_REQUESTED, now)
        if state.balanced is not None:
            kept = frozenset(given)
            self.release_later((partition for partition in self._held if partition not in kept), ABOVE_SHARE, now)
            stay = {key for key, leaving in self._leaving.items() if leaving.reason == ABOVE_SHARE and not leaving.sent}
            for partition in stay & kept:
                del self._leaving[partition]
        claiming = {
            partition
            for record in self._outbox.waiting(records.ClaimingPartition)
            for partition in partitions_of(record)
        }
        free = [
            partition
            for partition in given
            if partition not in self._held and partition not in claiming and self._may_claim(partition)
        ]
        return [
            self._outbox.record_of(
                records.ClaimingPartition,
                requests=tuple(self._request(partition) for partition in free[start : start + CLAIMED_AT_ONCE_MAX]),
            )
            for start in range(0, len(free), CLAIMED_AT_ONCE_MAX)
        ]

    def _may_claim(self, partition: Partition) -> bool:
        claim = self._view.claim(partition)
        if partition not in self._requested or claim.held:
            return False
        # What an administrator took from us is given to another member first.
        return claim.freed_from != self._who.client_id or not self._view.state.unbalanced

    def _request(self, partition: Partition) -> ClaimRequest:
        return ClaimRequest(partition, self._view.claim(partition).token, self._floors.get(partition, 0))

    def releases(self, now: float) -> list[Record]:
        """The releases that are due: no work on the partition is in progress, or the grace of one interval is over."""
        sent = {
            partition
            for record in self._outbox.waiting(records.ReleasingPartition)
            for partition in partitions_of(record)
        }
        due: dict[str, list[Beat]] = {}
        for partition, leaving in self._leaving.items():
            over = partition not in self.in_use or now - leaving.since > self._options.heartbeat_seconds
            if over and partition not in sent:
                due.setdefault(leaving.reason, []).append(self._beat(partition))
                leaving.sent = True
        return [
            self._outbox.record_of(records.ReleasingPartition, beats=tuple(beats), reason=reason)
            for reason, beats in due.items()
        ]

    def changed_beats(self) -> tuple[Beat, ...]:
        """The claims whose position or lag is not yet in the log."""
        beats = [(beat, self._view.claim(beat.partition)) for beat in self.all_beats()]
        return tuple(
            beat
            for beat, claim in beats
            if beat.lag != claim.lag or further(claim.position, beat.position) != claim.position
        )

    def all_beats(self) -> tuple[Beat, ...]:
        return tuple(map(self._beat, self._held))

    def _beat(self, partition: Partition) -> Beat:
        return replace(self._held[partition], seeks=self._view.claim(partition).seeks)
