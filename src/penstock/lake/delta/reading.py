"""Reading the state of a job from a loaded version of its Delta table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deltalake import DeltaTable

from penstock.lake.delta.keys import (
    epoch_end_key,
    epoch_key,
    origin_key,
    position_key,
    quarantine_key,
    token_key,
    topic_key,
    total_key,
)
from penstock.lake.state import TOTAL_NAMES, DeltaPartition, DeltaState, Totals
from penstock.logs.log import EpochMark, Partition

Lookup = Callable[[str], int | None]
"""The number of an app transaction by its name, as of one version."""


def read_state(handle: DeltaTable, job: str, partitions: Iterable[Partition]) -> DeltaState:
    """Read the state of these partitions from the very version that the handle has loaded."""
    return state_of(handle.version(), handle.transaction_version, job, partitions)


def state_of(version: int, lookup: Lookup, job: str, partitions: Iterable[Partition]) -> DeltaState:
    """The state of these partitions, from whoever knows the app transactions of a version."""
    wanted = tuple(partitions)
    return DeltaState(
        version=version,
        partitions={each: _partition_state(lookup, job, each) for each in wanted},
        fingerprints={each.topic: lookup(topic_key(job, each.topic)) for each in wanted},
    )


def _partition_state(lookup: Lookup, job: str, partition: Partition) -> DeltaPartition:
    return DeltaPartition(
        position=lookup(position_key(job, partition)),
        origin=lookup(origin_key(job, partition)),
        token=lookup(token_key(job, partition)) or 0,
        totals=Totals(*(lookup(total_key(job, partition, name)) or 0 for name in TOTAL_NAMES)),
        quarantine_mark=lookup(quarantine_key(job, partition)),
        mark=_mark(lookup(epoch_end_key(job, partition)), lookup(epoch_key(job, partition))),
    )


def _mark(end: int | None, epoch: int | None) -> EpochMark | None:
    return None if end is None or epoch is None else EpochMark(end, epoch)
