"""The commits of a batch: first to the log of every type that has records in it, then to the job log (RULES E1, E2).

A type's commit holds its files, its quarantined records and its position; it needs no token, because the records are
the same, whichever process writes them. The job's commit comes last, checks the token, and never moves a partition past
records that some type has not landed, unless the same commit enters this type as lagging.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from msgspec import structs

from penstock.errors import PenstockError
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.report import Share
from penstock.job.spec import DAY_FOLDER
from penstock.lake.delta.files import StagedFileGoneError, check_staged
from penstock.lake.delta.keys import flow_key
from penstock.lake.delta.table import DeltaLog, SchemaMovedError
from penstock.lake.proposal import FencePart, Outcome, Proposal, Refusal, SlicePart, split
from penstock.lake.state import Numbers
from penstock.logs.log import Batch, EpochMark, Partition, Slice
from penstock.tables.export.logs import FILES_END, STAGED, ExportLogs
from penstock.tables.export.markers import DayMarkers
from penstock.tables.export.names import day_folder, final_name
from penstock.tables.export.state import (
    EVENT_MS,
    MILLIS_PER_SECOND,
    ExportState,
    JobPartition,
    caught_up,
    deferred_lags,
    lag_numbers,
)

COMMITS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RoutedPart:
    """One slice of a batch with the shares of its types."""

    piece: Slice
    token: int
    routed: RoutedSlice
    """As its tasks got it. A catch-up is not `main`: it moves types and not the partition."""
    written: Mapping[str, Share]
    """Of the types that the slice is written for, also of those without a record in it."""
    deferred: Mapping[str, Share]
    """Of types that lag, because their rotation is not due or they failed."""
    unrouted: Share
    """What belongs to no type, or to one without a log."""
    watermark_ms: int | None = None
    mark: EpochMark | None = None

    @property
    def partition(self) -> Partition:
        return self.piece.partition

    @property
    def counted(self) -> Counts:
        """The counts of all records of the slice except deferred ones."""
        return sum((share.counts for share in self.written.values()), self.unrouted.counts)

    def concerns(self, name: str) -> bool:
        """Whether the log of a type has to take this slice: for records that it lacks, for a gap, or in a catch-up.

        After a gap every type is fenced: a former owner that had read the lost records must not land them later. So a
        catch-up moves its types even if the log has lost all that they waited for.
        """
        counts = self.written[name].counts
        new = counts.read > counts.skipped or self.piece.gap > 0 or not self.routed.main
        return new and self.routed.takes[name] < self.piece.end

    def without(self, failed: Collection[str]) -> RoutedPart:
        """The same slice with the records of failed types deferred."""
        written = {name: share for name, share in self.written.items() if name not in failed}
        deferred = {name: share for name, share in self.written.items() if name in failed}
        return replace(self, written=written, deferred={**self.deferred, **deferred})


@dataclass(slots=True)
class TypesLanded:
    """The outcome of the commits to the logs of types."""

    moved: set[Partition] = field(default_factory=set)
    """Partitions in which another process moved a type meanwhile: they are planned again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Types that could not commit, with the reason: they lag from now on."""
    landed: dict[str, list[SlicePart]] = field(default_factory=dict)
    """The slices that the logs of types took."""


def land_types(markers: DayMarkers, batch_id: str, parts: Sequence[RoutedPart]) -> TypesLanded:
    """Commit every type that has records in the batch, in parallel."""
    by_type: dict[str, list[RoutedPart]] = {}
    for part in parts:
        for name in filter(part.concerns, part.written):
            by_type.setdefault(name, []).append(part)
    result = TypesLanded()
    with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
        list(pool.map(lambda name: _land_type(markers, name, batch_id, by_type[name], result), sorted(by_type)))
    return result


def _land_type(markers: DayMarkers, name: str, batch_id: str, parts: Sequence[RoutedPart], result: TypesLanded) -> None:
    logs = markers.logs
    partitions = {part.partition for part in parts}
    try:
        log = logs.find_type_log(name)
        if log is None:
            if name in logs.unreadable:
                result.failed[name] = logs.unreadable[name]
            # Otherwise its columns are not known yet: the job log lists its bad records.
            return
        outcome = _commit(markers, name, log, batch_id, parts)
    except SchemaMovedError:
        result.moved.update(partitions)
    except StagedFileGoneError:
        raise
    except PenstockError as error:
        result.failed[name] = error.reason
    else:
        logs.environment.at_step("type_committed")
        result.moved.update(partitions - {part.partition for part in outcome.accepted})
        result.landed[name] = [part for part in outcome.accepted if isinstance(part, SlicePart)]


def _commit(markers: DayMarkers, name: str, log: DeltaLog, batch_id: str, parts: Sequence[RoutedPart]) -> Outcome:
    """One commit to the log of a type: accepted only while the log has no record of the slice (RULES E1)."""
    logs, days = markers.logs, {day for part in parts for day in part.written[name].days}

    def revise() -> Proposal:
        state = log.cached_state([part.partition for part in parts])
        slices = [_slice(logs, name, part, state.of(part.partition).position) for part in parts]
        extra = {flow_key(logs.job.name): logs.settings_of(name), **markers.late_numbers(name, days)}
        return Proposal(logs.job.name, batch_id, tuple(slices), extra)

    def prepare() -> None:
        markers.hide(name, days)
        if logs.is_plain:
            check_staged(logs.storage, [file for part in parts for file in part.written[name].files])

    return log.commit_revised(revise, logs.columns_of(name), prepare)


def _slice(logs: ExportLogs, name: str, part: RoutedPart, position: int | None) -> SlicePart:
    """The slice as a type sees it, from its last commit on: offsets without a record of the type are holes.

    A log whose position is beyond the start of the files has their rows already: it refuses the slice.
    """
    share, end, start = part.written[name], part.piece.end, part.routed.takes[name]
    start = position if position is not None and position <= start else start
    # Skipped records were counted by an earlier commit.
    counts = replace(share.counts, read=share.counts.read - share.counts.skipped, skipped=0)
    space, number = logs.space_of(part.partition.topic), part.partition.number
    finals = [final_name(space, number, file.last_offset or 0) for file in share.files]
    files = committed_files(logs, name, share.files, finals)
    numbers = Numbers(latest={FILES_END: end}) if files else Numbers()
    own = Slice(part.partition, start, end, start)
    return SlicePart(own, 0, counts, files, share.quarantine_files, numbers=numbers, begins=position is None)


def land_job(logs: ExportLogs, batch: Batch, parts: Sequence[RoutedPart], moved: Collection[Partition]) -> Outcome:
    """Move positions, totals and lagging types, each partition for itself.

    Those in `moved` are planned again, unless the job has moved on too: then another process holds them.
    """
    refused: tuple[Refusal, ...] = ()

    def revise() -> Proposal:
        nonlocal refused
        state = logs.cached_state()
        refused = refusals(logs, parts)
        stale = {*moved, *(refusal.partition for refusal in refused)}
        taken = [part for part in parts if part.partition not in stale]
        pairs = [_part(logs, part, state) for part in taken]
        numbers = {key: number for _, of_part in pairs for key, number in of_part.items()}
        return Proposal(
            logs.job.name,
            batch.id,
            tuple(part for part, _ in pairs),
            numbers,
            files_elsewhere=tuple(file for part in taken for share in part.written.values() for file in share.files),
            counts_elsewhere=sum((share.counts for part in taken for share in part.written.values()), Counts()),
            log_ends=batch.log_ends,
            steps=batch.steps,
        )

    return replace(logs.job_log.commit_revised(revise), refused=refused)


def refusals(logs: ExportLogs, parts: Sequence[RoutedPart]) -> tuple[Refusal, ...]:
    """The slices that the loaded job log refuses: another process moved the position, or holds a newer token."""
    state = logs.cached_state()
    logs.refuse_unnamed_types(state)
    return split(parts, lambda part: _refusal(part, state.of(part.partition))).refused


def _part(logs: ExportLogs, part: RoutedPart, state: ExportState) -> tuple[SlicePart | FencePart, dict[str, int]]:
    """A slice as the job log takes it, with the numbers of types that lag after it."""
    before = state.of(part.partition)
    if part.routed.main:
        shares = {name: share for name, share in part.deferred.items() if share.counts.read}
        deferred = sum(share.counts.read for share in shares.values())
        lags = deferred_lags(before, shares, int(logs.environment.now() * MILLIS_PER_SECOND))
        proposed: SlicePart | FencePart = SlicePart(
            part.piece,
            part.token,
            replace(part.unrouted.counts, read=part.counted.read + deferred),
            quarantine_files=part.unrouted.quarantine_files,
            mark=part.mark,
            numbers=Numbers() if part.watermark_ms is None else Numbers(peaks={EVENT_MS: part.watermark_ms}),
            deferred=deferred,
        )
    else:
        # Also a type without any record in the slice moves with it.
        counts = {name: share.counts.read for name, share in part.written.items()}
        lags, totals = caught_up(before, part.piece, counts)
        proposed = FencePart(part.partition, part.token, totals)
    return proposed, lag_numbers(logs.job.name, part.partition, lags)


def committed_files(
    logs: ExportLogs, name: str, files: Sequence[StagedFile], finals: Sequence[str]
) -> tuple[StagedFile, ...]:
    """Staged files as the log of their type names them: plain ones by final paths, the staged name as a value."""
    if not logs.is_plain:
        return tuple(structs.replace(file, path=file.path.partition("/")[2]) for file in files)
    return tuple(
        structs.replace(
            file,
            path=f"{day_folder(name, str(file.partition_values[DAY_FOLDER]))}/{final}",
            partition_values={**file.partition_values, STAGED: file.path.rsplit("/", 1)[-1]},
        )
        for file, final in zip(files, finals, strict=True)
    )


def _refusal(part: RoutedPart, before: JobPartition) -> str | None:
    """Why a slice is refused: it must begin at the position, and a catch-up at the positions of its types."""
    if part.token < before.token:
        return f"token {part.token} is older than the table's {before.token}"
    if part.routed.main:
        moved = part.piece.start != before.position
        return f"the slice starts at {part.piece.start}, the table's position is {before.position}" if moved else None
    positions = {name: lag.position for name, lag in before.lags.items() if name in part.routed.counts}
    if positions == part.routed.counts and part.piece.end <= (before.position or 0):
        return None
    return f"the catch-up starts at {dict(part.routed.counts)}, its types are at {positions}"
