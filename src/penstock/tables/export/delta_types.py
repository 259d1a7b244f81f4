"""An export with one Delta table per type (RULES L8; docs/protocol.md, "One Delta table per type").

Tables with rows of a batch commit first, then the ledger's entry. For replayed rows, which move no position, the entry
comes first and orders the tables to take their files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from msgspec import structs

from penstock.environment import Environment, new_batch_id
from penstock.errors import PenstockError, UserError
from penstock.failpoints import Reach
from penstock.flow.columns.fitting import respelled
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.job.spec import DAY_FOLDER, JobSpec, NewColumnPolicy
from penstock.lake.delta.keys import field_key, fingerprint, flow_key, replay_key
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.schema import TablePlace, missing_columns
from penstock.lake.delta.table import Change, SchemaMovedError, Table, find_table, open_or_create
from penstock.lake.proposal import Outcome, Proposal, SlicePart, StartPart
from penstock.lake.staged import StagedFileGoneError, check_staged
from penstock.logs.log import Partition, Slice
from penstock.tables.export.files.finishing import FailedRename, gone_reason
from penstock.tables.export.ledger.proposal import LedgerPart, RoutedPart, check, without_lanes
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.spec import ExportSpec
from penstock.tables.export.table import ExportTable
from penstock.tables.quarantine.replay import run_number


def type_place(export: ExportSpec, name: str) -> TablePlace:
    """Where the table of a type lies."""
    path = f"{export.path.rstrip('/')}/{name}"
    return TablePlace(path, export.storage_options, partition_by=(DAY_FOLDER,))


def open_export(job: JobSpec[ExportSpec], environment: Environment) -> ExportTable:
    """The table of an export in the format that the job asks for."""
    kind = DeltaTypes if job.table.format == "delta" else ExportTable
    return kind(job, environment)


class DeltaTypes(ExportTable):
    """The types of an export as Delta tables side by side; the ledger keeps what they have in common."""

    def __init__(self, job: JobSpec[ExportSpec], environment: Environment) -> None:
        super().__init__(job, environment)
        self.finishing.placing = self
        self._tables: dict[str, Table] = {}
        self._unread: set[str] = set()
        """Types whose tables could not be read when their columns were asked for."""

    def land(self, batch_id: str, parts: tuple[LedgerPart, ...]) -> Outcome:
        """Bring the rows into the tables of their types, then let the ledger say so."""
        state = self.complete()
        settled = tuple(without_lanes(part, state) for part in parts)
        accepted = check(settled, state).accepted
        routed = {part.partition: part for part in accepted if isinstance(part, RoutedPart)}
        for name in sorted({name for part in routed.values() for name, share in part.written.items() if share.files}):
            for partition, reason in self._land_type(name, batch_id, list(routed.values())).items():
                self.failures[name] += 1
                self.refusals[name] = reason
                routed[partition] = routed[partition].without(name)
            self.environment.reach("type_landed")
        return super().land(batch_id, tuple(routed.get(part.partition, part) for part in settled))

    def columns_of(self, name: str) -> pa.Schema | None:
        """Like those of files without a table, in the spelling of the type's table where there is one."""
        columns = super().columns_of(name)
        try:
            table = self.type_table(name)
        except PenstockError:
            # It fails its type alone, when its files are to land.
            self._unread.add(name)
            return columns
        self._unread.discard(name)
        return columns if columns is None or table is None else respelled(columns, table.schema)

    def renames_of(self, part: RoutedPart, state: LedgerState) -> Iterable[Rename]:
        return ()

    def place(self, renames: Sequence[Rename], reach: Reach) -> list[FailedRename]:
        """Let the tables take the files of replays, which are staged in them."""
        failed: list[FailedRename] = []
        for name in sorted({each.type for each in renames}):
            reach("renaming")
            failed += self._take(name, [each for each in renames if each.type == name])
            reach("type_landed")
        return failed

    def unplaced(self, renames: Sequence[Rename]) -> list[Rename]:
        runs = {name: self._run_of(name) for name in {each.type for each in renames}}
        return [each for each in renames if runs[each.type] < each.run]

    def replay_target(self, file: StagedFile, name: str, entry: int, number: int) -> str:
        return file.path

    def replay_refusal(self, name: str, days: Iterable[str], run: int) -> str | None:
        """A table that does not take files after the entry would hold its type back: it is looked at before."""
        if (failing := self.failing_types().get(name)) is not None:
            return failing
        try:
            self._ready(name)
        except PenstockError as error:
            return error.primary
        if (known := self._run_of(name)) >= run:
            return f"its table knows replay run {known} already"
        return self.probe_folder(name, self.probed(name))

    def runs_taken(self) -> int:
        return max(self._run_of(name) for name in self.export.all_types)

    def ahead_of(self, partition: Partition, name: str, start: int) -> int:
        """A table that was committed to by a process that died then is ahead of the ledger."""
        try:
            table = self.type_table(name)
            own = table.state([partition]).of(partition).position if table is not None else None
            known = table.transaction(flow_key(self.job.name)) if table is not None else None
        except PenstockError:
            # A table that cannot be read cannot be written either: the commit will say why.
            return start
        if own is None or own <= start:
            return start
        if known is not None and known != self._flow(name):
            raise UserError(
                f"the job file was changed after a process died in the middle of a commit to type {name}",
                detail=f"its table has rows of {partition} up to offset {own}, the ledger knows those below {start}; "
                "with another job file other records may fit, and would be lost or written twice",
                hint="run the job once with the job file as it was then, and change it afterwards",
            )
        return own

    def type_table(self, name: str) -> Table | None:
        known = self._tables.get(name)
        if known is None:
            known = find_table(type_place(self.export, name), self.job.name, self.environment)
            if known is not None:
                self._tables[name] = known
        return known

    def probed(self, name: str) -> str:
        return f"{name}/_delta_log"

    def probe(self, name: str, days: Iterable[str]) -> str | None:
        """Delta says itself whether it takes a commit, before anything else moves."""
        return None

    def _land_type(self, name: str, batch_id: str, parts: list[RoutedPart]) -> dict[Partition, str]:
        """Commit the files of one type; the partitions that its table did not take, with the reason."""
        mine = [part for part in parts if name in part.written and part.written[name].files]
        try:
            table = self._ready(name)
            partitions = [part.partition for part in mine]
            known = table.state(partitions)
            new = [part for part in mine if known.of(part.partition).position is None]
            if new:
                starts = tuple(StartPart(part.partition, part.piece.start, part.token) for part in new)
                table.commit(Proposal(self.job.name, new_batch_id(), starts))
                known = table.state(partitions)
            slices = [self._slice(name, part, known.of(part.partition).position or 0) for part in mine]
            extra = {flow_key(self.job.name): self._flow(name)}
            outcome = table.commit(Proposal(self.job.name, batch_id, tuple(slices), extra))
        except PenstockError as error:
            return {part.partition: error.primary for part in mine}
        return {refusal.partition: refusal.reason for refusal in outcome.refused}

    def _take(self, name: str, renames: Sequence[Rename]) -> list[FailedRename]:
        """Run by run: a table that knew a later one would pass for having the earlier one too."""
        waiting = sorted(renames, key=lambda each: each.run)
        try:
            table = self._opened(name)
            while waiting:
                mine = [each for each in waiting if each.run == waiting[0].run]
                _take_run(table, mine[0].run, mine)
                waiting = waiting[len(mine) :]
        except StagedFileGoneError:
            return [FailedRename(each, gone_reason(each), lost=True) for each in waiting]
        except PenstockError as error:
            return [FailedRename(each, error.primary) for each in waiting]
        return []

    def _run_of(self, name: str) -> int:
        """The last replay run that the table of a type has; 0 if it cannot be read, or is not there."""
        try:
            if (table := self.type_table(name)) is None:
                return 0
            table.refresh()
            return run_number(table)
        except PenstockError:
            return 0

    def _slice(self, name: str, part: RoutedPart, own: int) -> SlicePart:
        """The slice as this type sees it: offsets without a record of the type are holes, back to its last commit."""
        share = part.written[name]
        files = tuple(structs.replace(file, path=file.path.removeprefix(f"{name}/")) for file in share.files)
        counts = Counts(read=share.counts.written, written=share.counts.written)
        # A table beyond what the files begin with would hold their rows twice: it refuses a slice that starts below.
        taken_from = part.taken_from.get(name, part.piece.start)
        start = own if own <= taken_from else part.piece.start
        return SlicePart(Slice(part.partition, start, part.piece.end, start), part.token, counts, files)

    def _flow(self, name: str) -> int:
        """Stands for all of the job file that decides which records become rows of a type."""
        job, on = self.job, self.job.on
        policies = (on.bad_record, on.tombstone, on.new_column, on.mixed_types)
        kind = replace(self.export.all_types[name], rotation=None, start=None)
        return fingerprint(repr((job.decode, kind, self.export.route, self.export.days, job.columns, policies)))

    def _ready(self, name: str) -> Table:
        """The table of a type whose files were just staged."""
        unread = name in self._unread
        table = self._opened(name)
        if unread and self.columns_of(name) != super().columns_of(name):
            raise SchemaMovedError(f"the files of type {name} were written before its table could be read")
        return table

    def _opened(self, name: str) -> Table:
        """The table with all columns of the type; it is created with the first file."""
        wanted = pa.schema([*(self.columns_of(name) or ()), (DAY_FOLDER, pa.date32())])
        table = self.type_table(name)
        if table is None or len(missing_columns(table.schema, wanted)):
            table = open_or_create(
                type_place(self.export, name), self.job.name, wanted, NewColumnPolicy.ADD, self.environment
            )
            self._tables[name] = table
        return table


def _take_run(table: Table, run: int, renames: Sequence[Rename]) -> None:
    """Commit the files of a run to the table of their type; nothing, if somebody has done it.

    The number of the run goes into the same commit: a table that knows it has the files, whoever brought them and
    whatever compaction made of them since.

    Raises `StagedFileGoneError` if a file is not there, and whatever a commit raises.
    """
    files: list[StagedFile] = []
    rows: Counter[Partition] = Counter()
    for each in renames:
        days = {DAY_FOLDER: each.day}
        files.append(StagedFile("", each.partition, each.path_in_table, each.rows, each.size_bytes, days, each.stats))
        # The keys of app transactions hold the topic id and no topic.
        rows[Partition("", each.topic_id, each.partition)] += each.rows
    size_bytes = sum(each.size_bytes for each in renames)
    record = Provenance(kind="replay", job=table.job, run=run, rows=rows.total(), size_bytes=size_bytes)

    def decide() -> Change | None:
        if run_number(table) >= run:
            return None
        check_staged(table.storage(), files)
        keys = {field_key(table.job, each, "replayed"): count for each, count in rows.items()}
        totals = {key: (table.transaction(key) or 0) + count for key, count in keys.items()}
        actions = [table.add_action(each) for each in files]
        return Change([*actions], {replay_key(table.job): run, **totals}, record.metadata)

    table.swap(decide)
