"""One reader's view of the whole coordination topic: the folds of its partitions, and how long each member is silent.

The folds are the same for every reader. Silence is this reader's own measure, on its monotonic clock since it read the
last record: a suspicion, never a fact (RULES M2).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from enum import Enum

from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import (
    ClaimingRange,
    FinishingRange,
    ForgettingMember,
    GivingUpRange,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    Record,
    ReleaseGroup,
    ResumingGroup,
    ReturningRange,
)
from penstock.claims.protocol.state import Claim, Group, Lease, LogState, MemberState, Pause
from penstock.logs.log import Partition

Subject = Partition | str | tuple[Partition, int]
"""Whose silence is measured: a partition's owner, a member by its client id, the holder of a range by its start."""


class Freshness(Enum):
    """How long an owner has been silent: below one heartbeat interval, below two, or longer."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"


def freshness(silence_seconds: float, heartbeat_seconds: float) -> Freshness:
    if silence_seconds < heartbeat_seconds:
        return Freshness.FRESH
    return Freshness.UNKNOWN if silence_seconds <= 2 * heartbeat_seconds else Freshness.STALE


def coordination_partition(topic: str, number: int, count: int) -> int:
    """Where the records about a partition go; the same for every group and every process."""
    return zlib.crc32(f"{topic}\x00{number}".encode()) % count


def home_partition(group: str, client_id: str, count: int) -> int:
    """Where a member's presence is kept."""
    return zlib.crc32(f"{group}\x00{client_id}\x00member".encode()) % count


class GroupView:
    """The state of one group over all coordination partitions, with the times at which this reader read about it."""

    def __init__(self, group: str, count: int, heartbeat_seconds: float) -> None:
        self.group = group
        self.count = count
        self.heartbeat_seconds = heartbeat_seconds
        self.folds = [LogState() for _ in range(count)]
        self._places: dict[Partition, int] = {}
        self._heard: dict[Subject, float] = {}
        self._appended: dict[Subject, float] = {}

    def restore(self, place: int, state: LogState, now: float, appended_at: float) -> None:
        """Start from a snapshot, whose last record was appended at that time of the broker's clock."""
        self.folds[place] = state
        ours = state.group(self.group)
        subjects: list[Subject] = [*ours.claims, *ours.members]
        subjects += [(partition, lease.start) for partition, claim in ours.claims.items() for lease in claim.leases]
        for key in subjects:
            self._heard[key] = now
            self._appended[key] = appended_at

    def read(self, place: int, offset: int, record: Record, now: float, appended_at: float) -> str | None:
        """Apply the record at an offset; returns why it was refused, None if it was accepted."""
        before = self._group(place)
        self.folds[place], refusal = apply(self.folds[place], offset, record)
        if refusal is None and record.group == self.group:
            for key in _subjects(record):
                if self._last(key) == offset:
                    self._heard[key] = now
                    self._appended[key] = appended_at
            self._drop(_over(before, self._group(place), record))
        return refusal

    def _drop(self, subjects: Iterable[Subject]) -> None:
        """Forget these times: otherwise every range and every random client id would stay in memory for ever."""
        for key in subjects:
            self._heard.pop(key, None)
            self._appended.pop(key, None)

    def age_by(self, broker_now: float, now: float) -> None:
        """Learn how old things were before this reader started, from the broker's append time of its own first record.

        One interval is subtracted, as brokers' clocks differ: too young costs a wait, too old a needless race.
        """
        for key, appended_at in self._appended.items():
            age = broker_now - appended_at - self.heartbeat_seconds
            self._heard[key] = min(self._heard[key], now - max(0.0, age))

    def forgive(self, deaf_seconds: float, now: float) -> None:
        """Do not count a time in which this reader read nothing, not even its own records, as the silence of others."""
        for key, heard_at in self._heard.items():
            self._heard[key] = min(now, heard_at + deaf_seconds)

    def place_of(self, partition: Partition) -> int:
        place = self._places.get(partition)
        if place is None:
            place = self._places[partition] = coordination_partition(partition.topic, partition.number, self.count)
        return place

    def home_of(self, client_id: str) -> int:
        return home_partition(self.group, client_id, self.count)

    def claim(self, partition: Partition) -> Claim:
        return self._group(self.place_of(partition)).claim(partition)

    def claims(self) -> Iterator[tuple[Partition, Claim]]:
        for place in range(self.count):
            yield from self._group(place).claims.items()

    def member(self, client_id: str) -> MemberState | None:
        return self._group(self.home_of(client_id)).members.get(client_id)

    def members(self) -> Iterator[MemberState]:
        for place in range(self.count):
            yield from self._group(place).members.values()

    def live_members(self, now: float) -> list[MemberState]:
        """Those that have not left and are not suspected."""
        return [each for each in self.members() if each.present and not self.suspected(each.who.client_id, now)]

    def pauses(self) -> dict[str, Pause]:
        """The pauses in force: one coordination partition is enough (RULES M4)."""
        return {key: pause for place in range(self.count) for key, pause in self._group(place).pauses.items()}

    def paused_places(self, pause_id: str) -> list[int]:
        return [place for place in range(self.count) if pause_id in self._group(place).pauses]

    def silence_seconds(self, subject: Partition | str, now: float) -> float:
        """How long nothing was accepted about a partition or from a member; 0 where nothing ever was."""
        return now - self._heard.get(subject, now)

    def lease_silence_seconds(self, partition: Partition, lease: Lease, now: float) -> float:
        return now - self._heard.get((partition, lease.start), now)

    def suspected(self, subject: Partition | str, now: float) -> bool:
        return freshness(self.silence_seconds(subject, now), self.heartbeat_seconds) is Freshness.STALE

    def lease_suspected(self, partition: Partition, lease: Lease, now: float) -> bool:
        silence = self.lease_silence_seconds(partition, lease, now)
        return freshness(silence, self.heartbeat_seconds) is Freshness.STALE

    def _last(self, subject: Subject) -> int | None:
        """The offset of the last accepted record about a subject: a heartbeat may name what its sender has lost."""
        match subject:
            case Partition():
                return self.claim(subject).last
            case str():
                member = self.member(subject)
                return None if member is None else member.last
            case partition, start:
                ranges = self.claim(partition).ranges
                lease = None if ranges is None else ranges.at(start)
                return None if lease is None else lease.last

    def _group(self, place: int) -> Group:
        return self.folds[place].group(self.group)


def _over(before: Group, after: Group, record: Record) -> Iterator[Subject]:
    """Whose silence no longer matters: ranges that are done or void, and forgotten members."""
    match record:
        case ForgettingMember():
            yield record.client_id
        case JoiningGroup() | LeavingGroup() | Heartbeat() | ReleaseGroup() | ResumingGroup():
            return
        case _:
            alive = {each.start for each in after.claim(record.partition).leases if not each.done}
            for each in before.claim(record.partition).leases:
                if each.start not in alive:
                    yield record.partition, each.start


def _subjects(record: Record) -> Iterator[Subject]:
    """Who or what an accepted record shows to be alive."""
    match record:
        case Heartbeat():
            if record.presence is not None:
                yield record.who.client_id
            yield from (beat.partition for beat in record.beats)
            yield from ((beat.partition, beat.start) for beat in record.ranges)
        case JoiningGroup() | LeavingGroup():
            yield record.who.client_id
        case ForgettingMember() | ReleaseGroup() | ResumingGroup():
            return
        case ClaimingRange() | FinishingRange() | ReturningRange() | GivingUpRange():
            yield record.partition, record.start
        case _:
            yield record.partition
