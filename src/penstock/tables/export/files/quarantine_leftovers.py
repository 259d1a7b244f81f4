"""Which files in the folder of a routed job's quarantine no commit can name any more (RULES C7, Q1).

The quarantine is a Delta table, and its own version tells which files it holds or held. Of the others, staged files
that a ledger entry listed belong to the table before they are appended; the rest can be listed only by an entry at the
start in their name, for whichever type: all types of the partition must have passed it. Files of other jobs, which the
name tells, are theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.flow.write.names import StagedName, owner_tag
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import (
    LOG_FOLDER,
    Dead,
    Deleted,
    Kept,
    SliceRule,
    facts_of,
    judge_all,
    own_replays,
)
from penstock.lake.storage import Entry
from penstock.tables.export.ledger.state import LedgerState
from penstock.tables.quarantine.life import appended_up_to


def judge_quarantine(
    quarantine: Table, entries: Iterable[Entry], state: LedgerState
) -> tuple[list[Deleted], Counter[str]]:
    """The files that can go, with the reason, and how many stay; the state was read after the listing."""
    quarantine.refresh()
    facts = facts_of(quarantine, _slices(quarantine, state), own_replays(quarantine))
    return judge_all(quarantine, (each for each in entries if not each.path.startswith(LOG_FOLDER)), facts)


def _slices(quarantine: Table, state: LedgerState) -> SliceRule:
    lives = {(each.topic_id, each.number): each for each in state.partitions}
    tag = owner_tag(quarantine.job)
    life = fingerprint(state.first_batch)

    def of_slice(name: StagedName) -> Dead | Kept:
        if name.owner != tag:
            return Kept.OTHERS
        partition = lives.get((name.topic_id, name.partition))
        position = None if partition is None else state.global_position(partition)
        if partition is None or position is None:
            return Kept.UNPLACED
        listing = state.of(partition).listing
        if listing is not None and appended_up_to(quarantine, quarantine.job, life, partition) < listing.number:
            return Kept.PENDING
        return Dead.PASSED if position > name.start else Kept.COMMITTABLE

    return of_slice
