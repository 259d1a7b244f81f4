"""Which life of a job's table the job's rows and positions in a quarantine belong to.

A table that is made again reads its topics from the start: positions of the earlier one say nothing about it. So the
quarantine keeps, per job, a fingerprint of the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.lake.delta.keys import fingerprint, is_position_of, position_key, replay_key, table_key
from penstock.lake.delta.table import Table
from penstock.logs.log import Partition


def life_of(table: Table) -> int:
    """The fingerprint of a Delta table's id, which stays as long as the table."""
    return fingerprint(str(table.handle.metadata().id))


def belongs_to(quarantine: Table, job: str, life: int | None) -> bool:
    """Whether the job's rows and positions in the quarantine are of that life of its table."""
    return life is not None and quarantine.transaction(table_key(job)) == life


def appended_up_to(quarantine: Table | None, job: str, life: int | None, partition: Partition) -> int:
    """Up to where the listed files of this life are in the quarantine; 0 before the first."""
    if quarantine is None or not belongs_to(quarantine, job, life):
        return 0
    return quarantine.transaction(position_key(job, partition)) or 0


def positions_in(quarantine: Table, job: str) -> Mapping[str, int]:
    """All positions of the job by their keys, of whichever life."""
    return {key: number for key, number in quarantine.transactions().items() if is_position_of(job, key)}


def adoption(quarantine: Table, job: str, life: int) -> dict[str, int]:
    """The app transactions that make the quarantine this life's: what an earlier one left there counts no more."""
    if belongs_to(quarantine, job, life):
        return {}
    left = (*positions_in(quarantine, job), replay_key(job))
    return {**{key: 0 for key in left if quarantine.transaction(key)}, table_key(job): life}
