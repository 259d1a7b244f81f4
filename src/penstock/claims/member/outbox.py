"""The records of one member that are in flight: numbered, timed, and awaited until they are read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from penstock.claims.member.membership import Send, Verdict
from penstock.claims.protocol.records import Record, Who

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class _Sent:
    record: Record
    sent_at: float


class Outbox:
    """What was sent and not read back yet, and the verdicts that a caller waits for."""

    def __init__(self, group: str, who: Who) -> None:
        self._group = group
        self._who = who
        self._seq = 0
        self._sent: dict[int, _Sent] = {}
        self._asked: dict[int, Verdict | None] = {}

    def record_of(self, kind: type[Record], **content: object) -> Record:
        """A new record of this member, numbered."""
        self._seq += 1
        return kind(group=self._group, who=self._who, seq=self._seq, **content)  # type: ignore[arg-type]

    def ask(self, record: Record) -> None:
        """Keep the verdict on a record until `stop_asking`."""
        self._asked[record.seq] = None

    def verdict(self, record: Record) -> Verdict | None:
        """The verdict on a record that was asked about; None until it is read back."""
        return self._asked[record.seq]

    def stop_asking(self, record: Record) -> None:
        self._asked.pop(record.seq, None)

    def sending(self, sends: list[Send], now: float) -> list[Send]:
        """Note when records are sent: leases count from then."""
        for send in sends:
            self._sent[send.record.seq] = _Sent(send.record, now)
        return sends

    def failed(self, record: Record) -> None:
        """A record could not be delivered: only reading on shows whether it is in the log."""
        self._sent.pop(record.seq, None)

    def read_back(self, offset: int, record: Record, refusal: str | None) -> float:
        """Note that a record of this member is in the log; returns when it was sent.

        One that we had stopped waiting for was sent too long ago to confirm anything.
        """
        if record.seq in self._asked:
            self._asked[record.seq] = Verdict(offset, refusal)
        sent = self._sent.pop(record.seq, None)
        return float("-inf") if sent is None else sent.sent_at

    def waiting(self, kind: type[R]) -> list[R]:
        """The records of one kind that are in flight."""
        return [each.record for each in self._sent.values() if isinstance(each.record, kind)]

    def drop_lost(self, now: float, seconds_max: float) -> None:
        """Stop waiting for records that were not read back in time; they are still applied if they arrive."""
        for seq in [seq for seq, sent in self._sent.items() if now - sent.sent_at > seconds_max]:
            del self._sent[seq]
