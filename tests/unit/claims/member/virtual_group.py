"""A group in virtual time: members take turns over a log in memory, and time passes only in `run`."""

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
class VirtualProcess:
    """One process of the group; `asleep`: it neither reads nor sends; `cut_off`: it reads, and its records are lost."""

    participant: Participant
    asleep: bool = False
    cut_off: bool = False
    gone: bool = False
    error: PenstockError | None = None
    read: int = 0
    unsent: list[Record] = field(default_factory=list)


class VirtualGroup:
    """One group, its coordination log, and its processes."""

    def __init__(self, partitions: Sequence[Partition] | int = 4) -> None:
        self.partitions = [web(number) for number in range(partitions)] if isinstance(partitions, int) else partitions
        self.log: list[tuple[Record, float]] = []
        self.processes: list[VirtualProcess] = []
        self.now = 1000.0
        self.broker_skew = 0.0
        self.epoch = 1

    def start(
        self,
        client_id: str,
        nonce: str = "1",
        *,
        requested: Sequence[Partition] | None = None,
        heartbeat_seconds: float = INTERVAL,
        **options: Any,
    ) -> VirtualProcess:
        """Start a process: it reads the log and begins."""
        member = MemberOptions(GROUP, client_id, heartbeat_seconds, **options)
        participant = Participant(member, nonce, GroupView(GROUP, heartbeat_seconds))
        participant.request(self.partitions if requested is None else requested, {})
        process = VirtualProcess(participant)
        self.processes.append(process)
        self.read_log(process)
        participant.begin(self.now)
        return process

    def read_log(self, process: VirtualProcess) -> None:
        for offset in range(process.read, len(self.log)):
            record, appended_at = self.log[offset]
            process.participant.read(offset, record, self.now, appended_at, self.epoch)
        process.read = len(self.log)

    def step(self, process: VirtualProcess) -> None:
        """Read, decide, send; raises what ends the process."""
        self.read_log(process)
        records = process.participant.decide(self.now)
        if process.cut_off:
            process.unsent += records
        else:
            self.append(records)

    def append(self, records: Sequence[Record]) -> None:
        self.log += [(record, self.now + self.broker_skew) for record in records]

    def append_record(self, record: Record) -> None:
        """Append a record of a process outside the group."""
        self.append([record])

    def run(self, intervals: float, step_seconds: float = 0.5) -> None:
        """Let time pass; a process that ends with an error is out."""
        end = self.now + intervals * INTERVAL
        while self.now < end:
            self.now += step_seconds
            for process in self.processes:
                if process.asleep or process.gone:
                    continue
                try:
                    self.step(process)
                except PenstockError as error:
                    process.error, process.gone = error, True

    def leave(self, process: VirtualProcess) -> None:
        self.append(process.participant.leave(self.now))
        process.gone = True

    # state

    def view(self) -> GroupView:
        """The view of a reader that reads everything now."""
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

    def held(self, process: VirtualProcess) -> list[Partition]:
        return sorted(process.participant.held(self.now))

    def records_of(self, kind: type[R]) -> list[R]:
        return [record for record, _ in self.log if isinstance(record, kind)]
