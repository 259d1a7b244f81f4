"""What `verify` is given of each type of an export: what its log says, its rows, and what is wrong with its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from penstock.flow.write.names import parse_compacted_name, parse_staged_name
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.active_files import ActiveFile
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.table import Table, open_table
from penstock.lake.state import DeltaPartition, Totals
from penstock.lake.storage import NotFoundError
from penstock.logs.log import Partition
from penstock.proof.files import RowSource, data_file, examined, files_now, named_paths, place_of
from penstock.proof.invariants import Slices, check_slices, check_totals
from penstock.proof.log import TopicIncarnations, find_incarnations, read_history
from penstock.tables.export.export import ExportTable
from penstock.tables.export.finishing import read_footer
from penstock.tables.export.known_files import visible_files
from penstock.tables.export.logs import ExportLogs


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """What the log of a type says, as of the version that is loaded."""

    name: str
    log: Table
    states: Mapping[Partition, DeltaPartition]
    slices: Slices
    known: TopicIncarnations
    due: Mapping[Partition, int]
    """Up to where the type is complete by the job log."""

    @classmethod
    def read(cls, logs: ExportLogs, name: str, log: Table, places: Iterable[Partition]) -> TypeFacts:
        job, here = logs.job.name, {partition: logs.known_state().of(partition) for partition in places}
        with library_errors(log.spec.path):
            history = [record for record in log.handle.history() if int(record["version"]) <= log.version]
        return cls(
            name,
            log,
            log.known_state(here).partitions,
            read_history(history, job),
            find_incarnations(log.transactions(), job),
            {partition: known.position_of(name) or 0 for partition, known in here.items()},
        )

    @property
    def ends(self) -> dict[Partition, int]:
        """No row is at or beyond them."""
        return {partition: max(self.states[partition].position or 0, due) for partition, due in self.due.items()}

    def ahead(self, partition: Partition) -> Totals:
        """What those slices count that end beyond what the job log knows of: a batch is half landed."""
        due = self.due[partition]
        return sum((piece.totals for piece in self.slices.get(partition, ()) if piece.end > due), Totals())

    def faults(self) -> Iterator[str]:
        """What is wrong with its positions, totals and slices. What it replayed, other logs may have quarantined."""
        counted = {
            partition: replace(state, totals=structs.replace(state.totals, replayed=0))
            for partition, state in self.states.items()
        }
        states = {
            partition: state
            for partition, state in counted.items()
            if state.position is not None or state.totals != Totals()
        }
        for check in (check_totals(states), check_slices(states, self.slices)):
            if not check.ok:
                yield f"log of type {self.name}: {check.detail}"


@dataclass(slots=True)
class DeletedDays:
    """Complete days of plain types that a person deleted with their folders: their rows are not checked."""

    days: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    """By type."""
    by_partition: Counter[Partition] = field(default_factory=Counter)
    unplaced: int = 0
    """Rows of files whose names do not tell one partition."""

    def add(self, of_type: TypeFacts, day: str, files: Iterable[ActiveFile]) -> None:
        self.days.append(f"{of_type.name} {day}")
        places = {(partition.topic_id, partition.number): partition for partition in of_type.states}
        for file in files:
            rows, name = file.rows or 0, parse_staged_name(str(file.values[-1]))
            partition = None if name is None else places.get((name.topic_id, name.partition))
            self.rows[of_type.name] += rows
            if partition is None:
                self.unplaced += rows
            else:
                self.by_partition[partition] += rows

    def warnings(self) -> Iterator[str]:
        if self.days:
            yield (
                f"{self.rows.total()} rows of {len(self.days)} complete days were deleted with their folders and are "
                f"not checked: {', '.join(sorted(self.days))}"
            )


def type_source(table: ExportTable, of_type: TypeFacts, deleted: DeletedDays) -> RowSource:
    """The rows of a type; a plain file that is not renamed yet is read under its staged name."""
    logs, name, log = table.logs, of_type.name, of_type.log
    # Listed after its log was read: a file that the log names is staged now, or has been renamed before.
    staged = {entry.path for entry in logs.storage.list(f"{logs.places.staged}/{name}")} if logs.is_plain else set()
    by_day: dict[str, list[ActiveFile]] = {}
    for file in log.active_files():
        by_day.setdefault(str(file.values[0]), []).append(file)
    files = []
    for day, found in by_day.items():
        paths = {file.path: source for file in found if (source := table.finishing.source_of(name, file)) in staged}
        complete = logs.is_plain and table.markers.is_complete(logs.known_state(), name, day)
        if complete and not log.file_storage().sizes(paths.get(file.path, file.path) for file in found):
            deleted.add(of_type, day, found)
            continue
        for file in found:
            told = parse_staged_name(str(file.values[-1])) if logs.is_plain else None
            data = data_file(paths.get(file.path, file.path), file.rows, file.size_bytes, {DAY_FOLDER: day})
            files.append(data if told is None else replace(data, topic_id=told.topic_id))
    rows = RowSource(
        log.file_storage(),
        files,
        place_of(logs.job, log.schema),
        logs.columns_of(name) or log.schema,
        name,
        of_type.ends,
    )
    return examined(rows, files_now(log))


def unnamed_files(table: ExportTable, of_type: TypeFacts) -> Iterator[str]:
    """Plain files that readers see and that the log of their type does not name: rows are there twice, or too many."""
    logs, name = table.logs, of_type.name
    left = (
        set(visible_files(logs, name)) - {file.path for file in of_type.log.active_files()} if logs.is_plain else set()
    )
    if not left:
        return
    # The job may have put them there since, or be about to delete them because it has compacted them.
    for file in open_table(of_type.log.spec, of_type.log.job).active_files():
        left.discard(file.path)
        staged = table.finishing.source_of(name, file)
        if parse_compacted_name(staged) is not None:
            try:
                left -= set(read_footer(logs.storage, staged).facts.get("inputs", ()))
            except NotFoundError:
                continue
    if there := logs.storage.sizes(left):
        yield named_paths("files that readers see are not in the logs", there)
