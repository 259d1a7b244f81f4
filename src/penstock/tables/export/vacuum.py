"""Vacuum of an export: delete what lies below the root and no ledger entry can name any more (RULES C7, L7).

The proof is in the name: a slice's start below the position of its type, an entry number that the chain has passed or
retired, a replay run that is over. Names that are not ours stay (docs/protocol.md, "Compaction and vacuum").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.flow.write.names import CompactedName, ReplayedName, StagedName, parse_compacted_name
from penstock.lake.delta.vacuum import ListedTable, data_rules
from penstock.lake.maintenance.leftovers import CanGo, NameRules, Stays, Verdict, classify_all, delete_dead
from penstock.lake.maintenance.reports import VacuumReport
from penstock.lake.storage import Entry, Storage
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.spec import quarantine_url
from penstock.tables.export.table import PROBE, Draft, ExportTable
from penstock.tables.quarantine.table import open_quarantine, quarantine_rules

_MOVING_SCHEMES = frozenset({"", "file", "memory", "hdfs"})


class Dead(CanGo):
    PASSED = "staged, the position of its type is beyond its start"
    EXPIRED = "staged by a compaction whose last possible entry has passed"
    REPLAYED = "staged by a replay whose run is over"
    PROBE = "left by a probe of the folder"


class Kept(Stays):
    ORDERED = "an entry orders it to be moved"
    COMMITTABLE = "may still be named by an entry"
    UNPLACED = "of a partition or type that the ledger does not know"
    YOUNG = "staged or probed a short while ago"
    UNKNOWN = "not a name of Penstock"


class StagedFiles:
    """What the ledger says about staged files, and what time it is; read after the files were listed."""

    def __init__(self, table: ExportTable, state: LedgerState) -> None:
        self._state = state
        self._folder = table.places.staged
        self._now = table.environment.now()
        self._age_seconds_max = table.job.limits.stage_age_seconds_max
        # Whether a rename of this store is a copy that leaves its source (`Storage.rename_if_absent`).
        self._keeps_sources = urlsplit(table.storage.url).scheme.lower() not in _MOVING_SCHEMES
        self._lives = {(each.topic_id, each.number): each for each in state.partitions}
        self.ordered = frozenset(each.source for each in (*state.unfinished.renames, *state.pending))
        """Those that an entry has taken."""

    def is_young(self, modified_at: datetime) -> bool:
        return self._now - modified_at.timestamp() < self._age_seconds_max

    def may_be_copied(self, modified_at: datetime) -> bool:
        """Whether a copy of this file, or to it, may still be under way (RULES L7)."""
        return self._keeps_sources and self.is_young(modified_at)

    def classify(self, entry: Entry) -> Verdict:
        """Whether a file in the staged folder can go."""
        kind, _, name = entry.path.removeprefix(f"{self._folder}/").partition("/")
        if "/" in name:
            return Kept.UNKNOWN
        if entry.path in self.ordered:
            return Kept.ORDERED
        rules = NameRules(lambda staged: self._of_slice(kind, staged), self._of_output, self._of_replay)
        verdict = rules.classify(name)
        if verdict is None:
            return Kept.UNKNOWN
        return Kept.YOUNG if isinstance(verdict, Dead) and self.may_be_copied(entry.modified_at) else verdict

    def _of_slice(self, kind: str, name: StagedName) -> Verdict:
        partition = self._lives.get((name.topic_id, name.partition))
        position = None if partition is None else self._state.position_of(partition, kind)
        if position is None or kind not in self._state.types:
            return Kept.UNPLACED
        return Dead.PASSED if position > name.start else Kept.COMMITTABLE

    def _of_output(self, name: CompactedName) -> Verdict:
        passed = max(self._state.number, self._state.retired) >= name.version_max
        return Dead.EXPIRED if passed else Kept.COMMITTABLE

    def _of_replay(self, name: ReplayedName) -> Verdict:
        return Dead.REPLAYED if self._state.replay_run >= int(name.run) else Kept.COMMITTABLE


def vacuum(table: ExportTable, *, dry_run: bool = False) -> VacuumReport:
    """Delete the dead files of an export and of its quarantine; the job may run meanwhile."""
    storage, url, reach = table.storage, table.job.table.path, table.environment.reach
    staged = list(storage.list(table.places.staged))
    tables = [ListedTable.of(each) for each in table.type_tables()]
    opened = open_quarantine(table.job, quarantine_url(table.job), table.environment)
    quarantine = None if opened is None else ListedTable.of(opened)
    reach("vacuum_listed")
    state = _retire_outputs(table, staged, dry_run)
    files = StagedFiles(table, state)
    listed = (entry for name in state.types for entry in storage.list(table.probed(name)))
    probes = [entry for entry in listed if entry.path.rsplit("/", 1)[-1].startswith(PROBE)]
    found = [
        classify_all(url, storage, staged, files.classify),
        # A probe is put and deleted at once: one that is old was left by a process that died in between.
        classify_all(url, storage, probes, lambda each: Kept.YOUNG if files.is_young(each.modified_at) else Dead.PROBE),
        *(each.classify(data_rules) for each in tables),
    ]
    if quarantine is not None:
        # Any type's entry may still be the one that lists a file: all types of its partition must have passed it.
        reached = {(place.topic_id, place.number): state.global_position(place) for place in state.partitions}
        found.append(
            quarantine.classify(
                lambda bad: quarantine_rules(
                    bad, table.listings(state).marks, lambda place: reached.get((place.topic_id, place.number))
                )
            )
        )
    return delete_dead(found, reach, dry_run=dry_run)


def _retire_outputs(table: ExportTable, staged: Iterable[Entry], dry_run: bool) -> LedgerState:
    """Say in the ledger that nobody takes outputs any more that old compactions left; the state with that."""
    state = table.state()
    files = StagedFiles(table, state)
    old = [each for each in staged if files.classify(each) is Kept.COMMITTABLE and not files.is_young(each.modified_at)]
    names = (parse_compacted_name(each.path) for each in old)
    retired = max((each.version_max for each in names if each is not None), default=0)
    if retired <= state.retired:
        return state
    if dry_run:
        return replace(state, retired=retired)
    table.append(lambda now: Draft(EntryKind.IDLE, retired=retired) if retired > now.retired else None)
    return table.state()


def drop_lost_files(table: ExportTable, *, dry_run: bool = False) -> tuple[Rename, ...]:
    """Give up renames that nobody can do any more: neither the staged file is there nor the one that it should become.

    Until then the type is held back, because the ledger counts rows that are nowhere. The entry says that they count as
    vanished, and the type goes on; the renames come back.
    """
    lost: tuple[Rename, ...] = ()

    def decide(_: LedgerState) -> Draft | None:
        nonlocal lost
        waiting = (each.rename for each in table.finishing.leftover.renames if each.lost)
        lost = tuple(each for each in waiting if _is_lost(table.storage, each))
        return Draft(EntryKind.IDLE, dropped=lost) if lost and not dry_run else None

    table.append(decide)
    return lost


def _is_lost(storage: Storage, rename: Rename) -> bool:
    """Whether neither file is there; a store that cannot tell now is asked another time."""
    try:
        return not storage.exists(rename.source) and not storage.exists(rename.target)
    except PenstockError:
        return False
