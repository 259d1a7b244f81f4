"""What a task has counted so far, by partition and type; at the end it becomes the task's report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from penstock.flow.columns.seen_types import NewFields, to_json
from penstock.flow.rows import BadRows
from penstock.flow.stage import TaskFlow
from penstock.flow.write.manifest import Counts, EpochMarks, PartitionKey, Reason, merged_epoch_marks
from penstock.flow.write.quarantine import error_text, merged_reasons, quarantine_rows, reasons_of
from penstock.flow.write.report import Share, Stopwatch, TaskReport
from penstock.logs.log import EpochMark


class TypeKey(NamedTuple):
    """A type, or `UNROUTED`, of a partition."""

    partition: PartitionKey
    type: str


class Tallies:
    """The shares of a task as they grow with every batch, and what it reports of the task as a whole.

    Every record that was read must be counted again for what became of it.
    """

    def __init__(self, flow: TaskFlow) -> None:
        self._flow = flow
        self._shares: defaultdict[TypeKey, Share] = defaultdict(Share)
        self._first_error = ""
        self._reasons: tuple[Reason, ...] = ()
        self._marks: list[EpochMarks] = []
        self.writing = Stopwatch()

    def add(self, type_key: TypeKey, share: Share) -> None:
        self._shares[type_key] += share

    def add_fields(self, type_key: TypeKey, fields: NewFields) -> None:
        if fields:
            self.add(type_key, Share(new_fields=to_json(fields)))

    def quarantined(self, type_key: TypeKey, bad: BadRows) -> pa.RecordBatch | None:
        """Count bad rows and why they are; returns them as the quarantine's files hold them, if they go there."""
        if not len(bad.errors):
            return None
        self.add(type_key, Share(Counts(quarantined=len(bad.errors))))
        self._reasons = merged_reasons([*self._reasons, *reasons_of(type_key.partition, bad)])
        self._first_error = self._first_error or error_text(type_key.partition, bad, 0)
        if self._flow.dry or self._flow.replay_run is not None:
            return None
        topic_id = self._flow.slices[type_key.partition].topic_id
        return quarantine_rows(bad, self._flow.job, topic_id, self._flow.batch_id)

    def note_mark(self, key: PartitionKey, mark: EpochMark) -> None:
        self._marks.append({key: (mark,)})

    def report(
        self,
        staged: Mapping[TypeKey, Share],
        failed: Mapping[TypeKey, str],
        refused: Mapping[PartitionKey, Mapping[int, str]] | None = None,
    ) -> TaskReport:
        """What the task reports once its files are complete; a type that failed has none."""
        shares: dict[PartitionKey, dict[str, Share]] = {}
        for type_key, counted in self._shares.items():
            reason = failed.get(type_key)
            share = counted + staged.get(type_key, Share()) if reason is None else counted.as_failed(reason)
            shares.setdefault(type_key.partition, {})[type_key.type] = share
        return TaskReport(
            shares,
            self._first_error,
            self._reasons,
            merged_epoch_marks(self._marks),
            refused or {},
            {"write": self.writing.seconds},
        )
