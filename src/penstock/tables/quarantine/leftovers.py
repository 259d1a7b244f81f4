"""Which files in the folder of a quarantine no commit can name any more (RULES C7, Q1).

The quarantine is a Delta table, and its own version tells which files it holds or held. Of the others, staged files
that a commit of the data listed belong to it before they are appended; the rest can be listed only by a commit at the
start in their name. Several tables may share a quarantine: a file goes by the positions of the job that its name tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.flow.write.names import ReplayedName, StagedName, owner_tag
from penstock.lake.delta.keys import replay_key
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import Kept, by_position, by_run, by_version
from penstock.lake.maintenance.leftovers import NameRules, Verdict
from penstock.logs.log import Partition
from penstock.tables.quarantine.life import appended_up_to


@dataclass(frozen=True, slots=True)
class Owner:
    """What the table of a job says about the files that its batches staged for the quarantine.

    Partitions are asked for by topic id and number, without a topic.
    """

    job: str
    life: int | None
    position: Callable[[Partition], int | None]
    """Below it nothing of a partition is committed any more."""
    listed_up_to: Callable[[Partition], int | None]
    """What `life.appended_up_to` reaches once all listed files are appended."""


def quarantine_rules(quarantine: Table, owners: Iterable[Owner]) -> NameRules:
    """The rules for the files of a quarantine; those of other jobs, and their replay runs, are theirs."""
    by_tag = {owner_tag(each.job): each for each in owners}
    own_tag = owner_tag(quarantine.job)
    run_over = quarantine.transaction(replay_key(quarantine.job)) or 0

    def of_slice(name: StagedName) -> Verdict:
        if name.owner is None or name.owner not in by_tag:
            return Kept.OTHERS
        owner, partition = by_tag[name.owner], Partition("", name.topic_id, name.partition)
        listed = owner.listed_up_to(partition)
        if listed is not None and appended_up_to(quarantine, owner.job, owner.life, partition) < listed:
            return Kept.PENDING
        return by_position(name, owner.position(partition))

    def of_replay(name: ReplayedName) -> Verdict:
        return by_run(name, run_over) if name.owner == own_tag else Kept.OTHERS

    return NameRules(of_slice, by_version(quarantine), of_replay)
