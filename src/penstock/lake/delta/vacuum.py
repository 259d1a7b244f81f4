"""Vacuum: delete files in the folder of a Delta table that no commit names and none can name any more (RULES C7).

Folders are listed first, then the table is read, and each file is classified by both. A file that a commit up to the
loaded version named is active or removed; of others their names show whether a later commit can name them. A file with
an unknown name stays. The library's vacuum is not used: a full one deletes staged files, a light one commits twice for
its own report, could not be stopped between two files, and forgets that a file was removed again with other vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.failpoints import AtStep
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.write.names import (
    ClosedName,
    CompactedName,
    ReplayedName,
    StagedName,
    parse_closed_name,
    parse_compacted_name,
    parse_replayed_name,
    parse_staged_name,
)
from penstock.lake.delta.keys import jobs_with_positions, position_key, replay_key
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.log_files import LOG_FOLDER, removed_files
from penstock.lake.delta.schema import deleted_file_retention_seconds
from penstock.lake.delta.table import QUARANTINE_FOLDER, DeltaLog
from penstock.lake.delta.vectors import staged_as
from penstock.lake.reports import Deleted, VacuumReport
from penstock.logs.log import Partition
from penstock.storage import Entry, Storage


class Dead(StrEnum):
    """Why a file can be deleted."""

    REMOVED = "removed from the table, retention is over"
    PASSED = "never committed, the position is beyond its start"
    PASSED_END = "never committed, all positions are at or beyond its end"
    EXPIRED = "never committed, the version bound of its compaction has passed"
    REPLAYED = "never committed, its replay run is over"
    CLOSED = "never committed, its close is complete"


class KeptReason(StrEnum):
    """Why a file stays."""

    ACTIVE = "active"
    RETAINED = "removed from the table, within retention"
    COMMITTABLE = "may still be committed"
    UNPLACED = "of a partition without a position"
    PENDING = "listed for quarantine, not appended yet"
    PENDING_RENAME = "committed, not yet in its place"
    OTHERS = "of another job that shares the folder"
    UNKNOWN = "not a name of Penstock"


Verdict = Dead | KeptReason


@dataclass(frozen=True, slots=True)
class NameRules:
    """Classifies files by their names, if no commit up to the loaded version named them."""

    of_slice: Callable[[StagedName], Verdict]
    of_output: Callable[[CompactedName], Verdict]
    of_replay: Callable[[ReplayedName], Verdict]
    of_close: Callable[[ClosedName], Verdict] | None = None
    """None for tables without closes: such a name is then unknown."""

    def classify(self, path: str) -> Verdict:
        if (staged := parse_staged_name(path)) is not None:
            return self.of_slice(staged)
        if (compacted := parse_compacted_name(path)) is not None:
            return self.of_output(compacted)
        if (replayed := parse_replayed_name(path)) is not None and replayed.run.isdecimal():
            return self.of_replay(replayed)
        if self.of_close is not None and (closed := parse_closed_name(path)) is not None:
            return self.of_close(closed)
        return KeptReason.UNKNOWN


@dataclass(frozen=True, slots=True)
class Classified:
    """The files of one folder that can be deleted, with the reason, and how many stay."""

    url: str
    storage: Storage
    dead: tuple[tuple[Entry, Dead], ...]
    kept: Counter[str]


def classify_all(
    url: str, storage: Storage, entries: Iterable[Entry], classify: Callable[[Entry], Verdict]
) -> Classified:
    """Classify files that were listed before the state was read that `classify` uses."""
    dead: list[tuple[Entry, Dead]] = []
    kept: Counter[str] = Counter()
    for entry in entries:
        match classify(entry):
            case Dead() as reason:
                dead.append((entry, reason))
            case KeptReason() as reason:
                kept[str(reason)] += 1
    return Classified(url, storage, tuple(dead), kept)


def delete_dead(folders: Sequence[Classified], at_step: AtStep, *, dry_run: bool = False) -> VacuumReport:
    """Delete the dead files one after the other; a dry run only reports them."""
    deleted: list[Deleted] = []
    for folder in folders:
        for entry, reason in folder.dead:
            deleted.append(Deleted(folder.url, entry.path, entry.size_bytes, str(reason)))
            if not dry_run:
                at_step("vacuum_deleting")
                folder.storage.delete(entry.path)
    kept = sum((folder.kept for folder in folders), Counter[str]())
    return VacuumReport(tuple(deleted), dict(kept), dry_run)


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table and the files in its folder; the state of the table that is read afterwards decides about them."""

    table: DeltaLog
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, table: DeltaLog) -> ListedTable:
        """Without the table's log, and without quarantines, which are tables of their own."""
        others = (LOG_FOLDER, f"{QUARANTINE_FOLDER}/")
        return cls(table, tuple(entry for entry in table.storage().list() if not entry.path.startswith(others)))

    def classify(self, rules: Callable[[DeltaLog], NameRules]) -> Classified:
        """Load the newest version and classify the files by it."""
        self.table.refresh()
        table, spec = self.table, self.table.spec
        with library_errors(spec.path):
            active = {path for file in table.active_files() for path in file.paths}
            retention_seconds = deleted_file_retention_seconds(table.handle)
        by_name, removed = rules(table), removed_files(table.storage(), table.version)
        expired_ms = (table.environment.now() - retention_seconds) * 1000

        def verdict(entry: Entry) -> Verdict:
            if entry.path in active:
                return KeptReason.ACTIVE
            if entry.path in removed:
                return Dead.REMOVED if removed[entry.path] < expired_ms else KeptReason.RETAINED
            name = staged_as(entry.path)
            # Files of vectors have a folder of their own.
            is_own = name != entry.path or _is_own_folder(entry.path, spec.partition_by)
            return by_name.classify(name) if is_own else KeptReason.UNKNOWN

        return classify_all(spec.path, table.storage(), self.entries, verdict)


def data_rules(table: DeltaLog) -> NameRules:
    """The rules for the files of a table into which several jobs may write: a name does not contain the job.

    A slice is committed only where its start is the position, and positions never decrease: every job that reads the
    partition must have passed it. In the same way every job must have passed a replay run of that number.
    """
    jobs = jobs_with_positions(table.transactions()) | {table.job}
    run_over = min(table.transaction(replay_key(job)) or 0 for job in jobs)

    def of_slice(name: StagedName) -> Verdict:
        # The keys of app transactions hold the topic id and no topic.
        partition = Partition("", name.topic_id, name.partition)
        positions = (table.transaction(position_key(job, partition)) for job in jobs)
        return by_position(name, min((position for position in positions if position is not None), default=None))

    return NameRules(of_slice, by_version(table), lambda name: by_run(name, run_over))


def by_position(name: StagedName, position: int | None) -> Verdict:
    if position is None:
        return KeptReason.UNPLACED
    return Dead.PASSED if position > name.start else KeptReason.COMMITTABLE


def by_end(name: StagedName, position: int | None) -> Verdict:
    """The rule where several logs may list a file of the slice: `position` is the lowest of them."""
    if position is None:
        return KeptReason.UNPLACED
    return Dead.PASSED_END if position >= name.end else KeptReason.COMMITTABLE


def by_version(table: DeltaLog) -> Callable[[CompactedName], Verdict]:
    version = table.version
    return lambda name: Dead.EXPIRED if version >= name.version_max else KeptReason.COMMITTABLE


def by_run(name: ReplayedName, run_over: int) -> Verdict:
    return Dead.REPLAYED if int(name.run) <= run_over else KeptReason.COMMITTABLE


def _is_own_folder(path: str, partition_by: tuple[str, ...]) -> bool:
    """Whether Penstock writes files there: a deeper folder may be another table.

    Columns that a commit fills in have no folder: they are the last.
    """
    folders = path.split("/")[:-1]
    heads = [partition_folder({name: ""}).removesuffix("/") for name in partition_by]
    return len(folders) <= len(heads) and all(map(str.startswith, folders, heads))
