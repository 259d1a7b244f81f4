"""The records of one member that are in flight: numbered, timed, and awaited until they are read back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from penstock.claims.protocol.records import Record, Who

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The offset of a record that we sent, and why the fold refused it (None: accepted)."""

    offset: int
    refusal: str | None


class Outbox:
    """What was sent and not read back yet, and the verdicts that a caller waits for."""

    def __init__(self, who: Who) -> None:
        self._who = who
        self._seq = 0
        self._sent: dict[int, tuple[Record, float]] = {}
        """By number: the record, and when it was sent."""
        self._asked: dict[int, Verdict | None] = {}

    def record_of(self, kind: type[R], **content: object) -> R:
        """A new record of this member, numbered."""
        self._seq += 1
        return kind(who=self._who, seq=self._seq, **content)  # type: ignore[arg-type]

    def ask(self, records: Iterable[Record]) -> None:
        """Keep the verdicts on records until `stop_asking`."""
        self._asked |= dict.fromkeys(each.seq for each in records)

    def unread(self, records: Iterable[Record]) -> int:
        """How many of the records are not read back yet."""
        return sum(self._asked[each.seq] is None for each in records)

    def verdicts(self, records: Iterable[Record]) -> list[Verdict]:
        """The verdicts on those of the records that are read back."""
        return [each for record in records if (each := self._asked[record.seq]) is not None]

    def stop_asking(self, records: Iterable[Record]) -> None:
        for record in records:
            self._asked.pop(record.seq, None)

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
        if record.seq in self._asked:
            self._asked[record.seq] = Verdict(offset, refusal)
        return self._sent.pop(record.seq, (record, float("-inf")))[1]

    def waiting(self, kind: type[R]) -> list[R]:
        """The records of one kind that are in flight."""
        return [record for record, _ in self._sent.values() if isinstance(record, kind)]

    def drop_lost(self, now: float, seconds_max: float) -> None:
        """Stop waiting for records that were not read back in time; they are still applied if they arrive."""
        self._sent = {seq: sent for seq, sent in self._sent.items() if now - sent[1] <= seconds_max}
