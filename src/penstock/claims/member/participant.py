"""One member as a state machine without clock or network: records go in, records to send come out.

The agent feeds it from Kafka, the simulation from a hostile schedule; both follow the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.claims.member.holdings import Holdings
from penstock.claims.member.membership import Joining, MemberOptions, Phase, ReplacedError, Upkeep
from penstock.claims.member.outbox import Outbox
from penstock.claims.protocol import records
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import MemberId, Record, RequestedTopic, requested_topics
from penstock.claims.protocol.state import MemberState
from penstock.events import Event, GroupJoined
from penstock.logs.log import Partition

BEATS_PER_INTERVAL = 2
"""Heartbeats go out twice as often as promised: one may be late or lost without making others suspect this member."""
GATE_INTERVALS = 1.75
"""Work may start for so long after the sending of a record that was read back: others suspect us after two."""
LOOKS_PER_INTERVAL = 8


class Participant:
    """Reads the log and decides what to send. `now` is always this process's monotonic clock."""

    def __init__(
        self,
        options: MemberOptions,
        nonce: str,
        view: GroupView,
        former_nonces: frozenset[str] = frozenset(),
    ) -> None:
        """`former_nonces` are those of this same process, whose late heartbeats are not a rival's."""
        self.options = options
        self.who = MemberId(options.client_id, nonce)
        self.view = view
        self.phase = Phase.READING
        self.events: list[Event] = []
        """What happened since the agent last reported it."""
        self.outbox = Outbox(self.who)
        self.read_back_at = 0.0
        self._joining = Joining(options, self.who, view, self.outbox, former_nonces)
        self._upkeep = Upkeep(view, self.outbox, self.who)
        self.holdings = Holdings(options, self.who, view, self.outbox, self.events)
        self._requested: tuple[Partition, ...] = ()
        self._requested_topics: tuple[RequestedTopic, ...] = ()
        self._renewed_at = float("-inf")
        self._heartbeat_sent_at = float("-inf")
        self._looked_at = float("-inf")
        self._state_changed = True

    # called by the application

    def request(self, partitions: Iterable[Partition], floors: Mapping[Partition, int]) -> None:
        """Set the partitions that the group shares, each with the token of its table (RULES M1)."""
        requested = tuple(partitions)
        if requested != self._requested:
            self._requested, self._requested_topics, self._state_changed = requested, requested_topics(requested), True
        self.holdings.request(frozenset(requested), floors)

    def held(self, now: float) -> dict[Partition, int]:
        """The partitions on which work may start now, with their tokens: certainly ours, and not being released."""
        if self.phase is not Phase.MEMBER or self.view.state.pauses or not self._certain(now):
            return {}
        return self.holdings.kept()

    def confirmed(self, partition: Partition, token: int, now: float) -> bool:
        """Whether the claim under this token is certainly ours: no other member can suspect us yet."""
        return self._certain(now) and self.holdings.token(partition) == token

    def _certain(self, now: float) -> bool:
        return now < self._renewed_at + GATE_INTERVALS * self.options.heartbeat_seconds

    def heartbeat_age(self, now: float) -> float | None:
        """Since this member was last renewed; None before it was."""
        return now - self._renewed_at if self._renewed_at > float("-inf") else None

    @property
    def busy(self) -> bool:
        """Whether more is to be done soon: the group is changing, or records are in flight."""
        claiming = bool(self.outbox.waiting(records.ClaimingPartition))
        return self.phase is not Phase.MEMBER or self.view.state.unbalanced or claiming or self.holdings.changing

    def record_about(self, kind: type[Record], partition: Partition, **content: object) -> Record:
        """A record about a partition for the application to send; some name the seeks that their sender has read."""
        if kind in (records.Seeking, records.ClaimingMessages):
            content.setdefault("if_seeks", self.view.claim(partition).seeks)
        return self.outbox.record_of(kind, partition=partition, **content)

    # reading the log

    def begin(self, now: float) -> None:
        """The log has been read to where it ended at start-up: from here on this member acts."""
        if self.phase is Phase.READING:
            self.phase = Phase.WATCHING
            self._joining.begin()
            self.read_back_at = now

    def read(self, offset: int, record: Record, now: float, appended_at: float, epoch: int | None = None) -> str | None:
        """Apply one record of the group; returns why the fold refused it, if it did."""
        refusal = self.view.read(offset, record, now, appended_at, epoch)
        if not isinstance(record, records.Heartbeat):
            self._state_changed = True
        if record.who == self.who:
            self._read_back(offset, record, refusal, now, appended_at)
        self.holdings.follow(record, refusal)
        return refusal

    def _read_back(self, offset: int, record: Record, refusal: str | None, now: float, appended_at: float) -> None:
        sent_at = self.outbox.read_back(offset, record, refusal)
        if self.phase is Phase.MEMBER and self._reads_nothing_back(now):
            self.view.forgive(now - self.read_back_at, now)
        self.read_back_at = now
        if self.phase is not Phase.MEMBER:
            self.view.age_by(appended_at, now)
        if self.view.state.present(self.who):
            self._renewed_at = max(self._renewed_at, sent_at)
        if isinstance(record, records.JoiningGroup) and refusal is None:
            self.phase = Phase.MEMBER
            self.events.append(GroupJoined(self.options.group, self.who.client_id))

    def _reads_nothing_back(self, now: float) -> bool:
        """Whether not even our own records were read for an interval: then the silence of others proves nothing."""
        return now - self.read_back_at > self.options.heartbeat_seconds

    # sending

    def decide(self, now: float) -> list[Record]:
        """What to send at this moment."""
        self.outbox.drop_lost(now, 2 * self.options.heartbeat_seconds)
        sending: list[Record] = []
        if self.phase in (Phase.WATCHING, Phase.JOINING):
            sending = self._join(now)
        elif self.phase is Phase.MEMBER:
            sending = self._work(now)
        return self.outbox.sending(sending, now)

    def leave(self, now: float) -> list[Record]:
        """Release everything cleanly, so that others need not wait: claims on their way are refused from then on."""
        joined, self.phase = self.phase in (Phase.JOINING, Phase.MEMBER), Phase.LEFT
        if not joined:
            return []
        beats = self.holdings.all_beats()
        return self.outbox.sending([self.outbox.record_of(records.LeavingGroup, beats=beats)], now)

    def _join(self, now: float) -> list[Record]:
        sending = self._joining.records(now, self._requested_topics)
        if any(isinstance(item, records.JoiningGroup) for item in sending):
            self.phase = Phase.JOINING
        return sending

    def _work(self, now: float) -> list[Record]:
        member = self.view.state.members.get(self.who.client_id)
        if member is not None and member.who != self.who:
            self.phase = Phase.LEFT
            raise ReplacedError(self.who.client_id)
        if member is None or not member.present:
            # Declared gone after a long silence, and all that we held is free.
            self.phase = Phase.WATCHING
            self._joining.begin()
            return self._join(now)
        sending: list[Record] = []
        looks = now - self._looked_at > self.options.heartbeat_seconds / LOOKS_PER_INTERVAL
        if not self._reads_nothing_back(now) and (self._state_changed or looks or self.view.state.unbalanced):
            self._state_changed, self._looked_at = False, now
            sending += self._upkeep.records(now) + self.holdings.claims(now)
        sending += self.holdings.releases(now)
        return sending + self._beat(member, now)

    def _beat(self, member: MemberState, now: float) -> list[Record]:
        """The heartbeat, twice per interval, and at once if the requested topics have changed."""
        topics_changed = self._requested_topics != member.wants and not self.outbox.waiting(records.Heartbeat)
        if not topics_changed and now - self._heartbeat_sent_at < self.options.heartbeat_seconds / BEATS_PER_INTERVAL:
            return []
        self._heartbeat_sent_at = now
        heartbeat = self.outbox.record_of(
            records.Heartbeat,
            wants=self._requested_topics if self._requested_topics != member.wants else None,
            beats=self.holdings.changed_beats(),
        )
        return [heartbeat]
