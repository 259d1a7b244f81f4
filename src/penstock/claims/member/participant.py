"""One member as a state machine without clock or network: records go in, records to send come out.

The agent feeds it from Kafka, the simulation from a hostile schedule; both follow the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.claims.member.membership import (
    DuplicateClientError,
    MemberEvents,
    MemberOptions,
    Phase,
    ReplacedError,
    Send,
)
from penstock.claims.member.outbox import Outbox
from penstock.claims.member.rebalance import TOPIC_LOST, OwnState, Rebalance, Unit, rebalance, units_of
from penstock.claims.member.upkeep import FORGET_INTERVALS, end_pauses, forget_silent
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import (
    Beat,
    ClaimingPartition,
    Heartbeat,
    JoiningGroup,
    LeavingGroup,
    Presence,
    RangeBeat,
    Record,
    ReleasingPartition,
    ReturningRange,
    Who,
)
from penstock.claims.protocol.state import MemberState
from penstock.logs.log import Partition

BEATS_PER_INTERVAL = 2
"""Heartbeats go out twice as often as promised: one may be late or lost without making others suspect this member."""
GATE_MARGIN = 0.25
"""As a fraction of a heartbeat interval: work must not start this close to the time when others may suspect us."""


@dataclass(slots=True)
class _Held:
    """What this member knows of one of its claims in addition to the log."""

    confirmed_at: float
    """When the newest record that renewed it, and was read back, was sent: the lease counts from there."""
    position: int | None = None
    lag: int = 0


@dataclass(slots=True)
class _Shed:
    """A claim to release as soon as nobody works on it, or when the grace period is over."""

    since: float
    reason: str


class Participant:
    """Reads the log and decides what to send. `now` is always this process's monotonic clock."""

    def __init__(
        self, options: MemberOptions, nonce: str, view: GroupView, former_nonces: frozenset[str] = frozenset()
    ) -> None:
        """`former_nonces` are those of this same process, whose late heartbeats are not a rival's."""
        self.options = options
        self.who = Who(options.client_id, nonce)
        self.view = view
        self._former_nonces = former_nonces
        self.phase = Phase.READING
        self.events = MemberEvents()
        self._wanted: tuple[Partition, ...] = ()
        self._units: tuple[Unit, ...] = ()
        self._floors: dict[Partition, int] = {}
        self._in_use: frozenset[Partition] = frozenset()
        self._held: dict[Partition, _Held] = {}
        self._tokens: dict[Partition, int] = {}
        self._shedding: dict[Partition, _Shed] = {}
        self._cooling: dict[Partition, float] = {}
        self._claims_max_now: tuple[int, float] | None = None
        self.outbox = Outbox(options.group, self.who)
        self._watched: tuple[int, float] | None = None
        self._joined_at = 0.0
        self.heard_self_at = 0.0
        self._heartbeat_sent_at = float("-inf")
        self._rebalanced_at = float("-inf")
        self._state_changed = True

    # called by the application

    def want(self, partitions: Iterable[Partition], floors: Mapping[Partition, int]) -> None:
        """The partitions that the group shares, each with the token that its table has (RULES M1)."""
        wanted = tuple(sorted(partitions))
        if wanted != self._wanted:
            self._wanted, self._units, self._state_changed = wanted, units_of(wanted, self.options.unit), True
        self._floors = dict(floors)

    def using(self, partitions: Iterable[Partition]) -> None:
        """The partitions being worked on: they are not released before that ends, within a limit."""
        self._in_use = frozenset(partitions)

    def progress(self, partition: Partition, position: int, lag: int = 0) -> None:
        """Note how far a held partition is processed, for the next heartbeat."""
        held = self._held.get(partition)
        if held is not None:
            held.position, held.lag = position, lag

    def shed(self, partition: Partition, reason: str, now: float) -> None:
        """Release a partition and do not claim it again for an interval; another member may keep up with it."""
        whole = self.options.unit == "topic"
        together = [each for each in self._held if whole and each.topic_id == partition.topic_id] or [partition]
        for each in together:
            self._shedding.setdefault(each, _Shed(now, reason))
            self._cooling[each] = now + 2 * self.options.heartbeat_seconds
        units = len({each.topic_id for each in self._held} if whole else self._held)
        self._claims_max_now = (max(0, units - 1), now + FORGET_INTERVALS * self.options.heartbeat_seconds)

    def renounce(self, partition: Partition, reason: str, now: float) -> None:
        """Release a partition, to claim it again under a higher token."""
        if partition in self._held:
            self._shedding.setdefault(partition, _Shed(now, reason))

    def idle_others(self, now: float, lag_max: int) -> bool:
        """Whether another live member lags by no more than that."""
        return any(each.presence.lag <= lag_max for each in self.view.live_members(now) if each.who != self.who)

    def takers(self, now: float) -> bool:
        """Whether another member could take a partition over: alive, with room, and with less than half our lag."""
        units: dict[str, set[str | Partition]] = {}
        for partition, claim in self.view.claims():
            if claim.held and claim.owner is not None:
                unit = partition.topic_id if self.options.unit == "topic" else partition
                units.setdefault(claim.owner.client_id, set()).add(unit)
        own_lag = sum(held.lag for held in self._held.values())
        return any(
            2 * each.presence.lag <= own_lag
            and (each.presence.claims_max is None or len(units.get(each.who.client_id, ())) < each.presence.claims_max)
            for each in self.view.live_members(now)
            if each.who != self.who
        )

    def held(self, now: float) -> dict[Partition, int]:
        """The partitions on which work may start now, with their tokens: certainly ours, and not being released."""
        if self.phase is not Phase.MEMBER or self.view.pauses():
            return {}
        return {
            partition: self._tokens[partition]
            for partition in self._held
            if partition not in self._shedding and self.confirmed(partition, self._tokens[partition], now)
        }

    def confirmed(self, partition: Partition, token: int, now: float) -> bool:
        """Whether the claim under this token is certainly ours: no other member can suspect us yet."""
        held = self._held.get(partition)
        if held is None or self._tokens.get(partition) != token:
            return False
        return now < held.confirmed_at + (2 - GATE_MARGIN) * self.options.heartbeat_seconds

    # reading the log

    def begin(self, now: float) -> None:
        """The log has been read to where it ended at start-up: from here on this member acts."""
        if self.phase is Phase.READING:
            self.phase, self._watched = Phase.WATCHING, None
            self.heard_self_at = now

    def read(self, place: int, offset: int, record: Record, now: float, appended_at: float) -> str | None:
        """Apply one record of the log; returns why the fold refused it, if it did."""
        refusal = self.view.read(place, offset, record, now, appended_at)
        if record.group != self.options.group:
            return refusal
        if not isinstance(record, Heartbeat):
            self._state_changed = True
        if record.who == self.who:
            self._read_back(offset, record, refusal, now, appended_at)
        self._follow(record, now)
        return refusal

    def _read_back(self, offset: int, record: Record, refusal: str | None, now: float, appended_at: float) -> None:
        sent_at = self.outbox.read_back(offset, record, refusal)
        if self.phase is Phase.MEMBER and self._hears_nothing(now):
            self.view.forgive(now - self.heard_self_at, now)
        self.heard_self_at = now
        if refusal is not None:
            return
        match record:
            case JoiningGroup():
                self.phase, self._joined_at, self.events.joined = Phase.MEMBER, now, True
                self.view.age_by(appended_at, now)
            case ClaimingPartition():
                claim = self.view.claim(record.partition)
                self._held[record.partition] = _Held(sent_at, claim.position)
                self._tokens[record.partition] = claim.token
                self._shedding.pop(record.partition, None)
                self.events.won.append((record.partition, claim.token))
            case Heartbeat():
                for beat in record.beats:
                    held = self._held.get(beat.partition)
                    if held is not None and self._tokens[beat.partition] == beat.token:
                        held.confirmed_at = max(held.confirmed_at, sent_at)
            case _:
                pass

    def _hears_nothing(self, now: float) -> bool:
        """Whether not even our own records were read for an interval: then the silence of others proves nothing."""
        return now - self.heard_self_at > self.options.heartbeat_seconds

    def _follow(self, record: Record, now: float) -> None:
        """Drop what is no longer ours."""
        partition = getattr(record, "partition", None)
        if partition in self._held and not self._still_ours(partition):
            token = self._tokens.pop(partition)
            del self._held[partition]
            shed = self._shedding.pop(partition, None)
            if isinstance(record, ReleasingPartition):
                self.events.released.append((partition, shed.reason if shed else record.reason))
            else:
                self.events.lost.append((partition, token))
            if self.options.unit == "topic":
                for each in self._held:
                    if each.topic_id == partition.topic_id:
                        self._shedding.setdefault(each, _Shed(now, TOPIC_LOST))

    def _still_ours(self, partition: Partition) -> bool:
        claim = self.view.claim(partition)
        return claim.held_by(self.who) and claim.token == self._tokens[partition]

    # sending

    def decide(self, now: float, wall_now: float) -> list[Send]:
        """What to send at this moment."""
        self.outbox.drop_lost(now, 2 * self.options.heartbeat_seconds)
        sends: list[Send] = []
        if self.phase in (Phase.WATCHING, Phase.JOINING):
            sends = self._join(now)
        elif self.phase is Phase.MEMBER:
            sends = self._work(now, wall_now)
        return self.outbox.sending(sends, now)

    def leave(self, now: float) -> list[Send]:
        """Release everything cleanly, so that others need not wait."""
        if self.phase is not Phase.MEMBER:
            self.phase = Phase.LEFT
            return []
        sends = [self._release(partition, "the process ended") for partition in self._held]
        sends += [
            self._send(ReturningRange, partition=beat.partition, token=token, start=beat.start, lease=beat.lease)
            for beat, token in self._leases()
        ]
        home = self.view.home_of(self.who.client_id)
        sends.append(Send(home, self.outbox.record_of(LeavingGroup)))
        self.phase = Phase.LEFT
        return self.outbox.sending(sends, now)

    # joining

    def _join(self, now: float) -> list[Send]:
        """Take the client id, unless a live process has it (RULES M3)."""
        if self.outbox.waiting(JoiningGroup):
            return []
        member = self.view.member(self.who.client_id)
        if self.phase is Phase.JOINING and member is not None and member.present and member.who != self.who:
            raise DuplicateClientError(self.who.client_id, self.options.group)
        if member is not None and member.present and not self._silent(member, now):
            return []
        self.phase = Phase.JOINING
        last = None if member is None else member.last
        joining = self.outbox.record_of(JoiningGroup, if_last=last, presence=self._presence(now))
        return [Send(self.view.home_of(self.who.client_id), joining)]

    def _silent(self, member: MemberState, now: float) -> bool:
        """Whether the process that has our id stayed silent for an interval while we watched; raises if it did not."""
        if member.who.nonce in self._former_nonces:
            return True
        if self._watched is None:
            self._watched = (member.last, now)
        if self._watched[0] != member.last:
            raise DuplicateClientError(self.who.client_id, self.options.group)
        return now - self._watched[1] > self.options.heartbeat_seconds

    # working

    def _work(self, now: float, wall_now: float) -> list[Send]:
        member = self.view.member(self.who.client_id)
        if member is None:
            # Forgotten after a long silence, so what we held is suspected too: join again.
            self.phase, self._watched = Phase.WATCHING, None
            return self._join(now)
        if member.who != self.who:
            self.phase = Phase.LEFT
            raise ReplacedError(self.who.client_id)
        sends = end_pauses(self.view, self.outbox, wall_now)
        if not self._hears_nothing(now) and (
            self._state_changed or now - self._rebalanced_at > self.options.heartbeat_seconds / 4
        ):
            self._state_changed, self._rebalanced_at = False, now
            sends += self._rebalance(now) + forget_silent(self.view, self.outbox, self.who, now)
        sends += self._release_shed(now)
        if now - self._heartbeat_sent_at >= self.options.heartbeat_seconds / BEATS_PER_INTERVAL:
            self._heartbeat_sent_at = now
            sends += self._beat(now)
        return sends

    def _rebalance(self, now: float) -> list[Send]:
        if self.view.pauses():
            for partition in self._held:
                self._shedding.setdefault(partition, _Shed(now, "the group is paused"))
            return []
        me = OwnState(
            who=self.who,
            units=self._units,
            presence=self._presence(now),
            held=frozenset(self._held) - self._shedding.keys(),
            claiming=frozenset(self._claiming()),
            cooling=frozenset(each for each, until in self._cooling.items() if now < until),
            in_use=self._in_use,
            joined_at=self._joined_at,
        )
        decided: Rebalance = rebalance(self.view, me, now)
        for partition, reason in decided.release.items():
            self._shedding.setdefault(partition, _Shed(now, reason))
        return [self._claim(partition) for partition in decided.claim]

    def _claiming(self) -> list[Partition]:
        return [each.partition for each in self.outbox.waiting(ClaimingPartition)]

    def _claim(self, partition: Partition) -> Send:
        seen = self.view.claim(partition)
        floor = self._floors.get(partition, 0)
        return self._send(ClaimingPartition, partition=partition, if_token=seen.token, if_last=seen.last, floor=floor)

    def _release_shed(self, now: float) -> list[Send]:
        """Send the releases that are due: nobody works on the partition, or the grace of one interval is over."""
        leaving = {each.partition for each in self.outbox.waiting(ReleasingPartition)}
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
        """One heartbeat per coordination partition in which we hold something, and always one in the home partition."""
        home = self.view.home_of(self.who.client_id)
        beats: dict[int, list[Beat]] = {home: []}
        for partition, held in self._held.items():
            beat = Beat(partition, self._tokens[partition], held.position, held.lag)
            beats.setdefault(self.view.place_of(partition), []).append(beat)
        ranges: dict[int, list[RangeBeat]] = {}
        for beat_of_range, _ in self._leases():
            ranges.setdefault(self.view.place_of(beat_of_range.partition), []).append(beat_of_range)
        return [
            Send(
                place,
                self.outbox.record_of(
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
            for partition, claim in self.view.claims()
            for lease in claim.leases
            if lease.owner == self.who and not lease.done
        ]

    def _presence(self, now: float) -> Presence:
        bound = self.options.claims_max
        if self._claims_max_now is not None:
            lowered, until = self._claims_max_now
            if now >= until:
                self._claims_max_now = None
            elif any(each.who != self.who for each in self.view.live_members(now)):
                # Alone, there is nobody to take the rest.
                bound = lowered if bound is None else min(bound, lowered)
        return Presence(bound, sum(held.lag for held in self._held.values()))

    def _send(self, kind: type[Record], partition: Partition, **content: object) -> Send:
        return Send(self.view.place_of(partition), self.outbox.record_of(kind, partition=partition, **content))
