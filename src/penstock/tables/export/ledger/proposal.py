"""What a process proposes to the ledger, the pure check of it, and the entry that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from penstock.errors import UserError
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.report import UNROUTED, Share
from penstock.lake.proposal import Checked, FencePart, StartPart, split
from penstock.lake.state import Totals, slice_totals
from penstock.logs.log import EpochMark, Partition, Slice
from penstock.tables.export.ledger.entry import DeferredRecord, EntryKind, SliceRecord, TakenRecord, WrittenRecord
from penstock.tables.export.ledger.state import Cause, LedgerState, RoutedPartition


@dataclass(frozen=True, slots=True)
class RoutedPart:
    """One slice of a batch with the shares of its types; `UNROUTED` for what belongs to none."""

    piece: Slice
    token: int
    shares: Mapping[str, Share]
    takes: Mapping[str, int]
    """The types that took part, each from an offset."""
    lagging: Mapping[str, Cause] = field(default_factory=dict)
    """Why the others did not; a type that failed on the way is named here too."""
    main: bool = True
    watermark_ms: int | None = None
    taken_from: Mapping[str, int] = field(default_factory=dict)
    """From which offset on the files hold a type's records, where its own table was ahead."""
    routing: str = ""
    """The id of the routing under which a slice of the partition itself was read."""
    mark: EpochMark | None = None
    """The last record of the slice; None if it has none, or its log keeps no leader epochs."""

    @property
    def partition(self) -> Partition:
        return self.piece.partition

    @property
    def written(self) -> Mapping[str, Share]:
        """The shares that are going to be visible."""
        return {name: each for name, each in self.shares.items() if name in self.takes and name not in self.lagging}

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for share in self.written.values() for file in share.files)

    @property
    def quarantine_files(self) -> tuple[StagedFile, ...]:
        counted = {**self.written, UNROUTED: self.shares.get(UNROUTED, Share())}
        return tuple(file for share in counted.values() for file in share.quarantine_files)

    @property
    def counted(self) -> Counts:
        """What became of the records that this slice dealt with; those left are not among them."""
        counts = sum((share.counts for share in self.written.values()), Counts())
        return counts + self.shares.get(UNROUTED, Share()).counts

    def without(self, name: str, cause: Cause = Cause.FAILING) -> RoutedPart:
        """The same slice with a type left."""
        return replace(self, lagging={**self.lagging, name: cause})


LedgerPart = StartPart | FencePart | RoutedPart


def check(parts: Iterable[LedgerPart], state: LedgerState) -> Checked[LedgerPart]:
    """Split a proposal into what the ledger takes in this state and what it refuses, partition by partition."""
    return split(parts, lambda part: _refusal(part, state.of(part.partition)))


def _refusal(part: LedgerPart, here: RoutedPartition) -> str | None:
    if part.token < here.token:
        return f"token {part.token} is older than the table's {here.token}"
    match part:
        case StartPart():
            return None if here.position is None else f"already started, position is {here.position}"
        case FencePart():
            return None
        case RoutedPart(main=True):
            if here.position == part.piece.start:
                return None
            return f"the slice starts at {part.piece.start}, the table's position is {here.position}"
        case RoutedPart():
            return _lane_refusal(part, here)
        case _:
            assert_never(part)


def _lane_refusal(part: RoutedPart, here: RoutedPartition) -> str | None:
    """A catch-up is checked against each type's own position, and ends where the others are (RULES L5)."""
    if part.piece.end > (here.position or 0):
        return f"the catch-up ends at {part.piece.end}, beyond the table's position {here.position}"
    for name, start in part.takes.items():
        lane = here.lanes.get(name)
        if lane is None or lane.position != start:
            found = "does not lag" if lane is None else f"is at {lane.position}"
            return f"the catch-up of {name} starts at {start}, the type {found}"
    return None


def refuse_strangers(parts: tuple[LedgerPart, ...], state: LedgerState) -> None:
    """A slice written by a process that does not know a type would hide that type's records for ever."""
    for part in parts:
        if isinstance(part, RoutedPart) and part.main:
            strange = sorted(state.types.keys() - part.takes.keys() - part.lagging.keys())
            if strange:
                raise UserError(
                    f"the table has types that this process does not know: {', '.join(strange)}",
                    detail="another process added them with a newer job file",
                    hint="start this process again with that job file",
                )


def without_lanes(part: LedgerPart, state: LedgerState) -> LedgerPart:
    """A type that began to lag after the slice was written keeps lagging with it: its lane comes first (RULES L5)."""
    if isinstance(part, RoutedPart) and part.main:
        for name, lane in state.of(part.partition).lanes.items():
            part = part.without(name, lane.cause)
    return part


def kind_of(accepted: tuple[LedgerPart, ...]) -> EntryKind:
    routed = [part for part in accepted if isinstance(part, RoutedPart)]
    if routed:
        return EntryKind.BATCH if any(part.main for part in routed) else EntryKind.CATCH_UP
    return EntryKind.START if any(isinstance(part, StartPart) for part in accepted) else EntryKind.FENCE


def slice_record(part: RoutedPart, here: RoutedPartition) -> SliceRecord:
    """What a slice will have done, on top of what the ledger holds of its partition."""
    written = {name: written_record(share) for name, share in part.written.items() if share.files}
    return SliceRecord(
        partition=part.partition,
        start=part.piece.start,
        end=part.piece.end,
        token=part.token,
        totals=_main_totals(part) if part.main else _catch_up_totals(part, here),
        watermark_ms=part.watermark_ms,
        written=written,
        deferred=_deferred(part) if part.main else {},
        taken=None if part.main else _taken(part),
        quarantine=part.quarantine_files,
        routing=part.routing if part.main else "",
        mark=part.mark if part.main else None,
    )


def written_record(share: Share) -> WrittenRecord:
    size_bytes = sum(file.size_bytes for file in share.files)
    return WrittenRecord(share.counts.written, len(share.files), size_bytes, dict(share.days))


def _deferred(part: RoutedPart) -> dict[str, DeferredRecord]:
    left = {}
    for name, share in part.shares.items():
        if name == UNROUTED or name in part.written or not share.counts.read or share.first is None:
            continue
        cause = part.lagging.get(name, Cause.ROTATION)
        left[name] = DeferredRecord(share.counts.read, share.first, share.size_bytes, cause)
    return left


def _main_totals(part: RoutedPart) -> Totals:
    counts, deferred = part.counted, sum(each.count for each in _deferred(part).values())
    return slice_totals(part.piece, replace(counts, read=counts.read + deferred)) + Totals(deferred=deferred)


def _catch_up_totals(part: RoutedPart, here: RoutedPartition) -> Totals:
    counts = part.counted
    backfilled = sum(
        share.counts.read for name, share in part.written.items() if part.piece.end <= here.lanes[name].counted_from
    )
    return Totals(
        written=counts.written,
        quarantined=counts.quarantined,
        filtered=counts.filtered,
        skipped=counts.skipped,
        deferred=-(counts.read - backfilled),
        backfilled=backfilled,
    )


def _taken(part: RoutedPart) -> dict[str, TakenRecord]:
    """Also a type without any record in the slice moves with it (I2)."""
    return {
        name: TakenRecord(
            start, part.shares.get(name, Share()).counts.read, max(0, min(part.piece.read_from, part.piece.end) - start)
        )
        for name, start in part.takes.items()
        if name not in part.lagging
    }
