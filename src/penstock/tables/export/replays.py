"""Replay runs of an export: an entry of its own kind that moves no position (RULES Q2).

Only the newest run can still owe its removal from quarantine: whoever wants the next one finishes it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.flow.write.manifest import StagedFile
from penstock.flow.write.offset_ranges import Ranges
from penstock.flow.write.report import Share
from penstock.lake.staged import check_staged
from penstock.logs.log import Partition
from penstock.tables.export.ledger.entry import EntryKind, ReplayRecord, WrittenRecord
from penstock.tables.export.ledger.proposal import written_record
from penstock.tables.export.ledger.state import LedgerState, Rename
from penstock.tables.export.table import Draft, ExportTable
from penstock.tables.quarantine.replay import ReplayRun

RunShares = Mapping[Partition, Mapping[str, Share]]
"""What a run staged of every type."""

_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerRuns:
    table: ExportTable

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
    entry = table.ledger.read(state.replay_entry)
    if entry is None or entry.replay is None:
        return None
    return ReplayRun(entry.replay.run, entry.batch_id, dict(entry.replay.offsets))


def left_to_log(state: LedgerState, partition: Partition, name: str) -> Ranges:
    """Offsets of a partition whose records the log itself gives to a type: what is in quarantine there stays there.

    A type that began at the beginning reads them again, or has; one that lags may be yet to read them.
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


def land_replay(table: ExportTable, run: ReplayRun, shares: RunShares) -> bool:
    """Make a run true in one entry; False if another run came first."""
    written: dict[str, WrittenRecord] = {}
    files: list[tuple[Partition, str, Share, StagedFile]] = []
    for partition, named in shares.items():
        for name, share in named.items():
            written[name] = written.get(name, WrittenRecord(0, 0, 0)) + written_record(share)
            files += [(partition, name, share, file) for file in share.files]

    def decide(state: LedgerState) -> Draft | None:
        if state.replay_run != run.number - 1:
            return None
        check_staged(table.storage, [file for *_, file in files])
        # They belong to no slice: one that fails holds its type back, but no position of it.
        renames = tuple(
            Rename(
                file.path,
                table.replay_target(file, name, state.number + 1, number),
                name,
                partition.topic_id,
                partition.number,
                start=share.first or 0,
                rows=file.rows,
                size_bytes=file.size_bytes,
                run=run.number,
                stats=file.stats,
            )
            for number, (partition, name, share, file) in enumerate(files)
        )
        record = ReplayRecord(run.number, tuple(run.offsets.items()), written)
        return Draft(EntryKind.REPLAY, run.batch_id, renames=renames, replay=record)

    landed = table.append(decide) is not None
    table.carry_leftover()
    return landed


def raise_run(table: ExportTable, known: int) -> None:
    """Let the ledger go on from a run that a type's table or the quarantine knows, if it does not know it itself.

    So it is for a ledger that was begun anew over tables that are older, or of which an older copy was put back: a run
    with a number that was used before would count as done.
    """
    begun = Draft(EntryKind.REPLAY, replay=ReplayRecord(known))
    table.append(lambda state: begun if state.replay_run < known else None)
