"""What a verification is asked for, what a kind of table gives to be checked, and to which partition a row belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import polars as pl
import pyarrow as pa

from penstock.flow.stage import Stage
from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.report import decode_report
from penstock.job.place import place_columns
from penstock.job.spec import JobSpec
from penstock.logs.log import Partition, Slice
from penstock.proof.files import DataFile, RowSource, read_rows
from penstock.proof.findings import VALUES_OF_SQL, Unproven, Violation
from penstock.proof.invariants import CommittedSlice, Slices, States, spans
from penstock.proof.log import UNKNOWN_TOPIC, TopicIncarnations

SAMPLE_RECORDS = 10_000
OFFSETS_PER_PASS_MAX = 8_000_000

Progress = Callable[[str, int, int], None]
"""Receives what is read, and how many of how many are done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which records have their values compared: about so many, drawn with the seed, or all of them (None)."""

    records: int | None = SAMPLE_RECORDS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """How far a verification goes, and in which steps."""

    deep: bool = True
    """Whether the records of the log are read."""
    progress: Progress | None = None
    offsets_per_pass_max: int = OFFSETS_PER_PASS_MAX
    values: Sample | None = None
    """Which records are decoded again to compare values; None: none."""
    published: bool = False
    """Whether the topic is read that the table is published to."""

    def tell(self, step: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


class NoPartition(Enum):
    """Why rows belong to no partition of the job."""

    OTHER_JOB = "of another job on the same table"
    UNKNOWN = "of a partition that the job never read"
    NO_PLACE = "without a place, or compacted together with rows of an earlier incarnation of their topic"


Rewrite = Callable[[Slice, str, str], Stage]
"""The stage for a slice that writes below the first folder, and bad records below the second."""


def staged_files(stage: Stage, records: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, StagedFile]]:
    """Run a stage here: the files that it writes, each with its type."""
    for report in stage(records):
        for shares in decode_report(report.column(0)[0].as_py()).shares.values():
            yield from ((name, file) for name, share in shares.items() for file in share.files)


@dataclass(frozen=True)
class Subject:
    """One version of the table or tables of a job, as its kind gives it to be checked."""

    job: JobSpec
    version: int
    states: States
    slices: Slices
    incarnations: TopicIncarnations
    quarantine: RowSource
    pending: int = 0
    """Rows of the quarantine that a commit listed and that are not appended yet (RULES Q1)."""
    replay_unfinished: bool = False
    sources: tuple[RowSource, ...] = ()
    """Every table with a row per record; none of a kind whose rows are not records."""
    rows_written: Mapping[str, int] = field(default_factory=dict)
    """How many rows each source has by its own totals."""
    rows_unplaced: int = 0
    """How many rows were deleted with what told their places."""
    faults: tuple[str, ...] = ()
    """What else the kind found wrong with the rows; `violations` names their places, `warnings` is not wrong."""
    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()
    rewrite: Rewrite | Unproven = VALUES_OF_SQL
    """How to write rows again to compare values, or why that cannot be done."""
    every_record_has_a_row: bool = True
    """Whether a record that is not in quarantine must give a row when it is written again."""
    quarantined_ahead: int = 0
    """Quarantined rows of batches that are half landed: the totals do not count them yet."""
    job_slices: tuple[States, Slices] | None = None
    """States and slices of the job log, where other logs count what became of the records."""

    @cached_property
    def spans(self) -> Mapping[Partition, tuple[CommittedSlice, ...]]:
        return {place: spans(place, state, self.slices.get(place, ())) for place, state in self.states.items()}

    @property
    def quarantine_faults(self) -> list[str]:
        """What is wrong with the files of the quarantine, or with the number of its rows."""
        rows, faults = self.quarantine.rows, list(self.quarantine.faults)
        counted = sum(state.totals.quarantined - state.totals.replayed for state in self.states.values())
        counted += self.quarantined_ahead
        if rows != counted and not self.replay_unfinished:
            faults.append(f"the quarantine has {rows} rows, {counted} are counted")
        return faults

    def quarantined_offsets(self) -> dict[Partition, list[int]]:
        """The offsets of the quarantined records of each partition."""
        offsets: dict[Partition, list[int]] = {partition: [] for partition in self.states}
        for file in self.quarantine.files:
            for places, _ in read_rows(self.quarantine, file):
                for partition, rows in self.rows_by_partition(file, places):
                    if isinstance(partition, Partition):
                        offsets[partition] += rows["offset"].to_list()
        return offsets

    @property
    def place_remedy(self) -> str:
        """What lets rows be identified that do not carry their place."""
        kept = dict(place_columns(self.job.columns, self.job.sql.select if self.job.sql is not None else ()))
        adds = {"partition", "offset"} <= kept.keys()
        return "run the job: it adds the columns" if adds else "remove `place: none` before the first run of the job"

    @cached_property
    def _partitions(self) -> Mapping[tuple[str, int], Partition]:
        """By topic id and number."""
        return {(partition.topic_id, partition.number): partition for partition in self.states}

    @cached_property
    def _topic_ids(self) -> Mapping[str, frozenset[str]]:
        topics = {partition.topic for partition in self.states}
        return {name: frozenset(place.topic_id for place in self.states if place.topic == name) for name in topics}

    def find(self, topic_id: str | None, topic: str | None, number: int | None) -> Partition | NoPartition:
        """The partition of rows that tell so much of themselves; the name of a staged file tells the topic id."""
        others = self.incarnations.other_ids
        if topic_id is None and topic is None and len(self._topic_ids) == 1 and not others:
            [topic] = self._topic_ids
        if topic_id is None and topic is not None and topic in self._topic_ids:
            # Any topic may have had an incarnation whose name is forgotten.
            ids = self._topic_ids[topic] | self._topic_ids.get(UNKNOWN_TOPIC, frozenset())
            if len(ids) > 1:
                return NoPartition.NO_PLACE
            [topic_id] = ids
        if number is None or (topic_id is None and topic is None):
            return NoPartition.NO_PLACE
        partition = self._partitions.get((topic_id or "", number))
        if partition is not None and (topic is None or partition.topic in (topic, UNKNOWN_TOPIC)):
            return partition
        other_job = topic_id in others if topic_id is not None else bool(others)
        return NoPartition.OTHER_JOB if other_job else NoPartition.UNKNOWN

    def rows_by_partition(
        self, file: DataFile, places: pl.DataFrame
    ) -> Iterator[tuple[Partition | NoPartition, pl.DataFrame]]:
        """The rows of a file by partition; those without an offset have no place either."""
        keys = [name for name in places.columns if name in ("topic", "topic_id", "partition")]
        for rows in places.partition_by(keys, maintain_order=True):
            values = rows.row(0, named=True)
            partition = self.find(values.get("topic_id") or file.topic_id, values.get("topic"), values["partition"])
            placed = rows if partition is NoPartition.NO_PLACE else rows.drop_nulls("offset")
            if len(placed):
                yield partition, placed
            if len(placed) < len(rows):
                yield NoPartition.NO_PLACE, rows.filter(pl.col("offset").is_null())
