"""What a task has counted so far, by partition and type; at the end it becomes the task's report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.columns.seen_types import NewFields, add_fields, to_json
from penstock.flow.rows import BadRows
from penstock.flow.stage import TaskFlow
from penstock.flow.write.manifest import Counts, Marks, PartitionKey, Reason, StagedFile, gathered_marks
from penstock.flow.write.offset_ranges import ranges_of
from penstock.flow.write.quarantine import merged_reasons, quarantine_rows, reasons_of, told_error
from penstock.flow.write.report import Share, TaskReport
from penstock.logs.log import EpochMark


class TypeKey(NamedTuple):
    """A type, or `UNROUTED`, of a partition."""

    partition: PartitionKey
    type: str


@dataclass(slots=True)
class Staged:
    """The complete files of one type of a partition."""

    files: list[StagedFile] = field(default_factory=list)
    quarantine_files: list[StagedFile] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """Of one type of a partition; grows with every batch and becomes a `Share` at the end."""

    counts: Counts = field(default_factory=Counts)
    first: int | None = None
    event_ms_max: int | None = None
    days: Counter[str] = field(default_factory=Counter)
    new_fields: NewFields = field(default_factory=dict)
    replayed: set[int] = field(default_factory=set)
    sums: Counter[str] = field(default_factory=Counter)

    def count(self, **counts: int) -> None:
        """Add to `counts`, by name: every record that was read must be counted again for what became of it."""
        self.counts += Counts(**counts)

    def read(self, offsets: pa.Array) -> None:
        """Count records with their place in the log."""
        if not len(offsets):
            return
        least = pc.min(offsets).as_py()
        self.first = least if self.first is None else min(self.first, least)
        self.count(read=len(offsets))

    def add(self, **sums: int) -> None:
        """Add to further counts, by name."""
        self.sums.update(sums)

    def seen(self, event_ms: int) -> None:
        self.event_ms_max = event_ms if self.event_ms_max is None else max(self.event_ms_max, event_ms)

    def note_fields(self, fields: NewFields) -> None:
        add_fields(self.new_fields, fields)

    def share(self, staged: Staged) -> Share:
        return Share(
            counts=self.counts,
            first=self.first,
            event_ms_max=self.event_ms_max,
            days=dict(sorted(self.days.items())),
            files=tuple(staged.files),
            quarantine_files=tuple(staged.quarantine_files),
            new_fields=to_json(self.new_fields),
            replayed=ranges_of(self.replayed),
            sums={name: number for name, number in self.sums.items() if number},
        )

    def failed_share(self, reason: str) -> Share:
        """Of a type that could not be written: its records are only counted, for they are read again."""
        counts = Counts(read=self.counts.read, skipped=self.counts.skipped)
        # It may quote a record, and with it what is no character.
        printable = reason.encode("utf-8", "backslashreplace").decode()
        return Share(counts=counts, first=self.first, failed=printable)


class Tallies:
    """The tallies of a task, and what it tells of the task as a whole."""

    def __init__(self, flow: TaskFlow) -> None:
        self._flow = flow
        self._tallies: defaultdict[TypeKey, Tally] = defaultdict(Tally)
        self._first_error = ""
        self._reasons: tuple[Reason, ...] = ()
        self._marks: list[Marks] = []

    def of(self, type_key: TypeKey) -> Tally:
        return self._tallies[type_key]

    def quarantined(self, type_key: TypeKey, bad: BadRows) -> pa.RecordBatch | None:
        """Count bad rows and why they are; returns them as the quarantine's files hold them, if they go there."""
        if not len(bad.errors):
            return None
        self.of(type_key).count(quarantined=len(bad.errors))
        self._reasons = merged_reasons([*self._reasons, *reasons_of(type_key.partition, bad)])
        self._first_error = self._first_error or told_error(type_key.partition, bad, 0)
        if self._flow.dry or self._flow.replay_run is not None:
            return None
        topic_id = self._flow.slices[type_key.partition].topic_id
        return quarantine_rows(bad, self._flow.job, topic_id, self._flow.batch_id)

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._marks.append({key: (mark,)})

    def report(
        self,
        staged: Mapping[TypeKey, Staged],
        failed: Mapping[TypeKey, str],
        refused: Mapping[PartitionKey, Mapping[int, str]] | None = None,
    ) -> TaskReport:
        """What the task tells once its files are complete; a type that failed has none."""
        shares: dict[PartitionKey, dict[str, Share]] = {}
        for type_key, tally in self._tallies.items():
            reason = failed.get(type_key)
            share = tally.share(staged.get(type_key, Staged())) if reason is None else tally.failed_share(reason)
            shares.setdefault(type_key.partition, {})[type_key.type] = share
        return TaskReport(shares, self._first_error, self._reasons, gathered_marks(self._marks), refused or {})
