"""Reading the state of a job from a loaded version of its Delta table."""

from __future__ import annotations

from collections.abc import Iterable

from deltalake import DeltaTable

from penstock.log.offsets import Partition
from penstock.tables.delta.keys import origin_key, position_key, quarantine_key, token_key, topic_key, total_key
from penstock.tables.delta.state import TOTAL_NAMES, PartitionState, TableState, Totals


def read_state(handle: DeltaTable, job: str, partitions: Iterable[Partition]) -> TableState:
    """Read the state of these partitions from the very version that the handle has loaded."""
    wanted = tuple(partitions)
    return TableState(
        version=handle.version(),
        partitions={each: _read_partition(handle, job, each) for each in wanted},
        fingerprints={each.topic: handle.transaction_version(topic_key(job, each.topic)) for each in wanted},
    )


def _read_partition(handle: DeltaTable, job: str, partition: Partition) -> PartitionState:
    position = handle.transaction_version(position_key(job, partition))
    if position is None:
        return PartitionState(token=handle.transaction_version(token_key(job, partition)) or 0)
    return PartitionState(
        position=position,
        origin=handle.transaction_version(origin_key(job, partition)),
        token=handle.transaction_version(token_key(job, partition)) or 0,
        totals=Totals(*(handle.transaction_version(total_key(job, partition, name)) or 0 for name in TOTAL_NAMES)),
        quarantine_mark=handle.transaction_version(quarantine_key(job, partition)),
    )
