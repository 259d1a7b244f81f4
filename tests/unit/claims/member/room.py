"""Members in one room: every word is heard at the next turn, and time moves when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.claims.member.membership import MemberOptions, Send
from penstock.claims.member.participant import Participant
from penstock.claims.protocol.group_view import GroupView
from penstock.claims.protocol.records import Record
from penstock.claims.protocol.state import Claim
from penstock.errors import PenstockError
from penstock.logs.log import Partition
from tests.coordination import GROUP, web

INTERVAL = 10.0


@dataclass(slots=True)
class Attendant:
    """One process in the room. Who is `asleep` neither reads nor speaks; `mute` reads and is not heard."""

    participant: Participant
    asleep: bool = False
    mute: bool = False
    gone: bool = False
    error: PenstockError | None = None
    read: list[int] = field(default_factory=list)
    unheard: list[Send] = field(default_factory=list)


class Room:
    """One group, its coordination log, and everybody in it."""

    def __init__(self, partitions: Sequence[Partition] | int = 4, places: int = 3) -> None:
        self.partitions = [web(number) for number in range(partitions)] if isinstance(partitions, int) else partitions
        self.log: list[list[tuple[Record, float]]] = [[] for _ in range(places)]
        self.attendants: list[Attendant] = []
        self.now = 1000.0

    def enter(self, client_id: str, nonce: str = "1", **options: Any) -> Attendant:
        """A process starts: it reads what there is and begins."""
        view = GroupView(GROUP, len(self.log), INTERVAL)
        participant = Participant(MemberOptions(GROUP, client_id, INTERVAL, **options), nonce, view)
        participant.want(self.partitions, {})
        attendant = Attendant(participant, read=[0] * len(self.log))
        self.attendants.append(attendant)
        self.hear(attendant)
        participant.begin(self.now)
        return attendant

    def hear(self, attendant: Attendant) -> None:
        for place, records in enumerate(self.log):
            for offset in range(attendant.read[place], len(records)):
                record, appended_at = records[offset]
                attendant.participant.read(place, offset, record, self.now, appended_at)
            attendant.read[place] = len(records)

    def turn(self, attendant: Attendant) -> None:
        """Read, decide, speak; raises what ends the process."""
        self.hear(attendant)
        sends = attendant.participant.decide(self.now, self.now)
        if attendant.mute:
            attendant.unheard += sends
        else:
            self.append(sends)

    def append(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self.log[send.place].append((send.record, self.now))

    def say(self, record: Record) -> None:
        """Somebody from outside speaks in every coordination partition."""
        self.append([Send(place, record) for place in range(len(self.log))])

    def run(self, intervals: float, step_seconds: float = 1.0) -> None:
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

    def claim(self, partition: Partition) -> Claim:
        """The claim as somebody sees it who reads everything now."""
        view = GroupView(GROUP, len(self.log), INTERVAL)
        place = view.place_of(partition)
        for offset, (record, appended_at) in enumerate(self.log[place]):
            view.read(place, offset, record, self.now, appended_at)
        return view.claim(partition)

    def owners(self) -> list[str | None]:
        claims = [self.claim(partition) for partition in self.partitions]
        return [claim.owner.client_id if claim.held and claim.owner is not None else None for claim in claims]

    def held(self, attendant: Attendant) -> list[Partition]:
        return sorted(attendant.participant.held(self.now))

    def words(self, kind: type[Record]) -> list[Record]:
        return [record for records in self.log for record, _ in records if isinstance(record, kind)]
