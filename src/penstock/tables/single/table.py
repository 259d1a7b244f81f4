"""The one Delta table of a job, with its quarantine: rows and positions land in the same commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.environment import Environment
from penstock.errors import InvariantError, UserError
from penstock.flow.write.manifest import Counts
from penstock.flow.write.report import Share
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import other_readers, position_key
from penstock.lake.delta.library import MissingTableError
from penstock.lake.delta.opening import find_table, open_table
from penstock.lake.delta.provenance import provenance_of
from penstock.lake.delta.schema import TablePlace
from penstock.lake.delta.table import DeltaLog
from penstock.lake.delta.vacuum import ListedTable, NameRules, data_rules, delete_dead
from penstock.lake.proposal import Outcome, Proposal, SlicePart, StartPart
from penstock.lake.reports import VacuumReport
from penstock.lake.state import DeltaState, Numbers
from penstock.logs.log import Batch, Log, Partition, Slice
from penstock.quarantine.replay import TableRuns, finish_replay, run_number
from penstock.quarantine.table import Listings, Quarantine, listed_marks, quarantine_rules
from penstock.reporting.metrics import Meter, Metric
from penstock.reporting.model import DayAnswer
from penstock.spark.delta_spark import delta_frame
from penstock.staging.reports import Written
from penstock.tables.kind import Chore, Landed, ReadRequest, RebuildReport, RecordRows, VacuumRequest, View, output
from penstock.tables.single.record_rows import placed_rows

TableRules = tuple[DeltaLog, Callable[[DeltaLog], NameRules]]
"""A further table of the job, with the rules for its files."""
COMMITS_SEARCHED = 20
"""The newest commits that give the size of a row."""


class SingleTable:
    """A Delta table of one type of rows. A kind may add what else it does: numbers, stamps, chores."""

    divisible = True
    stamps: Mapping[str, str] = MappingProxyType({})
    """As in a proposal."""

    def __init__(self, job: JobSpec, data: DeltaLog, environment: Environment) -> None:
        self.job = job
        self.data = data
        self.environment = environment
        self.quarantine = Quarantine(job, data, environment)
        finish_replay(TableRuns(data), self.quarantine.table())

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        return self.data.state(partitions)

    def commit(self, proposal: Proposal) -> Outcome:
        """Refuses to start a partition that another job has read into this table: its records would be doubled."""
        starts = [part.partition for part in proposal.parts if isinstance(part, StartPart)]

        def revise() -> Proposal:
            readers = other_readers(self.data.transactions(), self.job.name, starts)
            if readers:
                raise UserError(
                    f"job {readers[0]} already reads {starts[0].topic} into the table at {self.data.spec.path}",
                    detail=f"job {self.job.name} would write the same records once more",
                    hint=f"if the job was renamed, name it {readers[0]} again; else write to a table of its own",
                )
            return proposal

        return self.data.commit_revised(revise)

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: Written) -> Landed:
        parts = tuple(
            SlicePart(
                piece,
                tokens[piece.partition],
                (share := staged.share_of(piece)).counts,
                share.files,
                share.quarantine_files,
                staged.gathered.mark_of(piece.partition),
                self.numbers(share, batch.read_to_end_at.get(piece.partition)),
            )
            for piece in batch.slices
        )
        proposal = Proposal(
            self.job.name, batch.id, parts, stamps=self.stamps, log_ends=batch.log_ends, steps=batch.steps
        )
        return self.landed(self.data.commit(proposal, staged.schema), staged.schema)

    def landed(self, outcome: Outcome, schema: pa.Schema) -> Landed:
        """The result of a batch, once its bad records are in quarantine."""
        self.environment.at_step("committed")
        if outcome.version is None:
            return Landed(outcome)
        self.quarantine.append(outcome.accepted)
        self.environment.at_step("quarantined")
        landed = [part for part in outcome.accepted if isinstance(part, SlicePart)]
        files = [file for part in landed for file in part.files]
        counts = sum((part.counts for part in landed), Counts())
        sizes = tuple(file.size_bytes for file in files)
        return Landed(outcome, counts, sizes, sum(sizes), {"": output(schema, files)} if files else {})

    def numbers(self, share: Share, read_to_end_at: float | None = None) -> Numbers:
        """What a share adds to the further numbers of its partition; `read_to_end_at` as in a batch."""
        return Numbers()

    def own(self, tokens: Mapping[Partition, int]) -> None:
        """Staged names have a random part: there is nothing to reserve."""

    def finish_pending(self, partitions: Iterable[Partition]) -> None:
        self.quarantine.append_missing(self.data, partitions)

    def shown_position(self, partition: Partition) -> int:
        return self.data.cached_state([partition]).of(partition).position or 0

    def chores(self, view: View) -> Sequence[Chore]:
        return ()

    def perform(self, chore: Chore) -> None:
        raise InvariantError(f"a single table has no chore {chore.name}")

    def lags(self, partitions: Iterable[Partition]) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open between two commits."""

    def record_bytes(self) -> float | None:
        for record in self.data.handle.history(COMMITS_SEARCHED):
            provenance = provenance_of(record)
            if provenance is not None and provenance.rows:
                return provenance.size_bytes / provenance.rows
        return None


class SingleKind:
    """Shared by kinds whose batches land in one Delta table."""

    steps: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()

    def meter(self) -> Meter:
        return lambda event: ()

    def data_tables(self, job: JobSpec) -> Mapping[str, DeltaLog]:
        log = find_table(job.table, job.name)
        return {} if log is None else {"table": log}

    def day_answers(self, job: JobSpec, day: str, types: Sequence[str]) -> Sequence[DayAnswer]:
        raise UserError(f"the table of {job.name} has no days", hint="--day is for tables that are kept by day")

    def read(self, job: JobSpec, spark: SparkSession, request: ReadRequest) -> DataFrame:
        request.refuse_all(f"the table of {job.name}")
        return delta_frame(spark, job.table.path)

    def vacuum(self, job: JobSpec, request: VacuumRequest, environment: Environment) -> VacuumReport:
        return vacuum(existing_table(job, environment), dry_run=request.dry_run)

    def rebuild(self, job: JobSpec, log: Log, environment: Environment) -> RebuildReport:
        raise UserError("`penstock rebuild` is for exports", hint=f"the log of {job.name} is its Delta table")

    def record_rows(self, job: JobSpec, piece: Slice, records: Sequence[pa.RecordBatch]) -> RecordRows:
        table = find_table(job.table, job.name)
        return RecordRows() if table is None else placed_rows(job, piece, [("", table)])

    def listings(self, job: JobSpec, environment: Environment) -> Listings | None:
        """What commits of the job's table list for its quarantine; None while there is no table."""
        data = find_table(job.table, job.name, environment)
        return None if data is None else Listings(data.quarantine_url, listed_marks(data), run_number(data))


def existing_table(job: JobSpec, environment: Environment) -> DeltaLog:
    """The job's table; a `UserError` if it is missing."""
    try:
        return open_table(job.table, job.name, environment)
    except MissingTableError as error:
        raise UserError(error.primary, detail=error.detail, hint="`penstock run` creates it") from error


def vacuum(table: DeltaLog, *, dry_run: bool = False, alongside: Sequence[TableRules] = ()) -> VacuumReport:
    """Delete dead files of a table, of its quarantine, and of further tables."""
    place = TablePlace(path=table.quarantine_url, storage_options=table.spec.storage_options)
    quarantine = find_table(place, table.job, table.environment)

    def of_quarantine(opened: DeltaLog) -> NameRules:
        """They follow the version of the job's table that was loaded last."""
        positions = table.transactions()
        return quarantine_rules(
            opened, listed_marks(table), lambda place: positions.get(position_key(table.job, place))
        )

    further = [*alongside] if quarantine is None else [(quarantine, of_quarantine), *alongside]
    listed = [(ListedTable.of(other), rules) for other, rules in [(table, data_rules), *further]]
    table.environment.at_step("vacuum_listed")
    return delete_dead([folder.classify(rules) for folder, rules in listed], table.environment.at_step, dry_run=dry_run)
