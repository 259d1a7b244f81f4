"""Which files in the folder of a quarantine no commit can name any more (RULES C7, Q1).

Staged files that a commit of the data listed belong to it before they are appended. Several tables may share a
quarantine: a file goes by the positions of the job that its name tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.flow.write.names import ReplayedName, StagedName, owner_tag
from penstock.lake.delta.keys import position_key, replay_key
from penstock.lake.delta.table import Table
from penstock.lake.delta.vacuum import Kept, by_position, by_run, by_version
from penstock.lake.maintenance.leftovers import NameRules, Verdict
from penstock.logs.log import Partition
from penstock.tables.quarantine.discard import Listings
from penstock.tables.quarantine.life import appended_up_to


def quarantine_rules(
    quarantine: Table, jobs: Iterable[str], positions: Mapping[str, int], listings: Listings
) -> NameRules:
    """The rules for what these jobs of one table staged; files of other jobs are theirs.

    `positions` are those below which the table commits nothing any more, by their keys.
    """
    job_of = {owner_tag(each): each for each in jobs}
    own_tag = owner_tag(quarantine.job)
    run_over = quarantine.transaction(replay_key(quarantine.job)) or 0

    def of_slice(name: StagedName) -> Verdict:
        job = job_of.get(name.owner or "")
        if job is None:
            return Kept.OTHERS
        partition = Partition("", name.topic_id, name.partition)
        key = position_key(job, partition)
        if appended_up_to(quarantine, job, listings.life, partition) < listings.marks.get(key, 0):
            return Kept.PENDING
        return by_position(name, positions.get(key))

    def of_replay(name: ReplayedName) -> Verdict:
        return by_run(name, run_over) if name.owner == own_tag else Kept.OTHERS

    return NameRules(of_slice, by_version(quarantine), of_replay)
