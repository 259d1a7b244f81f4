"""Which files in the folder of a routed job's quarantine no commit can name any more (RULES C7, Q1).

The quarantine is a Delta table, and its own version tells which files it holds or held. Of the others, staged files
that a ledger entry listed belong to the table before they are appended; the rest can be listed only by an entry at the
start in their name, for whichever type: all types of the partition must have passed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from penstock.flow.names import StagedName
from penstock.log.offsets import Partition
from penstock.storage import Entry
from penstock.tables.delta.active import active_paths
from penstock.tables.delta.keys import jobs_with_positions, position_key
from penstock.tables.delta.library import library_errors
from penstock.tables.delta.recent import recently_removed
from penstock.tables.delta.table import Table
from penstock.tables.delta.transactions import app_transactions
from penstock.tables.delta.vacuum import LOG_FOLDER, Dead, Facts, Kept, SliceRule, judge
from penstock.tables.parquet.state import LedgerState


def judge_quarantine(
    quarantine: Table, entries: Iterable[Entry], state: LedgerState, is_young: Callable[[Entry], bool]
) -> tuple[list[tuple[Entry, str]], Counter[str]]:
    """The files that can go, with the reason, and how many stay; the state was read after the listing."""
    quarantine.refresh()
    facts = _facts(quarantine, _slices(quarantine, state))
    dead: list[tuple[Entry, Dead]] = []
    kept: Counter[str] = Counter()
    for entry in entries:
        if entry.path.startswith(LOG_FOLDER):
            continue
        match judge(entry.path, facts):
            case Dead() as reason if reason is Dead.REMOVED or not is_young(entry):
                dead.append((entry, reason))
            case Dead():
                # Another job that reads the same topic may have staged it; nobody else's staged file grows old.
                kept[str(Kept.COMMITTABLE)] += 1
            case Kept() as reason:
                kept[str(reason)] += 1
    # A file removed just now by a writer whose clock is ahead is not yet in the library's list.
    unsure = {entry.path for entry, reason in dead if reason is not Dead.REMOVED}
    fresh = recently_removed(quarantine.storage(), LOG_FOLDER, unsure)
    kept[str(Kept.RETAINED)] += len(fresh)
    return [(entry, str(reason)) for entry, reason in dead if entry.path not in fresh], +kept


def _slices(quarantine: Table, state: LedgerState) -> SliceRule:
    lives = {(each.topic_id, each.number): each for each in state.partitions}
    others = jobs_with_positions(app_transactions(quarantine.storage(), quarantine.version)) - {quarantine.job}

    @cache
    def shared(partition: Partition) -> bool:
        return any(quarantine.transaction(position_key(job, partition)) is not None for job in others)

    def of_slice(name: StagedName) -> Dead | Kept:
        partition = lives.get((name.topic_id, name.partition))
        position = None if partition is None else state.global_position(partition)
        if partition is None or position is None:
            return Kept.UNPLACED
        if _is_pending(quarantine, partition, state):
            return Kept.PENDING
        return Dead.PASSED if position > name.start and not shared(partition) else Kept.COMMITTABLE

    return of_slice


def _is_pending(quarantine: Table, partition: Partition, state: LedgerState) -> bool:
    listing = state.of(partition).listing
    appended = quarantine.transaction(position_key(quarantine.job, partition))
    return listing is not None and (appended is None or appended < listing.number)


def _facts(quarantine: Table, of_slice: SliceRule) -> Facts:
    handle = quarantine.handle
    with library_errors(quarantine.spec.path):
        return Facts(
            version=quarantine.version,
            partition_by=(),
            active=active_paths(handle),
            removed=frozenset(
                handle.vacuum(retention_hours=0, dry_run=True, full=False, enforce_retention_duration=False)
            ),
            expired=frozenset(handle.vacuum(dry_run=True, full=False)),
            # Runs of a routed job's replay are not known here: what they staged stays.
            replay_run=0,
            of_slice=of_slice,
        )
