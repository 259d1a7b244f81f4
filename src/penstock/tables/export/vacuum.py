"""Vacuum of a routed job: delete what lies below the root and no ledger entry can name any more (RULES C7, L7).

The proof is in the name and in a state that was read after the listing. An entry takes a staged file of a type only
while the type's position is the start in its name, and positions never fall; a compaction's output only up to the entry
number in its name, a replay's only while its run is not over. An output that was staged long ago, by a compaction that
was killed, is retired first: an entry says that nobody may name it any more. What entries have already taken is left
alone while it is still to be moved. Names that are not ours stay, whatever they are, and so do files of a topic's life
that the ledger does not know.

Where a store has no rename, a file is copied to its final name and the staged one stays. A process that slept over its
copy may bring a removed file back as long as it finds the staged one. So the staged file is kept for
`stage_age_seconds_max`, by which time no request can be under way, and is deleted before compaction touches the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import urlsplit

from penstock.flow.write.names import StagedName, parse_compacted_name, parse_replayed_name, parse_staged_name
from penstock.lake.delta.vacuum import Deleted, VacuumReport
from penstock.lake.storage import Entry, Storage
from penstock.logs.log import Partition
from penstock.tables.export.files.quarantine_leftovers import judge_quarantine
from penstock.tables.export.ledger.entry import EntryKind
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.export.table import Draft, ExportTable
from penstock.tables.quarantine.table import open_quarantine

_PROBE = "_probe."
_MOVING_SCHEMES = frozenset({"", "file", "memory", "hdfs"})


class Dead(StrEnum):
    """Why a file can go."""

    PASSED = "staged, the position of its type is beyond its start"
    EXPIRED = "staged by a compaction whose last possible entry has passed"
    REPLAYED = "staged by a replay whose run is over"
    PROBE = "left by a probe of the folder"


class Kept(StrEnum):
    """Why a file stays."""

    ORDERED = "an entry orders it to be moved"
    COMMITTABLE = "may still be named by an entry"
    UNPLACED = "of a partition or type that the ledger does not know"
    YOUNG = "staged or probed a short while ago"
    UNKNOWN = "not a name of Penstock"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger says about staged files, and what time it is."""

    state: LedgerState
    staged: str
    """The folder of the staged files."""
    now: float
    stage_age_seconds: float
    keeps_sources: bool
    ordered: frozenset[str] = field(init=False)
    lives: Mapping[tuple[str, int], Partition] = field(init=False)

    def __post_init__(self) -> None:
        orders = (*self.state.unfinished.renames, *self.state.pending)
        object.__setattr__(self, "ordered", frozenset(each.source for each in orders))
        object.__setattr__(self, "lives", {(each.topic_id, each.number): each for each in self.state.partitions})

    def is_young(self, entry: Entry) -> bool:
        return self.now - entry.modified_at.timestamp() < self.stage_age_seconds


def keeps_sources(storage: Storage) -> bool:
    """Whether a rename of this store is a copy that leaves its source (`Storage.rename_if_absent`)."""
    return urlsplit(storage.url).scheme.lower() not in _MOVING_SCHEMES


def facts_of(table: ExportTable, state: LedgerState) -> Facts:
    """The state must have been read after the files were listed."""
    return Facts(
        state,
        table.places.staged,
        table.environment.now(),
        table.job.limits.stage_age_seconds_max,
        keeps_sources(table.storage),
    )


def vacuum(table: ExportTable, *, dry_run: bool = False) -> VacuumReport:
    """Delete the dead files of a routed job and of its quarantine; the job may run meanwhile."""
    staged = list(table.storage.list(table.places.staged))
    quarantine = open_quarantine(table.job, table.environment)
    quarantined = [] if quarantine is None else list(quarantine.storage().list())
    table.environment.reach("vacuum_listed")
    state = _retire_outputs(table, staged, dry_run)
    facts = facts_of(table, state)
    dead, kept = judge_staged(staged, facts)
    probes, young = _judge_probes(table, facts)
    deleted = [Deleted(table.job.table.path, each.path, each.size_bytes, why) for each, why in [*dead, *probes]]
    counted: Counter[str] = Counter({str(why): count for why, count in (kept + young).items()})
    storages = {table.job.table.path: table.storage}
    if quarantine is not None:
        gone, stay = judge_quarantine(quarantine, quarantined, state)
        deleted += gone
        counted += stay
        storages[quarantine.spec.path] = quarantine.storage()
    for each in () if dry_run else deleted:
        table.environment.reach("vacuum_deleting")
        storages[each.table_url].delete(each.path)
    return VacuumReport(tuple(deleted), dict(counted), dry_run)


def _retire_outputs(table: ExportTable, staged: Iterable[Entry], dry_run: bool) -> LedgerState:
    """Say in the ledger that nobody takes outputs any more that old compactions left; the state with that."""
    state = table.state()
    facts = facts_of(table, state)
    old = [each for each in staged if judge(each, facts) is Kept.COMMITTABLE and not facts.is_young(each)]
    names = (parse_compacted_name(each.path) for each in old)
    retired = max((each.version_max for each in names if each is not None), default=0)
    if retired <= state.retired:
        return state
    if dry_run:
        return replace(state, retired=retired)
    table.append(lambda now: Draft(EntryKind.IDLE, retired=retired) if retired > now.retired else None)
    return table.state()


def judge_staged(entries: Iterable[Entry], facts: Facts) -> tuple[list[tuple[Entry, Dead]], Counter[Kept]]:
    """Which files of the staged folder, listed before the facts were read, can go."""
    dead: list[tuple[Entry, Dead]] = []
    kept: Counter[Kept] = Counter()
    for entry in entries:
        match judge(entry, facts):
            case Dead() as reason:
                dead.append((entry, reason))
            case Kept() as reason:
                kept[reason] += 1
    return dead, kept


def judge(entry: Entry, facts: Facts) -> Dead | Kept:
    """Whether a file in the staged folder can go."""
    kind, _, name = entry.path.removeprefix(f"{facts.staged}/").partition("/")
    if "/" in name:
        return Kept.UNKNOWN
    if entry.path in facts.ordered:
        return Kept.ORDERED
    verdict = _by_name(kind, name, facts)
    # A copy under way may need it still, and what it brings back must not be compacted yet (RULES L7).
    return Kept.YOUNG if isinstance(verdict, Dead) and facts.keeps_sources and facts.is_young(entry) else verdict


def _by_name(kind: str, name: str, facts: Facts) -> Dead | Kept:
    if (staged := parse_staged_name(name)) is not None:
        return _by_position(kind, staged, facts)
    if (compacted := parse_compacted_name(name)) is not None:
        passed = max(facts.state.number, facts.state.retired) >= compacted.version_max
        return Dead.EXPIRED if passed else Kept.COMMITTABLE
    if (replayed := parse_replayed_name(name)) is not None and replayed.run.isdecimal():
        return Dead.REPLAYED if facts.state.replay_run >= int(replayed.run) else Kept.COMMITTABLE
    return Kept.UNKNOWN


def _by_position(kind: str, name: StagedName, facts: Facts) -> Dead | Kept:
    partition = facts.lives.get((name.topic_id, name.partition))
    position = None if partition is None else facts.state.position_of(partition, kind)
    if position is None or kind not in facts.state.types:
        return Kept.UNPLACED
    return Dead.PASSED if position > name.start else Kept.COMMITTABLE


def _judge_probes(table: ExportTable, facts: Facts) -> tuple[list[tuple[Entry, Dead]], Counter[Kept]]:
    """A probe is put and deleted at once: one that is old was left by a process that died in between."""
    dead: list[tuple[Entry, Dead]] = []
    kept: Counter[Kept] = Counter()
    for name in facts.state.types:
        for entry in table.storage.list(name):
            if not entry.path.rsplit("/", 1)[-1].startswith(_PROBE):
                continue
            if facts.is_young(entry):
                kept[Kept.YOUNG] += 1
            else:
                dead.append((entry, Dead.PROBE))
    return dead, kept
