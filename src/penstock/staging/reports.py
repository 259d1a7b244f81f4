"""The task reports of a batch, added up for the commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import InvariantError
from penstock.flow.columns.seen_types import NewFields, from_json, merged, rare_paths
from penstock.flow.stage import TaskFlow
from penstock.flow.write.manifest import Counts, EpochMarks, PartitionKey, Reason, StagedFile, merged_epoch_marks
from penstock.flow.write.quarantine import merged_reasons
from penstock.flow.write.report import UNROUTED, Share, TaskReport
from penstock.logs.log import EpochMark, Partition, Slice

TASK_STEPS = ("read", "decode", "write")
Shares = Mapping[PartitionKey, Mapping[str, Share]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of the Spark job of a batch: staged files and counts, by partition and type."""

    shares: Shares
    first_error: str
    reasons: tuple[Reason, ...]
    """Why records were quarantined, the most frequent first."""
    marks: EpochMarks
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of all tasks together, by step."""

    @property
    def total(self) -> Counts:
        return sum((share.counts for share in self.all_shares()), Counts())

    def all_shares(self) -> Iterator[Share]:
        return (share for named in self.shares.values() for share in named.values())

    def of(self, partition: Partition) -> Mapping[str, Share]:
        return self.shares.get((partition.topic, partition.number), {})

    def mark_of(self, partition: Partition) -> EpochMark | None:
        return max(self.marks.get((partition.topic, partition.number), ()), default=None)

    def new_fields(self, name: str = UNROUTED) -> NewFields:
        """The fields of a type's records that its columns lack."""
        return merged(from_json(named[name].new_fields) for named in self.shares.values() if name in named)

    def rare_fields(self, types: Iterable[str], share_min: float) -> frozenset[tuple[str, ...]]:
        """The type and the path of new fields that are in fewer records of a type than this share."""
        rare: set[tuple[str, ...]] = set()
        for name in types:
            records = sum(named[name].counts.read for named in self.shares.values() if name in named)
            rare |= {*rare_paths(self.new_fields(name), share_min * records, (name,))}
        return frozenset(rare)


def gather(reports: Sequence[TaskReport]) -> Gathered:
    """Add up the tasks' reports."""
    shares: dict[PartitionKey, dict[str, Share]] = {}
    for report in reports:
        for key, named in report.shares.items():
            into = shares.setdefault(key, {})
            for name, share in named.items():
                into[name] = into[name] + share if name in into else share
    return Gathered(
        shares=shares,
        first_error=next((report.first_error for report in reports if report.first_error), ""),
        reasons=merged_reasons(reason for report in reports for reason in report.reasons),
        marks=merged_epoch_marks(report.marks for report in reports),
        seconds={name: sum(report.seconds.get(name, 0.0) for report in reports) for name in TASK_STEPS},
    )


def check_conserved(flow: TaskFlow, gathered: Gathered) -> None:
    """Refuse counts that do not add up (I3); those of a type that failed are not checked."""
    for key, named in gathered.shares.items():
        for name, share in named.items():
            if flow.slices[key].writes(name) and not share.failed and not share.counts.conserved:
                place = f"{key[0]}/{key[1]} {name}".rstrip()
                raise InvariantError(f"counts of {place} in batch {flow.batch_id} do not add up: {share.counts}")


@dataclass(frozen=True, slots=True)
class Written:
    """A batch of one table, ready for its commit."""

    gathered: Gathered
    staged_at: float
    schema: pa.Schema

    @property
    def marks(self) -> EpochMarks:
        return self.gathered.marks

    @property
    def seconds(self) -> Mapping[str, float]:
        return self.gathered.seconds

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for share in self.gathered.all_shares() for file in share.files)

    def share_of(self, piece: Slice) -> Share:
        return self.gathered.of(piece.partition).get(UNROUTED, Share())
