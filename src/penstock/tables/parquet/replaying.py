"""Replay runs of a routed job: an entry of its own kind that moves no position (RULES Q2).

The entry of run N says which offsets it wrote, and orders the staged files to be renamed. The removal from quarantine
carries the same number. Only the newest run can still owe its removal: whoever wants the next one finishes it first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.flow.ranges import Ranges
from penstock.flow.shares import Share
from penstock.log.offsets import Partition
from penstock.tables.parquet.entry import EntryKind, ReplayRecord, WrittenRecord
from penstock.tables.parquet.names import day_folder, replayed_final_name
from penstock.tables.parquet.state import LedgerState, Rename
from penstock.tables.parquet.table import Draft, ExportTable
from penstock.tables.replayed import ReplayRun
from penstock.tables.staged import check_staged

Shares = Mapping[Partition, Mapping[str, Share]]
"""What a run staged of every type."""

_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerRuns:
    """The runs of a routed job."""

    table: ExportTable

    @property
    def job(self) -> str:
        return self.table.job.name

    @property
    def path(self) -> str:
        return self.table.job.table.path

    def last(self) -> int:
        return self.table.state().replay_run

    def owed(self, removed: int) -> tuple[int, ...]:
        last = self.last()
        return (last,) if last > removed else ()

    def find(self, number: int) -> ReplayRun | None:
        """The newest run; earlier ones owe nothing."""
        state = self.table.state()
        return last_run(self.table, state) if state.replay_run == number else None


def last_run(table: ExportTable, state: LedgerState) -> ReplayRun | None:
    """The last run of a state, out of its entry."""
    entry = table.ledger.read(state.replay_entry)
    if entry is None or entry.replay is None:
        return None
    return ReplayRun(entry.replay.run, entry.batch_id, entry.replay.offsets)


def left_to_log(state: LedgerState, partition: Partition, name: str) -> Ranges:
    """Offsets of a partition whose records the log itself gives to a type: what is in quarantine there stays there.

    A type that began at the beginning reads them again, or has; one that is behind may be yet to read them.
    """
    here = state.of(partition)
    if here.position is None:
        return ((0, _NO_END),)
    found: list[tuple[int, int]] = []
    if (reread := here.rereads.get(name)) is not None and reread.start < reread.end:
        found.append((reread.start, reread.end))
    if (lane := here.lanes.get(name)) is not None:
        found.append((lane.position, _NO_END))
    return tuple(found)


def land_replay(table: ExportTable, run: ReplayRun, shares: Shares) -> bool:
    """Make a run true in one entry; False if another run came first."""

    def decide(state: LedgerState) -> Draft | None:
        if state.replay_run != run.number - 1:
            return None
        check_staged(
            table.storage, [file for named in shares.values() for each in named.values() for file in each.files]
        )
        record = ReplayRecord(run.number, run.offsets, _written(shares))
        renames = tuple(_renames(table.job.name, state.number + 1, shares))
        return Draft(EntryKind.REPLAY, run.batch_id, renames=renames, replay=record)

    landed = table.append(decide) is not None
    table.carry_leftover()
    return landed


def _renames(job: str, entry: int, shares: Shares) -> Iterator[Rename]:
    """They belong to no slice: one that fails holds its type back, but no position of it."""
    number = 0
    for named in shares.values():
        for name, share in named.items():
            for file in share.files:
                folder = day_folder(name, str(file.partition_values["day"]))
                yield Rename(file.path, f"{folder}/{replayed_final_name(job, entry, number)}", name)
                number += 1


def _written(shares: Shares) -> dict[str, WrittenRecord]:
    found: dict[str, WrittenRecord] = {}
    for named in shares.values():
        for name, share in named.items():
            if not share.files:
                continue
            before = found.get(name, WrittenRecord(0, 0, 0))
            found[name] = WrittenRecord(
                before.rows + share.counts.written,
                before.files + len(share.files),
                before.size_bytes + sum(file.size_bytes for file in share.files),
                dict(Counter(before.days) + Counter(share.days)),
            )
    return found
