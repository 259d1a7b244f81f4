"""A room in which members speak in turn, over a log that everybody hears at once; time passes only when told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.claims.member.membership import MemberOptions
from penstock.claims.member.participant import Participant
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.state import Claim
from penstock.errors import PenstockError
from penstock.logs.log import Partition
from tests.support.coordination import GROUP, INTERVAL, web

R = TypeVar("R", bound=Record)


@dataclass(slots=True)
class Attendant:
    """One process in the room. Who is `asleep` neither reads nor speaks; `mute` reads and is not heard."""

    participant: Participant
    asleep: bool = False
    mute: bool = False
    gone: bool = False
    error: PenstockError | None = None
    read: int = 0
    unheard: list[Record] = field(default_factory=list)


class Room:
    """One group, its coordination log, and everybody in it."""

    def __init__(self, partitions: Sequence[Partition] | int = 4) -> None:
        self.partitions = [web(number) for number in range(partitions)] if isinstance(partitions, int) else partitions
        self.log: list[tuple[Record, float]] = []
        self.attendants: list[Attendant] = []
        self.now = 1000.0
        self.broker_skew = 0.0
        self.epoch = 1

    def enter(
        self,
        client_id: str,
        nonce: str = "1",
        *,
        wanted: Sequence[Partition] | None = None,
        heartbeat_seconds: float = INTERVAL,
        **options: Any,
    ) -> Attendant:
        """A process starts: it reads what there is and begins."""
        member = MemberOptions(GROUP, client_id, heartbeat_seconds, **options)
        participant = Participant(member, nonce, GroupView(GROUP, heartbeat_seconds))
        participant.want(self.partitions if wanted is None else wanted, {})
        attendant = Attendant(participant)
        self.attendants.append(attendant)
        self.hear(attendant)
        participant.begin(self.now)
        return attendant

    def hear(self, attendant: Attendant) -> None:
        for offset in range(attendant.read, len(self.log)):
            record, appended_at = self.log[offset]
            attendant.participant.read(offset, record, self.now, appended_at, self.epoch)
        attendant.read = len(self.log)

    def turn(self, attendant: Attendant) -> None:
        """Read, decide, speak; raises what ends the process."""
        self.hear(attendant)
        records = attendant.participant.decide(self.now)
        if attendant.mute:
            attendant.unheard += records
        else:
            self.append(records)

    def append(self, records: Sequence[Record]) -> None:
        self.log += [(record, self.now + self.broker_skew) for record in records]

    def say(self, record: Record) -> None:
        """Somebody from outside speaks."""
        self.append([record])

    def run(self, intervals: float, step_seconds: float = 0.5) -> None:
        """Let time pass; a process that ends with an error is out."""
        end = self.now + intervals * INTERVAL
        while self.now < end:
            self.now += step_seconds
            for attendant in self.attendants:
                if attendant.asleep or attendant.gone:
                    continue
                try:
                    self.turn(attendant)
                except PenstockError as error:
                    attendant.error, attendant.gone = error, True

    def leave(self, attendant: Attendant) -> None:
        self.append(attendant.participant.leave(self.now))
        attendant.gone = True

    # what is so

    def view(self) -> GroupView:
        """As somebody sees it who reads everything now."""
        view = GroupView(GROUP, INTERVAL)
        for offset, (record, appended_at) in enumerate(self.log):
            view.read(offset, record, self.now, appended_at)
        return view

    def claim(self, partition: Partition) -> Claim:
        return self.view().claim(partition)

    def owners(self) -> list[str | None]:
        view = self.view()
        claims = [view.claim(partition) for partition in self.partitions]
        return [claim.owner.client_id if claim.held and claim.owner is not None else None for claim in claims]

    def held(self, attendant: Attendant) -> list[Partition]:
        return sorted(attendant.participant.held(self.now))

    def words(self, kind: type[R]) -> list[R]:
        return [record for record, _ in self.log if isinstance(record, kind)]
