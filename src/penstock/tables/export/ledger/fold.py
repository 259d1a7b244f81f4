"""The pure fold of the ledger: an entry on top of a state is the next state."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.errors import InvariantError
from penstock.flow.write.offset_ranges import count_of
from penstock.lake.delta.keys import topic_fingerprint
from penstock.lake.state import Totals
from penstock.logs.log import Partition
from penstock.tables.export.ledger.entry import Entry, ReplayRecord, SliceRecord, TakenRecord, TypeRecord
from penstock.tables.export.ledger.names import type_and_day
from penstock.tables.export.ledger.state import (
    Cause,
    Lane,
    LedgerState,
    Listing,
    Rename,
    Reread,
    RoutedFrom,
    RoutedPartition,
    TypeDay,
    TypeState,
    Unfinished,
)
from penstock.tables.export.spec import TypeStart

OUTCOMES_KEPT = 64
RESTORE = (
    "put the newest good copy of _penstock/ back; if there is none, move ledger/, snapshots/ and last_snapshot.json "
    "of the job away and make the ledger again from the files: penstock verify JOB --rebuild"
)
DAMAGED = f"the ledger is damaged, `penstock verify JOB` tells where: {RESTORE}"


def apply(state: LedgerState, entry: Entry) -> LedgerState:
    """The state after an entry; entries come in the order of their numbers, none left out."""
    if entry.number != state.number + 1:
        raise InvariantError(f"ledger entry {entry.number} does not follow {state.number}", hint=DAMAGED)
    partitions = dict(state.partitions)
    fingerprints = dict(state.fingerprints)
    present_ms = _present_watermark(state)
    for start in entry.starts:
        begun = RoutedPartition(start.offset, start.offset, start.token, watermark_ms=present_ms)
        partitions = {each: _left_behind(here, each, start.partition) for each, here in partitions.items()}
        partitions[start.partition] = begun
        fingerprints[start.partition.topic] = topic_fingerprint(start.partition.topic_id)
    for fence in entry.fences:
        here = partitions.get(fence.partition, RoutedPartition())
        partitions[fence.partition] = replace(here, token=fence.token)
    for name, record in entry.types.items():
        if record.start is TypeStart.BEGINNING:
            partitions = {each: _backfilled(here, name, record, entry.at) for each, here in partitions.items()}
    for piece in entry.slices:
        if piece.routing and piece.routing not in {**state.routings, **entry.routings}:
            raise InvariantError(f"ledger entry {entry.number}: the routing {piece.routing} is not known", hint=DAMAGED)
        partitions[piece.partition] = _after(partitions[piece.partition], piece, entry)
    for lost in entry.dropped:
        partitions = {each: _without_lost(here, each, lost) for each, here in partitions.items()}
    if entry.replay is not None:
        partitions |= _replayed(state.replay_run, partitions, entry.replay, entry.number)
    for partition, watermark_ms in entry.idle:
        here = partitions[partition]
        partitions[partition] = replace(here, watermark_ms=later(here.watermark_ms, watermark_ms))
    reopened = {**state.reopened, **dict(entry.reopened)}
    return LedgerState(
        number=entry.number,
        partitions=partitions,
        fingerprints=fingerprints,
        types=_types(state.types, entry),
        unfinished=Unfinished(
            (*entry.pending, *entry.renames), (*entry.pending_removes, *entry.removes), _marks(state, entry)
        ),
        pending=entry.pending,
        reopened={each: at for each, at in reopened.items() if each not in entry.closed},
        first_batch=state.first_batch or entry.batch_id,
        routings={**state.routings, **entry.routings},
        open_days=(state.open_days | _opened(entry)) - frozenset(entry.closed),
        retired=max(state.retired, entry.retired),
        replay_run=state.replay_run if entry.replay is None else entry.replay.run,
        replay_entry=state.replay_entry if entry.replay is None else entry.number,
    )


def _marks(state: LedgerState, entry: Entry) -> tuple[TypeDay, ...]:
    """The days that the entry opens or closes, or whose files it replaces."""
    opened = _opened(entry) - state.open_days
    merged = [*entry.removes, *(each.target for each in entry.renames if each.waits)]
    replaced = {each for path in merged if (each := type_and_day(path)) is not None}
    return tuple(sorted({*entry.pending_marks, *opened, *dict(entry.reopened), *entry.closed, *replaced}))


def _without_lost(here: RoutedPartition, partition: Partition, lost: Rename) -> RoutedPartition:
    """Without the rows of a staged file that is gone: those of a slice, or those that came out of quarantine."""
    if (partition.topic_id, partition.number) != (lost.topic_id, lost.partition):
        return here
    counted = Totals(quarantined=-lost.rows, replayed=-lost.rows) if lost.run else Totals(written=-lost.rows)
    return replace(here, totals=here.totals + counted + Totals(vanished=lost.rows))


def _left_behind(here: RoutedPartition, partition: Partition, started: Partition) -> RoutedPartition:
    """A recreated topic takes with it what types had still to read of its former life."""
    if not here.lanes or partition.topic != started.topic or partition.topic_id == started.topic_id:
        return here
    gone = sum(lane.deferred for lane in here.lanes.values())
    return replace(here, lanes={}, totals=here.totals + Totals(deferred=-gone, vanished=gone))


def _present_watermark(state: LedgerState) -> int | None:
    """Where a partition enters that is created later: it holds nothing back that was complete before (RULES W1)."""
    marks = [here.watermark_ms for _, here in state.current()]
    return min((mark for mark in marks if mark is not None), default=None) if None not in marks else None


def _replayed(
    last_run: int, partitions: Mapping[Partition, RoutedPartition], replay: ReplayRecord, number: int
) -> dict[Partition, RoutedPartition]:
    """The partitions of which a run took records out of quarantine: the slices that had them stay as they were."""
    if replay.run <= last_run:
        raise InvariantError(f"ledger entry {number}: replay run {replay.run} comes after run {last_run}")
    after = {}
    for partition, ranges in replay.offsets:
        here = partitions.get(partition, RoutedPartition())
        totals = here.totals + Totals(replayed=count_of(ranges))
        if here.position is None or ranges[-1][1] > here.position or totals.replayed > totals.quarantined:
            raise InvariantError(f"ledger entry {number}: replay run {replay.run} has records that were never bad")
        after[partition] = replace(here, totals=totals)
    return after


def _after(here: RoutedPartition, piece: SliceRecord, entry: Entry) -> RoutedPartition:
    if (misfit := _misfit(here, piece)) is not None:
        raise InvariantError(f"ledger entry {entry.number}: slice {piece.start} to {piece.end} {misfit}", hint=DAMAGED)
    listing = Listing(entry.number, piece.quarantine) if piece.quarantine else here.listing
    moved = replace(here, token=piece.token, listing=listing, totals=here.totals + piece.totals)
    if piece.taken is None:
        return _advanced(moved, piece, entry.at)
    return _caught_up(moved, piece, piece.taken)


def _misfit(here: RoutedPartition, piece: SliceRecord) -> str | None:
    """Why a slice cannot follow what the ledger holds: folded all the same, it would lose or double rows."""
    if piece.taken is None:
        if piece.start != here.position:
            return f"does not begin at the position {here.position}"
        lagging = sorted(piece.written.keys() & here.lanes.keys())
        return f"writes types that lag: {', '.join(lagging)}" if lagging else None
    for name, took in piece.taken.items():
        lane = here.lanes.get(name)
        if lane is None or not lane.position == took.start <= piece.end:
            return f"takes {name} from {took.start}, but its lane is {lane}"
        if took.start < lane.counted_from < piece.end:
            return f"takes {name} across {lane.counted_from}, where its backfill ends"
    return None


def _advanced(here: RoutedPartition, piece: SliceRecord, at: float) -> RoutedPartition:
    """A slice of the partition itself: every type moves with it but those that it left records of."""
    lanes = dict(here.lanes)
    for name, left in piece.deferred.items():
        lane = lanes.get(name)
        if lane is None:
            lanes[name] = Lane(left.first, left.cause, left.first, left.count, left.size_bytes, at, here.watermark_ms)
        else:
            lanes[name] = replace(
                lane,
                cause=left.cause if lane.cause is not Cause.BACKFILL else lane.cause,
                deferred=lane.deferred + left.count,
                size_bytes=lane.size_bytes + left.size_bytes,
            )
    return replace(
        here,
        position=piece.end,
        lanes=lanes,
        watermark_ms=later(here.watermark_ms, piece.watermark_ms),
        mark=piece.mark or here.mark,
        routings=_needed(_routed(here, piece), min((lane.position for lane in lanes.values()), default=piece.end)),
    )


def _routed(here: RoutedPartition, piece: SliceRecord) -> tuple[RoutedFrom, ...]:
    """The routings of a partition after a slice of it: its own begins with it."""
    last = here.routings[-1].routing if here.routings else ""
    return here.routings if piece.routing == last else (*here.routings, RoutedFrom(piece.start, piece.routing))


def _needed(routings: tuple[RoutedFrom, ...], lowest: int) -> tuple[RoutedFrom, ...]:
    """Without the routings that only concern offsets below the lowest lane."""
    past = sum(each.offset <= lowest for each in routings)
    return routings[max(0, past - 1) :]


def _caught_up(here: RoutedPartition, piece: SliceRecord, taken: Mapping[str, TakenRecord]) -> RoutedPartition:
    """A slice of types that lagged: their lanes move, and end where nothing of them is left."""
    lanes = dict(here.lanes)
    rereads = dict(here.rereads)
    totals = here.totals
    for name, took in taken.items():
        lane = lanes.pop(name)
        backfill = piece.end <= lane.counted_from
        over = lane.cause is Cause.BACKFILL and piece.end >= lane.counted_from
        if name in rereads and name not in piece.written and rereads[name].start == took.start:
            # Nothing of the type was written there, so nothing of it can come twice.
            rereads[name] = replace(rereads[name], start=min(piece.end, rereads[name].end))
        left = lane.deferred if backfill else lane.deferred - took.count
        if piece.end >= (here.position or 0):
            totals += Totals(deferred=-left, vanished=left)
        elif left or piece.end < lane.counted_from:
            lanes[name] = replace(
                lane,
                position=piece.end,
                cause=Cause.ROTATION if over else lane.cause,
                deferred=left,
                watermark_ms=later(lane.watermark_ms, piece.watermark_ms),
                gap=lane.gap if backfill else lane.gap + took.gap,
            )
    return replace(here, lanes=lanes, totals=totals, rereads=rereads)


def _backfilled(here: RoutedPartition, name: str, record: TypeRecord, at: float) -> RoutedPartition:
    """A type that begins where the partition began: it lags by all that was read since."""
    if here.position is None or here.origin is None or here.position <= here.origin:
        return here
    lane = Lane(here.origin, Cause.BACKFILL, here.position, since=at, routing=record.routing)
    rereads = {**here.rereads, name: Reread(here.origin, here.position)}
    return replace(here, lanes={**here.lanes, name: lane}, rereads=rereads)


def later(one: int | None, other: int | None) -> int | None:
    """The later of two event times: a watermark never falls."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def _opened(entry: Entry) -> frozenset[TypeDay]:
    """Days that got rows, and those that were closed before it turned out that their files cannot be put there."""
    written = {(name, day) for each in entry.writers for name, found in each.written.items() for day in found.days}
    waiting = {place for each in entry.pending if (place := type_and_day(each.target)) is not None}
    return frozenset(written | waiting)


def _types(types: Mapping[str, TypeState], entry: Entry) -> dict[str, TypeState]:
    after = dict(types)
    for name, record in entry.types.items():
        after[name] = replace(after.get(name, TypeState()), schema=record.schema)
    wrote = {name for each in entry.writers for name in each.written}
    for each in entry.writers:
        for name, written in each.written.items():
            after[name] = _with_rows(after[name], written.rows, written.files, written.size_bytes)
    for lost in entry.dropped:
        after[lost.type] = _with_rows(after[lost.type], -lost.rows, -1, -lost.size_bytes)
    for name in {*wrote, *entry.failures}:
        outcomes = after[name].outcomes + "0" * entry.failures.get(name, 0) + "1" * (name in wrote)
        after[name] = replace(after[name], outcomes=outcomes[-OUTCOMES_KEPT:])
    return after


def _with_rows(here: TypeState, rows: int, files: int, size_bytes: int) -> TypeState:
    return replace(here, rows=here.rows + rows, files=here.files + files, size_bytes=here.size_bytes + size_bytes)
