"""A toy kind of table: numbered JSON files, each a commit with its rows and positions. Nothing in `src` knows of it.

It shows what a kind has to define: a spec, which is its section of the job file, a table, a writer and the kind itself.
Where a real kind has Spark tasks, this one reads the log in the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, assert_never

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError, UserError
from penstock.flow.write.manifest import Counts, EpochMarks
from penstock.job.reader import SpecReader
from penstock.job.spec import JobSpec, TableSpec
from penstock.lake.compaction import Progress
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import FencePart, Outcome, Proposal, ProposalPart, SlicePart, StartPart, check
from penstock.lake.reports import CompactReport, VacuumReport
from penstock.lake.state import DeltaPartition, DeltaState
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import NO_TABLE, Check, Proof
from penstock.proof.subject import Depth
from penstock.quarantine.replay import Target
from penstock.reporting.metrics import Meter, Metric
from penstock.reporting.model import DayAnswer, JobStatus, PartitionStatus, Section
from penstock.tables.kind import (
    Chore,
    CompactRequest,
    Landed,
    ReadRequest,
    RebuildReport,
    RecordRows,
    SchemaChanged,
    VacuumRequest,
    View,
)
from penstock.tables.rows import complete_rows

Row = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class ToySpec(TableSpec):
    """Its part of the job file, `table.toy`, has no keys of its own."""

    kind = "toy"

    def complete(self, job: JobSpec[Self], reader: SpecReader) -> JobSpec[Self]:
        return complete_rows(job, reader)[0]


@dataclass(frozen=True, slots=True)
class ToyStaged:
    rows: Mapping[Partition, list[Row]]
    staged_at: float
    marks: EpochMarks = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


class ToyTable:
    """Commits are files that only one process can create: the next number is the compare and swap."""

    divisible = True

    def __init__(self, job: JobSpec, environment: Environment) -> None:
        self.job = job
        self.folder = Path(job.table.path)
        self.environment = environment

    # the commit log

    def commits(self) -> list[dict[str, Any]]:
        """From the newest merged one on, which holds those before it."""
        commits = [json.loads(item.read_text()) for item in sorted(self.folder.glob("*.json"))]
        merged = [index for index, commit in enumerate(commits) if commit["kind"] == "merged"]
        return commits[merged[-1] :] if merged else commits

    def rows(self) -> list[Row]:
        return [(row[0], row[1], row[2], row[3]) for commit in self.commits() for row in commit["rows"]]

    def append(self, commit: dict[str, Any]) -> bool:
        """Whether the commit is the next one; another may have been faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with (self.folder / f"{commit['version']:08}.json").open("x") as file:
                json.dump(commit, file)
        except FileExistsError:
            return False
        return True

    # what every table does

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        state = DeltaState(0, {}, {})
        for commit in self.commits():
            for part in map(_decoded, commit["parts"]):
                state = _after(state, part, commit["version"])
        fingerprints = {partition.topic: None for partition in partitions} | dict(state.fingerprints)
        return replace(state, fingerprints=fingerprints)

    def commit(self, proposal: Proposal) -> Outcome:
        return self._committed(proposal, [])

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: ToyStaged) -> Landed:
        parts = tuple(
            SlicePart(item, tokens[item.partition], _counts(staged.rows[item.partition])) for item in batch.slices
        )
        rows = [row for piece in batch.slices for row in staged.rows[piece.partition]]
        outcome = self._committed(Proposal(self.job.name, batch.id, parts), rows)
        self.environment.at_step("committed")
        landed = {part.partition for part in outcome.accepted}
        return Landed(
            outcome, _counts([row for partition in landed for row in staged.rows[partition]]), file_sizes=(1,)
        )

    def _committed(self, proposal: Proposal, rows: list[Row]) -> Outcome:
        while True:
            state = self.state([part.partition for part in proposal.parts])
            checked = check(proposal, state)
            if not checked.accepted:
                return Outcome(None, (), checked.refused)
            taken = {(part.partition.topic, part.partition.number) for part in checked.accepted}
            kept = [row for row in rows if (row[0], row[1]) in taken]
            parts = [_encoded(part) for part in checked.accepted]
            self.environment.at_step("checked")
            if self.append({"version": state.version + 1, "kind": "commit", "parts": parts, "rows": kept}):
                return Outcome(state.version + 1, checked.accepted, checked.refused)

    def own(self, tokens: Mapping[Partition, int]) -> None:
        """There is nothing to reserve."""

    def finish_pending(self, partitions: Iterable[Partition]) -> None:
        """A commit leaves nothing to do."""

    def shown_position(self, partition: Partition) -> int:
        return self.state([partition]).of(partition).position or 0

    def chores(self, view: View) -> Sequence[Chore]:
        return ()

    def perform(self, chore: Chore) -> None:
        raise InvariantError(chore.name)

    def lags(self, partitions: Iterable[Partition]) -> bool:
        return False

    def record_bytes(self) -> float | None:
        return None

    def close(self) -> None:
        pass


class ToyWriter:
    """Reads the slices in the driver."""

    def __init__(self, table: ToyTable, log: Log) -> None:
        self.table = table
        self._log = log

    def stage(self, batch: Batch) -> ToyStaged | SchemaChanged:
        rows = {
            piece.partition: [
                row
                for records in self._log.records(piece.partition, piece.read_from, piece.end)
                for row in _rows(records)
            ]
            for piece in batch.slices
        }
        return ToyStaged(rows, self.table.environment.now())

    def replay_target(self) -> Target[Any]:
        raise UserError("a toy has no quarantine")


class ToyKind:
    """What the rest of the program sees."""

    name = ToySpec.kind
    spec = ToySpec
    steps = ("toy_merged",)
    metrics: tuple[Metric, ...] = ()

    def meter(self) -> Meter:
        return lambda event: ()

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> ToyWriter:
        return ToyWriter(ToyTable(job, environment), log)

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        table = ToyTable(job, Environment())
        if not table.commits():
            return NO_TABLE
        log = open_log(job)
        partitions = log.partitions()
        state = table.state(partitions)
        states = {partition: state.of(partition) for partition in partitions}
        return Proof(state.version, (_rows_once(table.rows(), states, log),))

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus:
        table = ToyTable(job, Environment())
        commits = table.commits()
        log = open_log(job)
        bounds = log.bounds(log.partitions())
        state = table.state(bounds)
        return JobStatus(
            job.name,
            job.table.path,
            len(commits) or None,
            tuple(
                PartitionStatus(partition, current.position, current.token, current.totals, held.first, held.end)
                for partition, held in bounds.items()
                if (current := state.of(partition)) is not None
            ),
            committed_at=datetime.fromtimestamp(now(), UTC),
            sections=(Section("files", len(commits), lines=(f"files of the toy: {len(commits)}",)),),
        )

    def data_tables(self, job: JobSpec) -> Mapping[str, DeltaLog]:
        return {}

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        raise UserError(f"{job.name} has no days")

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport:
        """Put all commits into the newest file; a concurrent reader sees each row once."""
        table = ToyTable(job, environment)
        commits = table.commits()
        if len(commits) < 2:
            return CompactReport()
        parts = [part for commit in commits for part in commit["parts"]]
        merged = {**commits[-1], "kind": "merged", "rows": table.rows(), "parts": parts}
        (table.folder / "staged").write_text(json.dumps(merged))
        (table.folder / "staged").rename(table.folder / f"{merged['version']:08}.json")
        environment.at_step("toy_merged")
        for item in sorted(table.folder.glob("*.json")):
            if int(item.stem) < merged["version"]:
                item.unlink()
        return CompactReport(files_removed=len(commits), files_added=1, rows=len(merged["rows"]))

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        return VacuumReport((), {})

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        raise UserError("a toy table is read without Spark")

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        return RecordRows()

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        raise UserError("a toy is its own commit log")

    def listings(self, job: JobSpec, environment: Environment) -> None:
        """A toy has no quarantine."""


def _rows(batch: pa.RecordBatch) -> list[Row]:
    return [
        (row["topic"], row["partition"], row["offset"], (row["value"] or b"").decode()) for row in batch.to_pylist()
    ]


def _counts(rows: Sequence[Row]) -> Counts:
    return Counts(read=len(rows), written=len(rows))


def _rows_once(rows: Sequence[Row], states: Mapping[Partition, DeltaPartition], log: Log) -> Check:
    """Every record of the log between origin and position is one row."""
    wrong = []
    for partition, state in states.items():
        offsets = sorted(row[2] for row in rows if (row[0], row[1]) == (partition.topic, partition.number))
        expected = log.offsets(partition, state.origin or 0, state.position or 0, lambda _: None).tolist()
        wrong += [str(partition)] if offsets != expected else []
    return Check("rows", ", ".join(wrong) or f"{len(rows)} rows", bool(wrong))


def _encoded(part: ProposalPart) -> dict[str, Any]:
    place = {"topic": part.partition.topic, "topic_id": part.partition.topic_id, "number": part.partition.number}
    match part:
        case StartPart():
            return {**place, "token": part.token, "start": part.offset}
        case FencePart():
            return {**place, "token": part.token}
        case SlicePart():
            piece, counts = part.piece, part.counts
            return {**place, "token": part.token, "slice": [piece.start, piece.read_from, piece.end, counts.read]}
        case _:
            assert_never(part)


def _decoded(record: Mapping[str, Any]) -> ProposalPart:
    partition = Partition(record["topic"], record["topic_id"], record["number"])
    token = record["token"]
    if "start" in record:
        return StartPart(partition, record["start"], token)
    if "slice" in record:
        start, read_from, end, read = record["slice"]
        return SlicePart(Slice(partition, start, end, read_from), token, Counts(read=read, written=read))
    return FencePart(partition, token)


def _after(state: DeltaState, part: ProposalPart, version: int) -> DeltaState:
    before = state.of(part.partition)
    fingerprints = dict(state.fingerprints)
    match part:
        case StartPart():
            after = DeltaPartition(part.offset, part.offset, part.token)
            fingerprints[part.partition.topic] = topic_fingerprint(part.partition.topic_id)
        case FencePart():
            after = replace(before, token=part.token)
        case SlicePart():
            totals = before.totals + part.totals
            after = replace(before, position=part.piece.end, token=part.token, totals=totals)
        case _:
            assert_never(part)
    return DeltaState(version, {**state.partitions, part.partition: after}, fingerprints)
