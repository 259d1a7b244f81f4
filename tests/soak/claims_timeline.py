"""Who owned what, and when, by the coordination log: read after the fact, with the broker's own append times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.claims.member.journal import JournalEntry
from penstock.claims.protocol.fold import apply
from penstock.claims.protocol.records import ForgettingMember, Record
from penstock.claims.protocol.state import GroupState
from penstock.logs.log import Partition


@dataclass(frozen=True, slots=True)
class Change:
    """From this time on a partition belonged to this client id, or to none; `by` is the kind of record that did it."""

    at: float
    client_id: str | None
    by: type[Record]


@dataclass(slots=True)
class Timeline:
    """The changes of owners of each partition, and which member was declared gone when."""

    changes: dict[Partition, list[Change]] = field(default_factory=lambda: defaultdict(list))
    forgotten: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Iterable[JournalEntry]) -> Timeline:
        """Fold a log from its first record on."""
        timeline, group = cls(), GroupState()
        for entry in entries:
            before = dict(group.claims)
            if entry.record is not None and apply(group, entry.offset, entry.record, entry.appended_at) is None:
                timeline._note(entry.appended_at, entry.record, before, group)
        return timeline

    def _note(self, at: float, record: Record, before: Mapping[Partition, object], group: GroupState) -> None:
        for partition, claim in group.claims.items():
            if before.get(partition) is claim:
                continue
            owner = claim.owner.client_id if claim.held and claim.owner is not None else None
            changes = self.changes[partition]
            if (changes[-1].client_id if changes else None) != owner:
                changes.append(Change(at, owner, type(record)))
        if isinstance(record, ForgettingMember) and record.client_id in group.members:
            self.forgotten.append((at, record.client_id))

    def owner(self, partition: Partition, at: float) -> str | None:
        """Whose a partition was at that time."""
        return next((change.client_id for change in reversed(self.changes[partition]) if change.at <= at), None)

    def unowned_seconds(self, client_id: str, killed_at: float) -> list[float]:
        """How long each partition of a killed process had no owner, up to the next one."""
        return [
            next(
                (change.at for change in changes if change.at > killed_at and change.client_id is not None),
                float("inf"),
            )
            - killed_at
            for partition, changes in self.changes.items()
            if self.owner(partition, killed_at) == client_id
        ]

    def handovers(self) -> Iterator[tuple[float, float]]:
        """When a live owner gave a partition away, and for how long it then had no owner."""
        for changes in self.changes.values():
            for one, other in pairwise(changes):
                if one.client_id is None and one.by is not ForgettingMember:
                    yield one.at, other.at - one.at
