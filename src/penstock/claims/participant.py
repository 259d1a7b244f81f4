"""One member as a machine without clock or network: records go in, records to send come out.

The agent feeds it from Kafka, the simulation from a hostile schedule; both run the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from penstock.claims.records import (
    Beat,
    ClaimingPartition,
    ForgettingMember,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    Presence,
    RangeBeat,
    Record,
    ReleasingPartition,
    ResumingGroup,
    ReturningRange,
    Who,
)
from penstock.claims.sharing import TOPIC_LOST, Self, Share, share
from penstock.claims.world import World
from penstock.errors import FencedError, UserError
from penstock.log.offsets import Partition

BEATS_PER_INTERVAL = 2
"""Heartbeats go out twice as often as promised: one may be late or lost without anybody's suspicion."""
GATE_MARGIN = 0.25
"""Of a heartbeat interval: work must not begin this close to the moment at which others may suspect us."""
FORGET_INTERVALS = 30
"""A client id that is silent so long is forgotten: ids made by chance would fill the snapshots."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Who a member is and how it shares. All members of a group need the same `heartbeat_seconds` and `unit`."""

    group: str
    client_id: str
    heartbeat_seconds: float = 10.0
    unit: Literal["partition", "topic"] = "partition"
    claims_max: int | None = None
    """The most units that this member takes; None: its fair share whatever it is."""


@dataclass(frozen=True, slots=True)
class Send:
    """A record for one coordination partition."""

    place: int
    record: Record


class Life(Enum):
    """A member reads first, then watches its client id, joins, works, leaves."""

    READING = "reading"
    WATCHING = "watching"
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"


class DuplicateClientError(UserError):
    """A living process has this client id already (RULES M3)."""

    def __init__(self, client_id: str, group: str) -> None:
        super().__init__(
            f"client id {client_id} is in use by a living process of group {group}",
            detail="its heartbeats went on while this process watched",
            hint="give every process its own `claims.client_id`, or stop the other process first",
        )
        self.client_id = client_id


class ReplacedError(FencedError):
    """A newer process joined under our client id: this one stops (RULES M3)."""

    def __init__(self, client_id: str) -> None:
        super().__init__(
            f"another process has joined as {client_id}",
            detail="this process was silent for longer than a heartbeat interval, so the other took its place",
            hint="give every process its own `claims.client_id`",
        )


@dataclass(slots=True)
class _Held:
    """What this member knows of one of its claims beyond the log."""

    confirmed_at: float
    """When the newest record that renewed it, and was read back, was sent: the lease counts from there."""
    position: int | None = None
    lag: int = 0


@dataclass(slots=True)
class _Sent:
    record: Record
    sent_at: float


@dataclass(slots=True)
class _Shed:
    """A claim that goes as soon as nobody works on it, or when the grace is over."""

    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a record of ours stands in the log, and why the fold refused it (None: accepted)."""

    offset: int
    refusal: str | None


@dataclass(slots=True)
class Told:
    """What happened to this member since it was last asked: for its events and logs."""

    joined: bool = False
    won: list[tuple[Partition, int]] = field(default_factory=list)
    lost: list[tuple[Partition, int]] = field(default_factory=list)
    released: list[tuple[Partition, str]] = field(default_factory=list)


class Participant:
    """Reads the log, decides what to say. `now` is always this process's monotonic clock."""

    def __init__(self, options: MemberOptions, nonce: str, world: World) -> None:
        self.options = options
        self.who = Who(options.client_id, nonce)
        self.world = world
        self.life = Life.READING
        self.told = Told()
        self._seq = 0
        self._wanted: tuple[Partition, ...] = ()
        self._floors: dict[Partition, int] = {}
        self._in_use: frozenset[Partition] = frozenset()
        self._held: dict[Partition, _Held] = {}
        self._tokens: dict[Partition, int] = {}
        self._shedding: dict[Partition, _Shed] = {}
        self._cooling: dict[Partition, float] = {}
        self._claims_max_now: tuple[int, float] | None = None
        self._sent: dict[int, _Sent] = {}
        self._asked: dict[int, Verdict | None] = {}
        self._watched: tuple[int, float] | None = None
        self._joined_at = 0.0
        self._heard_self_at = 0.0
        self._beaten_at = float("-inf")
        self._shared_at = float("-inf")
        self._stirred = True

    # what the application says

    def want(self, partitions: Iterable[Partition], floors: Mapping[Partition, int]) -> None:
        """The partitions that the group shares, each with the token that its table has (RULES M1)."""
        wanted = tuple(sorted(partitions))
        if wanted != self._wanted:
            self._wanted, self._stirred = wanted, True
        self._floors = dict(floors)

    def using(self, partitions: Iterable[Partition]) -> None:
        """The partitions that work is under way on: they are not let go before it ends, within a bound."""
        self._in_use = frozenset(partitions)

    def progress(self, partition: Partition, position: int, lag: int = 0) -> None:
        """How far a held partition is processed, for the next heartbeat."""
        held = self._held.get(partition)
        if held is not None:
            held.position, held.lag = position, lag

    def shed(self, partition: Partition, reason: str, now: float) -> None:
        """Let go of a partition and do not take it again for an interval; somebody else may do better."""
        self._shedding.setdefault(partition, _Shed(now, reason))
        self._cooling[partition] = now + 2 * self.options.heartbeat_seconds
        units = len({each.topic_id for each in self._held} if self.options.unit == "topic" else self._held)
        self._claims_max_now = (max(0, units - 1), now + FORGET_INTERVALS * self.options.heartbeat_seconds)

    def idle_others(self, now: float) -> bool:
        """Whether another live member has nothing to do."""
        return any(each.presence.lag == 0 for each in self.world.live_members(now) if each.who != self.who)

    def takers(self, now: float) -> bool:
        """Whether somebody else could take a partition from us: alive, with room, and without a lag of its own."""
        units: dict[str, set[str | Partition]] = {}
        for partition, claim in self.world.claims():
            if claim.held and claim.owner is not None:
                unit = partition.topic_id if self.options.unit == "topic" else partition
                units.setdefault(claim.owner.client_id, set()).add(unit)
        return any(
            each.presence.lag == 0
            and (each.presence.claims_max is None or len(units.get(each.who.client_id, ())) < each.presence.claims_max)
            for each in self.world.live_members(now)
            if each.who != self.who
        )

    def held(self, now: float) -> dict[Partition, int]:
        """The partitions on which work may begin now, with their tokens: ours beyond doubt, and not about to go."""
        if self.life is not Life.MEMBER or self.world.pauses():
            return {}
        return {
            partition: self._tokens[partition]
            for partition in self._held
            if partition not in self._shedding and self.confirmed(partition, self._tokens[partition], now)
        }

    def confirmed(self, partition: Partition, token: int, now: float) -> bool:
        """Whether the claim under this token is ours beyond doubt: nobody can have begun to suspect us."""
        held = self._held.get(partition)
        if held is None or self._tokens.get(partition) != token:
            return False
        return now < held.confirmed_at + (2 - GATE_MARGIN) * self.options.heartbeat_seconds

    # what the log says

    def begin(self, now: float) -> None:
        """The log is read to where it ended when we came: from here on this member acts."""
        if self.life is Life.READING:
            self.life, self._watched = Life.WATCHING, None

    def read(self, place: int, offset: int, record: Record, now: float, appended_at: float) -> str | None:
        """Take in one record of the log; the reason if the fold refused it."""
        refusal = self.world.read(place, offset, record, now, appended_at)
        if record.group != self.options.group:
            return refusal
        if not isinstance(record, Heartbeat):
            self._stirred = True
        if record.who == self.who:
            self._read_back(offset, record, refusal, now, appended_at)
        self._follow(record, now)
        return refusal

    def _read_back(self, offset: int, record: Record, refusal: str | None, now: float, appended_at: float) -> None:
        sent = self._sent.pop(record.seq, None)
        if self.life is Life.MEMBER and self._deaf(now):
            self.world.forgive(now - self._heard_self_at, now)
        self._heard_self_at = now
        if record.seq in self._asked:
            self._asked[record.seq] = Verdict(offset, refusal)
        if refusal is not None:
            return
        # A record of ours whose sending we forgot was sent at the latest one bound ago: it confirms nothing.
        sent_at = sent.sent_at if sent is not None else float("-inf")
        match record:
            case JoiningGroup():
                self.life, self._joined_at, self.told.joined = Life.MEMBER, now, True
                self.world.age_by(appended_at, now)
            case ClaimingPartition():
                claim = self.world.claim(record.partition)
                self._held[record.partition] = _Held(sent_at, claim.position)
                self._tokens[record.partition] = claim.token
                self._shedding.pop(record.partition, None)
                self.told.won.append((record.partition, claim.token))
            case Heartbeat():
                for beat in record.beats:
                    held = self._held.get(beat.partition)
                    if held is not None and self._tokens[beat.partition] == beat.token:
                        held.confirmed_at = max(held.confirmed_at, sent_at)
            case _:
                pass

    def _deaf(self, now: float) -> bool:
        """Whether not even our own voice came through for an interval: then the silence of others says nothing."""
        return now - self._heard_self_at > self.options.heartbeat_seconds

    def _follow(self, record: Record, now: float) -> None:
        """Drop what is ours no longer."""
        partition = getattr(record, "partition", None)
        if partition in self._held and not self._still_ours(partition):
            token = self._tokens.pop(partition)
            del self._held[partition]
            shed = self._shedding.pop(partition, None)
            if isinstance(record, ReleasingPartition):
                self.told.released.append((partition, shed.reason if shed else record.reason))
            else:
                self.told.lost.append((partition, token))
            if self.options.unit == "topic":
                for each in self._held:
                    if each.topic_id == partition.topic_id:
                        self._shedding.setdefault(each, _Shed(now, TOPIC_LOST))

    def _still_ours(self, partition: Partition) -> bool:
        claim = self.world.claim(partition)
        return claim.held_by(self.who) and claim.token == self._tokens[partition]

    # what to say

    def record_of(self, kind: type[Record], **content: object) -> Record:
        """A record of ours, numbered."""
        self._seq += 1
        return kind(group=self.options.group, who=self.who, seq=self._seq, **content)  # type: ignore[arg-type]

    def ask(self, record: Record) -> None:
        """Keep the verdict on a record until it is forgotten."""
        self._asked[record.seq] = None

    def verdict(self, record: Record) -> Verdict | None:
        """What the log says of a record that was asked about; None as long as it is not read back."""
        return self._asked[record.seq]

    def stop_asking(self, record: Record) -> None:
        self._asked.pop(record.seq, None)

    def sending(self, record: Record, now: float) -> None:
        """Note when a record leaves: leases count from there."""
        self._sent[record.seq] = _Sent(record, now)

    def failed(self, record: Record) -> None:
        """A record could not be delivered: whether it is in the log is known only by reading on."""
        self._sent.pop(record.seq, None)

    def decide(self, now: float, wall_now: float) -> list[Send]:
        """What to send at this moment."""
        self._drop_lost_sends(now)
        sends: list[Send] = []
        if self.life in (Life.WATCHING, Life.JOINING):
            sends = self._join(now)
        elif self.life is Life.MEMBER:
            sends = self._work(now, wall_now)
        for send in sends:
            self.sending(send.record, now)
        return sends

    def leave(self, now: float) -> list[Send]:
        """Let go of everything, cleanly: others need not wait."""
        if self.life is not Life.MEMBER:
            self.life = Life.LEFT
            return []
        sends = [self._release(partition, "the process ended") for partition in self._held]
        sends += [
            self._send(ReturningRange, partition=beat.partition, token=token, start=beat.start, lease=beat.lease)
            for beat, token in self._leases()
        ]
        home = self.world.home_of(self.who.client_id)
        sends.append(Send(home, self.record_of(LeavingGroup)))
        self.life = Life.LEFT
        for send in sends:
            self.sending(send.record, now)
        return sends

    def _drop_lost_sends(self, now: float) -> None:
        """A record that is not read back within the lease is no longer waited for; if it comes, it is read then."""
        bound = 2 * self.options.heartbeat_seconds
        for seq in [seq for seq, sent in self._sent.items() if now - sent.sent_at > bound]:
            del self._sent[seq]

    # joining

    def _join(self, now: float) -> list[Send]:
        """Take the client id, unless a living process has it (RULES M3)."""
        if any(isinstance(sent.record, JoiningGroup) for sent in self._sent.values()):
            return []
        member = self.world.member(self.who.client_id)
        if self.life is Life.JOINING and member is not None and member.present and member.who != self.who:
            raise DuplicateClientError(self.who.client_id, self.options.group)
        if member is not None and member.present and not self._silent(member.last, now):
            return []
        self.life = Life.JOINING
        last = None if member is None else member.last
        joining = self.record_of(JoiningGroup, if_last=last, presence=self._presence(now))
        return [Send(self.world.home_of(self.who.client_id), joining)]

    def _silent(self, last: int, now: float) -> bool:
        """Whether whoever has our id stayed silent for an interval while we watched; raises if it did not."""
        if self._watched is None:
            self._watched = (last, now)
        if self._watched[0] != last:
            raise DuplicateClientError(self.who.client_id, self.options.group)
        return now - self._watched[1] > self.options.heartbeat_seconds

    # working

    def _work(self, now: float, wall_now: float) -> list[Send]:
        member = self.world.member(self.who.client_id)
        if member is None:
            # Forgotten after a long silence: whatever we held is suspected too. Begin again.
            self.life, self._watched = Life.WATCHING, None
            return self._join(now)
        if member.who != self.who:
            self.life = Life.LEFT
            raise ReplacedError(self.who.client_id)
        sends = self._resume(wall_now)
        if not self._deaf(now) and (self._stirred or now - self._shared_at > self.options.heartbeat_seconds / 4):
            self._stirred, self._shared_at = False, now
            sends += self._share(now) + self._forget(now)
        sends += self._release_shed(now)
        if now - self._beaten_at >= self.options.heartbeat_seconds / BEATS_PER_INTERVAL:
            self._beaten_at = now
            sends += self._beat(now)
        return sends

    def _resume(self, wall_now: float) -> list[Send]:
        """End pauses whose time is over: any member may say it (RULES M4)."""
        waiting = {sent.record.pause_id for sent in self._sent.values() if isinstance(sent.record, ResumingGroup)}
        return [
            Send(place, self.record_of(ResumingGroup, pause_id=pause_id))
            for pause_id, pause in self.world.pauses().items()
            if pause.until_at is not None and wall_now >= pause.until_at and pause_id not in waiting
            for place in self.world.paused_places(pause_id)
        ]

    def _share(self, now: float) -> list[Send]:
        if self.world.pauses():
            for partition in self._held:
                self._shedding.setdefault(partition, _Shed(now, "the group is paused"))
            return []
        me = Self(
            who=self.who,
            wanted=self._wanted,
            unit=self.options.unit,
            presence=self._presence(now),
            held=frozenset(self._held) - self._shedding.keys(),
            claiming=frozenset(self._claiming()),
            cooling=frozenset(each for each, until in self._cooling.items() if now < until),
            in_use=self._in_use,
            joined_at=self._joined_at,
        )
        decided: Share = share(self.world, me, now)
        for partition, reason in decided.release.items():
            self._shedding.setdefault(partition, _Shed(now, reason))
        return [self._claim(partition) for partition in decided.claim]

    def _claiming(self) -> list[Partition]:
        return [sent.record.partition for sent in self._sent.values() if isinstance(sent.record, ClaimingPartition)]

    def _claim(self, partition: Partition) -> Send:
        seen = self.world.claim(partition)
        floor = self._floors.get(partition, 0)
        return self._send(ClaimingPartition, partition=partition, if_token=seen.token, if_last=seen.last, floor=floor)

    def _release_shed(self, now: float) -> list[Send]:
        """Send the releases that are due: nobody works on the partition, or the grace of one interval is over."""
        leaving = {sent.record.partition for sent in self._sent.values() if isinstance(sent.record, ReleasingPartition)}
        return [
            self._release(partition, shed.reason)
            for partition, shed in self._shedding.items()
            if partition in self._held
            and partition not in leaving
            and (partition not in self._in_use or now - shed.since > self.options.heartbeat_seconds)
        ]

    def _release(self, partition: Partition, reason: str) -> Send:
        return self._send(
            ReleasingPartition,
            partition=partition,
            token=self._tokens[partition],
            position=self._held[partition].position,
            reason=reason,
        )

    def _beat(self, now: float) -> list[Send]:
        """One heartbeat per coordination partition in which we hold something, and one at home in any case."""
        home = self.world.home_of(self.who.client_id)
        beats: dict[int, list[Beat]] = {home: []}
        for partition, held in self._held.items():
            beat = Beat(partition, self._tokens[partition], held.position, held.lag)
            beats.setdefault(self.world.place_of(partition), []).append(beat)
        ranges: dict[int, list[RangeBeat]] = {}
        for beat_of_range, _ in self._leases():
            ranges.setdefault(self.world.place_of(beat_of_range.partition), []).append(beat_of_range)
        return [
            Send(
                place,
                self.record_of(
                    Heartbeat,
                    presence=self._presence(now) if place == home else None,
                    beats=tuple(beats.get(place, ())),
                    ranges=tuple(ranges.get(place, ())),
                ),
            )
            for place in sorted({*beats, *ranges})
        ]

    def _leases(self) -> list[tuple[RangeBeat, int]]:
        """The ranges that we hold, each with the token of its partition."""
        return [
            (RangeBeat(partition, lease.start, lease.lease), claim.token)
            for partition, claim in self.world.claims()
            if claim.ranges is not None
            for lease in claim.ranges.leases
            if lease.owner == self.who and not lease.done
        ]

    def _presence(self, now: float) -> Presence:
        bound = self.options.claims_max
        if self._claims_max_now is not None:
            lowered, until = self._claims_max_now
            if now < until:
                bound = lowered if bound is None else min(bound, lowered)
            else:
                self._claims_max_now = None
        return Presence(bound, sum(held.lag for held in self._held.values()))

    def _forget(self, now: float) -> list[Send]:
        silent = [
            each
            for each in self.world.members()
            if each.who != self.who
            and self.world.silence_seconds(each.who.client_id, now) > FORGET_INTERVALS * self.options.heartbeat_seconds
        ]
        waiting = {sent.record.client_id for sent in self._sent.values() if isinstance(sent.record, ForgettingMember)}
        return [
            Send(
                self.world.home_of(each.who.client_id),
                self.record_of(ForgettingMember, client_id=each.who.client_id, if_last=each.last),
            )
            for each in silent
            if each.who.client_id not in waiting
        ]

    def _send(self, kind: type[Record], partition: Partition, **content: object) -> Send:
        return Send(self.world.place_of(partition), self.record_of(kind, partition=partition, **content))
