"""The interface between a kind of table and everything else.

A package below `tables/` implements it for its kind; `tables.registry` is the only place that names them all. Engine,
`verify`, `status` and the commands use a `Kind`, a `Table` and a `Writer`, and do not depend on which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import UserError
from penstock.events import Output
from penstock.flow.write.manifest import Counts, EpochMarks, StagedFile
from penstock.job.spec import JobSpec, TableSpec
from penstock.lake.compaction import EVERYTHING, CompactionLimits, Progress
from penstock.lake.delta.table import DeltaLog
from penstock.lake.proposal import Outcome, Proposal
from penstock.lake.reports import CompactReport, Report, VacuumReport
from penstock.lake.state import DeltaState
from penstock.logs.log import Batch, Bounds, Log, Partition, Slice
from penstock.logs.registry import OpenLog
from penstock.proof.findings import Proof
from penstock.proof.subject import Depth
from penstock.quarantine.replay import Target
from penstock.quarantine.table import Listings
from penstock.reporting.metrics import Meter, Metric
from penstock.reporting.model import DayAnswer, JobStatus


@dataclass(frozen=True, slots=True)
class View:
    """What a round has read before it plans: the partitions of this process, their bounds in the log, and the time."""

    tokens: Mapping[Partition, int]
    bounds: Mapping[Partition, Bounds]
    now: float
    record_bytes: float
    """The size of a row in its file, by earlier commits."""
    flush_now: bool = False
    """A bounded run, or a shutdown: all unread records are due."""
    idle: bool = False
    """Nothing new is due."""


class Chore(Protocol):
    """Work of a table that is not a new batch: catching up, closing, publishing, event times of idle partitions."""

    @property
    def name(self) -> str: ...

    @property
    def batch(self) -> Batch | None:
        """A batch that is written and committed like a new one; None: the table performs the chore by itself."""


class Staged(Protocol):
    """What the write step passes to the commit."""

    @property
    def marks(self) -> EpochMarks:
        """The last records that were read, with the epochs of their leaders."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long its tasks together read, decoded and wrote."""

    @property
    def staged_at(self) -> float:
        """When the write step began."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of committing a staged batch."""

    outcome: Outcome
    counts: Counts = field(default_factory=Counts)
    """The counts of the accepted slices."""
    file_sizes: tuple[int, ...] = ()
    size_bytes: int = 0
    """Of the rows that are new: a file may have others too."""
    outputs: Mapping[str, Output] = field(default_factory=dict)
    """By type; of a table without types under an empty name."""
    catch_up: bool = False
    """Whether it was read before: a chore's batch."""


def output(schema: pa.Schema, files: Sequence[StagedFile]) -> Output:
    """What these files add to a table with this schema."""
    columns = {column.name: str(column.type) for column in schema}
    return Output(columns, sum(file.rows for file in files), sum(file.size_bytes for file in files), len(files))


S = TypeVar("S", bound=Staged)
S_contra = TypeVar("S_contra", bound=Staged, contravariant=True)


class Table(Protocol[S_contra]):
    """A table under one job: it keeps the positions, in the same atomic commit as the data."""

    @property
    def divisible(self) -> bool:
        """Whether one partition's slice can land without the others'; else a batch lands whole or not at all."""

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        """Positions, tokens and totals, all as of the newest version."""

    def commit(self, proposal: Proposal) -> Outcome:
        """Commit starts and fences, without rows: the ownership handshake."""

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: S_contra) -> Landed:
        """Make rows visible and move positions in one commit; a refused partition has another owner."""

    def own(self, tokens: Mapping[Partition, int]) -> None:
        """Reserve what this process needs for these partitions before the first file is written."""

    def finish_pending(self, partitions: Iterable[Partition]) -> None:
        """Finish pending work of earlier commits of these partitions, also those of other processes (RULES Q1)."""

    def shown_position(self, partition: Partition) -> int:
        """The offset that lag tools see, as of the last state that was read: below it nothing is read again."""

    def chores(self, view: View) -> Sequence[Chore]:
        """What is due in addition to new batches, the most urgent first; chores and batches alternate."""

    def perform(self, chore: Any) -> None:
        """Do a chore that has no batch."""

    def lags(self, partitions: Iterable[Partition]) -> bool:
        """Whether something below the positions is still to be written."""

    def record_bytes(self) -> float | None:
        """The size of a row in its file, from the newest commits; None if they have none."""

    def close(self) -> None:
        """Close connections."""


class SchemaChanged:
    """The table first had to add columns: nothing is staged, the batch is planned again."""


class Writer(Protocol[S]):
    """The write step of a kind: one Spark job per batch."""

    @property
    def table(self) -> Table[S]: ...

    def stage(self, batch: Batch) -> S | SchemaChanged:
        """Run the batch's Spark job: files and counts that no reader sees yet."""

    def replay_target(self) -> Target[Any]:
        """Where replayed records of the quarantine go."""


@dataclass(frozen=True, slots=True)
class CompactRequest:
    target_bytes: int | None = None
    """None: that of the job file."""
    all_days: bool = False
    effort: CompactionLimits = EVERYTHING

    def refuse_all_days(self, hint: str) -> None:
        if self.all_days:
            raise UserError("--all-days is for exports", hint=hint)


@dataclass(frozen=True, slots=True)
class VacuumRequest:
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Which rows to read; by default all."""

    keys: Mapping[str, object] = field(default_factory=dict)
    """By column of the key, a value or a list of values."""
    type: str | None = None
    """The type, if the table has several."""

    def refuse_keys(self, table: str) -> None:
        if self.keys:
            raise UserError(f"{table} has no keys", hint="filter the data frame with where")

    def refuse_type(self, table: str) -> None:
        if self.type is not None:
            raise UserError(f"{table} has no types", hint="leave the type out")

    def refuse_all(self, table: str) -> None:
        self.refuse_keys(table)
        self.refuse_type(table)


@dataclass(frozen=True, slots=True)
class RecordRows:
    """The rows that records of a slice became, by offset; `note` explains what is shown, or why nothing can be."""

    rows: Mapping[int, Sequence[TableRow]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row for people, without columns that only Penstock needs."""

    values: Mapping[str, object]
    table: str = ""
    """The name of its type, if the job has several."""
    note: str = ""
    exists: bool = True
    """False: the values are those of a key that has no row now."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was restored: nothing if there are problems."""

    problems: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    """The positions of the job log, by partition."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> Iterator[str]:
        for partition, position in self.positions.items():
            yield f"{partition}: position {position}"
        yield from self.notes
        yield from (f"problem: {problem}" for problem in self.problems)
        if self.problems:
            yield "nothing was changed"


class Kind(Protocol):
    """A kind of table, as the rest of the program uses it."""

    @property
    def name(self) -> str:
        """The key under `table:` in a job file."""

    @property
    def spec(self) -> type[TableSpec]:
        """Its part of the job file."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The failpoints of its own commit path, by name."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that only this kind has."""

    def meter(self) -> Meter:
        """Computes these metrics from the events of one job."""

    def open_writer(self, job: JobSpec, spark: SparkSession, log: Log, environment: Environment) -> Writer[Any]:
        """The table, created or extended if required, with the writer of its batches."""

    def prove(self, job: JobSpec, depth: Depth, open_log: OpenLog) -> Proof:
        """The checks of `verify`; the table is opened without Spark and nothing is written."""

    def status(self, job: JobSpec, open_log: OpenLog, now: Callable[[], float]) -> JobStatus: ...

    def data_tables(self, job: JobSpec) -> Mapping[str, DeltaLog]:
        """The Delta logs of what readers see, by a name for people; empty while there is no table."""

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        """Whether a day is complete; `UserError` where a table has no days."""

    def compact(
        self, job: JobSpec, request: CompactRequest, environment: Environment, progress: Progress | None
    ) -> CompactReport: ...

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport: ...

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        """What is committed, for people: without columns that only Penstock needs."""

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        """The rows next to a few records of a slice, read without Spark."""

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        """Restore lost logs from files; `UserError` where that is impossible."""

    def listings(self, job: JobSpec, environment: Environment) -> Listings | None:
        """Where the quarantine of the job's table lies, and what commits list for it; None while there is no table."""


class SaveMode(StrEnum):
    """What a load does with a table that has rows."""

    APPEND = "append"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a streaming query of Spark: the numbers of a query rise."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class Written:
    """What a write of rows has done."""

    rows: int
    skipped: int
    """Of these, rows that lost to a newer one, or were in the table already."""
    version: int
    """Of the table, with these rows."""


@runtime_checkable
class Loading(Protocol):
    """A kind whose tables can also load rows from files and data frames."""

    def load(
        self, job: JobSpec, paths: Sequence[str], mode: SaveMode, spark: SparkSession, environment: Environment
    ) -> Report:
        """Bring the rows of files into the table, each file once."""

    def write(
        self, job: JobSpec, frame: DataFrame, mode: SaveMode, batch: StreamBatch | None, environment: Environment
    ) -> Written:
        """Bring the rows of a data frame into the table, in one commit; a batch that it has already is skipped."""


@runtime_checkable
class Lookups(Protocol):
    """A kind whose tables have a row per key."""

    def find_row(self, job: JobSpec, key: Mapping[str, str]) -> TableRow | None:
        """The present row of a key, whose values are given as text by column; read without Spark."""


@runtime_checkable
class Recognised(Protocol):
    """A kind whose tables have a property by which they are recognised, so that they can be read without their job."""

    @property
    def mark(self) -> str:
        """The property that only its tables have."""

    def read_table(self, path: str, marked: str, spark: SparkSession, request: ReadRequest) -> DataFrame:
        """The same as `read`, for the table at a path with this value of the property."""
