"""Vacuum: delete the files that no commit names and none can name any more (RULES C7).

The proof is in the loaded version and in the name. Up to that version a commit that named a file left it active or
removed. After it none can: a staged file is committed only while the position of its partition is its start, a
compaction's output only up to a table version, a replay's only while its run is not committed. Names that are not ours
stay, whatever they are.

Never the library's full vacuum, which takes staged files. Of its light one only the list of removed files is used, and
the deletes are ours: the library would commit twice for its own report, and could not be stopped between two files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Protocol

from deltalake import DeltaTable

from penstock.failpoints import Reach
from penstock.flow.columns.partition_values import partition_folder
from penstock.flow.write.names import (
    ReplayedName,
    StagedName,
    owner_tag,
    parse_compacted_name,
    parse_replayed_name,
    parse_staged_name,
)
from penstock.lake.delta.active_files import active_paths
from penstock.lake.delta.keys import jobs_with_positions, position_key, quarantine_key, replay_key
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.recent_removals import recently_removed
from penstock.lake.delta.table import Table
from penstock.lake.delta.transactions import app_transactions
from penstock.lake.storage import Entry, Storage
from penstock.logs.log import Partition
from penstock.tables.quarantine.life import appended_up_to, life_of

LOG_FOLDER = "_delta_log/"
_HOUR_SECONDS = 3600


class Dead(StrEnum):
    """Why a file can go."""

    REMOVED = "removed from the table, retention is over"
    PASSED = "never committed, the position is beyond its start"
    EXPIRED = "never committed, the version bound of its compaction has passed"
    REPLAYED = "never committed, its replay run is over"


class Kept(StrEnum):
    """Why a file stays."""

    ACTIVE = "active"
    RETAINED = "removed from the table, within retention"
    COMMITTABLE = "may still be committed"
    UNPLACED = "of a partition without a position"
    PENDING = "listed for quarantine, not appended yet"
    OTHERS = "of another job that shares the quarantine"
    UNKNOWN = "not a name of Penstock"


SliceRule = Callable[[StagedName], Dead | Kept]
"""What becomes of a staged file that the table neither holds nor held."""
ReplayRule = Callable[[ReplayedName], Dead | Kept]
"""The same for a file of a replay."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A file that went, or would go in a dry run."""

    table_url: str
    path: str
    size_bytes: int
    reason: str


class Dropped(Protocol):
    """A file that was given up: it was to be moved to its place, and is gone."""

    @property
    def type(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def rows(self) -> int: ...


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum deleted, and how many files stay by the reason."""

    deleted: tuple[Deleted, ...]
    kept: Mapping[str, int]
    dry_run: bool = False
    dropped: tuple[Dropped, ...] = ()

    def with_dropped(self, dropped: Iterable[Dropped]) -> VacuumReport:
        return replace(self, dropped=tuple(dropped))


@dataclass(frozen=True, slots=True)
class Facts:
    """What the loaded version of a table says about files in its folder."""

    version: int
    partition_by: tuple[str, ...]
    active: frozenset[str]
    removed: frozenset[str]
    expired: frozenset[str]
    """Of the removed, those that nobody's time travel needs."""
    of_slice: SliceRule
    of_replay: ReplayRule


def vacuum(
    table: Table, quarantine: Table | None = None, *, dry_run: bool = False, retention_seconds: float | None = None
) -> VacuumReport:
    """Delete dead files of a job's table and of its quarantine.

    `retention_seconds` takes the place of the table's `delta.deletedFileRetentionDuration`, in whole hours rounded up.
    """
    tables = (table,) if quarantine is None else (table, quarantine)
    folders = [_list(each.storage()) for each in tables]
    table.environment.reach("vacuum_listed")
    for each in tables:
        each.refresh()
    jobs = jobs_with_positions(app_transactions(table.storage(), table.version)) | {table.job}
    rules: list[tuple[SliceRule, ReplayRule]] = [(_data_slices(table, jobs), _data_replays(table, jobs))]
    if quarantine is not None:
        rules.append((_quarantine_slices(table, quarantine, jobs), own_replays(quarantine)))
    deleted: list[Deleted] = []
    kept: Counter[str] = Counter()
    for each, entries, (of_slice, of_replay) in zip(tables, folders, rules, strict=True):
        dead, stay = judge_all(each, entries, facts_of(each, of_slice, of_replay, retention_seconds))
        deleted += dead
        kept += stay
    if not dry_run:
        _delete(tables, deleted, table.environment.reach)
    return VacuumReport(tuple(deleted), dict(kept), dry_run)


def judge(path: str, facts: Facts) -> Dead | Kept:
    """Whether a file that was listed before the facts were loaded can go."""
    if path in facts.active:
        return Kept.ACTIVE
    if path in facts.removed:
        return Dead.REMOVED if path in facts.expired else Kept.RETAINED
    if not _is_our_folder(path, facts.partition_by):
        return Kept.UNKNOWN
    if (staged := parse_staged_name(path)) is not None:
        return facts.of_slice(staged)
    if (compacted := parse_compacted_name(path)) is not None:
        return Dead.EXPIRED if facts.version >= compacted.version_max else Kept.COMMITTABLE
    if (replayed := parse_replayed_name(path)) is not None and replayed.run.isdecimal():
        return facts.of_replay(replayed)
    return Kept.UNKNOWN


def _list(storage: Storage) -> list[Entry]:
    return [entry for entry in storage.list() if not entry.path.startswith(LOG_FOLDER)]


def _is_our_folder(path: str, partition_by: tuple[str, ...]) -> bool:
    """Whether our writer puts files there: a deeper folder may be another table, a quarantine even."""
    folders = path.split("/")[:-1]
    if not folders:
        return True
    heads = [partition_folder({name: ""}).removesuffix("/") for name in partition_by]
    return len(folders) == len(heads) and all(map(str.startswith, folders, heads))


def _data_slices(table: Table, jobs: frozenset[str]) -> SliceRule:
    """A slice is committed only where its start is the position, and positions never fall.

    A name does not say whose it is: every job that reads the partition into this table must have passed it.
    """

    @cache
    def lowest_position(partition: Partition) -> int | None:
        found = (table.transaction(position_key(job, partition)) for job in jobs)
        return min((each for each in found if each is not None), default=None)

    def of_slice(name: StagedName) -> Dead | Kept:
        reached = lowest_position(_partition(name))
        if reached is None:
            return Kept.UNPLACED
        return Dead.PASSED if reached > name.start else Kept.COMMITTABLE

    return of_slice


def _data_replays(table: Table, jobs: frozenset[str]) -> ReplayRule:
    """Every job that writes to this table must have passed a run of that number: the name does not say whose it is."""
    over = min(table.transaction(replay_key(job)) or 0 for job in jobs)
    return lambda name: Dead.REPLAYED if int(name.run) <= over else Kept.COMMITTABLE


def own_replays(quarantine: Table) -> ReplayRule:
    """A run of the job whose removal is committed; runs of others are theirs."""
    tag, over = owner_tag(quarantine.job), quarantine.transaction(replay_key(quarantine.job)) or 0

    def of_replay(name: ReplayedName) -> Dead | Kept:
        if name.owner != tag:
            return Kept.OTHERS
        return Dead.REPLAYED if int(name.run) <= over else Kept.COMMITTABLE

    return of_replay


def _quarantine_slices(table: Table, quarantine: Table, jobs: frozenset[str]) -> SliceRule:
    """As for the data, but files that a data commit listed belong to the table before they are appended (RULES Q1).

    Other tables may share the quarantine: a file is judged by the positions of the job that its name tells.
    """
    owners = {owner_tag(job): (job, _data_slices(table, frozenset({job}))) for job in jobs}
    life = life_of(table)

    def of_slice(name: StagedName) -> Dead | Kept:
        if name.owner not in owners:
            return Kept.OTHERS
        job, of_data = owners[name.owner]
        partition = _partition(name)
        mark = table.transaction(quarantine_key(job, partition))
        if mark is not None and appended_up_to(quarantine, job, life, partition) < mark:
            return Kept.PENDING
        return of_data(name)

    return of_slice


def _partition(name: StagedName) -> Partition:
    # The keys of app transactions hold the topic id and no topic.
    return Partition("", name.topic_id, name.partition)


def facts_of(table: Table, of_slice: SliceRule, of_replay: ReplayRule, retention_seconds: float | None = None) -> Facts:
    with library_errors(table.spec.path):
        return Facts(
            version=table.version,
            partition_by=table.spec.partition_by,
            active=active_paths(table.handle),
            removed=_removed(table.handle, 0.0),
            expired=_removed(table.handle, retention_seconds),
            of_slice=of_slice,
            of_replay=of_replay,
        )


def _removed(handle: DeltaTable, retention_seconds: float | None) -> frozenset[str]:
    """Names of files that were removed at least that long ago; None: as long as the table's own retention."""
    if retention_seconds is None:
        return frozenset(handle.vacuum(dry_run=True, full=False))
    hours = math.ceil(retention_seconds / _HOUR_SECONDS)
    return frozenset(handle.vacuum(retention_hours=hours, dry_run=True, full=False, enforce_retention_duration=False))


def judge_all(table: Table, entries: Iterable[Entry], facts: Facts) -> tuple[list[Deleted], Counter[str]]:
    """The files of a table's folder that can go, and how many stay by the reason."""
    dead: list[tuple[Entry, Dead]] = []
    kept: Counter[str] = Counter()
    for entry in entries:
        match judge(entry.path, facts):
            case Dead() as reason:
                dead.append((entry, reason))
            case Kept() as reason:
                kept[str(reason)] += 1
    # A file removed just now by a writer whose clock is ahead is not yet in the library's list.
    unsure = {entry.path for entry, reason in dead if reason is not Dead.REMOVED}
    fresh = recently_removed(table.storage(), LOG_FOLDER, unsure)
    kept[str(Kept.RETAINED)] += len(fresh)
    url = table.spec.path
    gone = [(entry, str(why)) for entry, why in dead if entry.path not in fresh]
    return [Deleted(url, entry.path, entry.size_bytes, why) for entry, why in gone], +kept


def _delete(tables: Iterable[Table], deleted: Iterable[Deleted], reach: Reach) -> None:
    storages = {each.spec.path: each.storage() for each in tables}
    for each in deleted:
        reach("vacuum_deleting")
        storages[each.table_url].delete(each.path)
