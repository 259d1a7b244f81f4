"""The records of one member that are in flight: numbered, timed, and awaited until they are read back."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from penstock.claims.protocol.records import MemberId, Record
from penstock.errors import OutcomeUnknownError

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The offset of a record that we sent, and why the fold refused it (None: accepted)."""

    offset: int
    refusal: str | None


class Outbox:
    """What was sent and not read back yet, and the verdicts that a caller waits for."""

    def __init__(self, who: MemberId) -> None:
        self._who = who
        self._seq = 0
        self._sent: dict[int, tuple[Record, float]] = {}
        """By number: the record, and when it was sent."""
        self._asked: dict[int, Future[SendResult]] = {}

    def record_of(self, kind: type[R], **content: object) -> R:
        """A new record of this member, numbered."""
        self._seq += 1
        return kind(who=self._who, seq=self._seq, **content)  # type: ignore[arg-type]

    def ask(self, records: Iterable[Record]) -> list[Future[SendResult]]:
        """The verdicts on records, once they are read back."""
        futures: dict[int, Future[SendResult]] = {record.seq: Future() for record in records}
        self._asked |= futures
        return list(futures.values())

    def abandon(self) -> None:
        """Fail what callers wait for: nothing more is read back."""
        for future in self._asked.values():
            future.set_exception(OutcomeUnknownError("the membership ended before the record was read back"))
        self._asked.clear()

    def sending(self, records: list[Record], now: float) -> list[Record]:
        """Note when records are sent: leases count from then."""
        for record in records:
            self._sent[record.seq] = (record, now)
        return records

    def failed(self, record: Record) -> None:
        """A record could not be delivered: only reading on shows whether it is in the log."""
        self._sent.pop(record.seq, None)

    def read_back(self, offset: int, record: Record, refusal: str | None) -> float:
        """Note that a record of this member is in the log; returns when it was sent.

        One that we had stopped waiting for was sent too long ago to confirm anything.
        """
        future = self._asked.pop(record.seq, None)
        if future is not None:
            future.set_result(SendResult(offset, refusal))
        return self._sent.pop(record.seq, (record, float("-inf")))[1]

    def waiting(self, kind: type[R]) -> list[R]:
        """The records of one kind that are in flight."""
        return [record for record, _ in self._sent.values() if isinstance(record, kind)]

    def drop_lost(self, now: float, seconds_max: float) -> None:
        """Stop waiting for records that were not read back in time; they are still applied if they arrive."""
        for seq in [seq for seq, (_, sent_at) in self._sent.items() if now - sent_at > seconds_max]:
            del self._sent[seq]
            self._asked.pop(seq, None)
