"""The commits of a batch: first to the log of every type that has records in it, then to the job log (RULES E1, E2).

A type's commit holds its files, its quarantined records and its position; it needs no token, because the records are
the same, whichever process writes them. The job's commit comes last, checks the token, and never moves a partition past
records that some type has not landed, unless it says in the same commit that this type lags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from msgspec import structs

from penstock.environment import new_batch_id
from penstock.errors import PenstockError, UserError
from penstock.flow.write.manifest import Counts, StagedFile
from penstock.flow.write.report import UNROUTED, Share
from penstock.lake.delta.keys import field_key, flow_key, topic_fingerprint
from penstock.lake.delta.table import SchemaMovedError, Table
from penstock.lake.proposal import AcceptedPart, FencePart, Outcome, Proposal, Refusal, SlicePart, StartPart, split
from penstock.lake.staged import StagedFileGoneError, check_staged
from penstock.lake.state import Numbers
from penstock.logs.log import EpochMark, Partition, Slice
from penstock.tables.export.days import DayMarkers, day_key
from penstock.tables.export.finishing import Rename
from penstock.tables.export.logs import FILES_END, STAGED, ExportLogs
from penstock.tables.export.names import Day, day_folder, final_name
from penstock.tables.export.state import (
    EVENT_MS,
    Cause,
    Deferred,
    ExportState,
    JobPartition,
    Taken,
    caught_up,
    deferred_lags,
    incarnation_key,
    lag_numbers,
    outcomes_key,
)

COMMITS_AT_ONCE = 16
THERE = "there"
"""The sum of a share that counts the records which its type had already."""


@dataclass(frozen=True, slots=True)
class RoutedPart:
    """One slice of a batch with the shares of its types; `UNROUTED` for what belongs to none."""

    piece: Slice
    token: int
    shares: Mapping[str, Share]
    takes: Mapping[str, int]
    """The types that took part, each from the offset that the job log has for it."""
    taken_from: Mapping[str, int] = field(default_factory=dict)
    """From which offset on the files hold a type's records, where its log was ahead."""
    lagging: Mapping[str, Cause] = field(default_factory=dict)
    """Why the others did not; a type that failed on the way is named here too."""
    main: bool = True
    """False for a catch-up, which moves types and not the partition."""
    watermark_ms: int | None = None
    mark: EpochMark | None = None
    """The last record of the slice; None if it has none, or its log keeps no leader epochs."""

    @property
    def partition(self) -> Partition:
        return self.piece.partition

    @property
    def written(self) -> Mapping[str, Share]:
        """The shares that are going to be visible."""
        return {name: share for name, share in self.shares.items() if name in self.takes and name not in self.lagging}

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for share in self.written.values() for file in share.files)

    @property
    def unrouted(self) -> Share:
        return self.shares.get(UNROUTED, Share())

    @property
    def counted(self) -> Counts:
        """What became of the records that this slice dealt with; those left are not among them."""
        return sum((share.counts for share in self.written.values()), self.unrouted.counts)

    def concerns(self, name: str) -> bool:
        """Whether the log of a type has to take this slice: for records that it lacks, for a gap, or in a catch-up.

        After a gap every type is fenced: a former owner that had read the lost records must not land them later. So a
        catch-up moves its types even if the log has lost all that they waited for.
        """
        share = self.shares.get(name, Share())
        new = share.counts.read > share.sums.get(THERE, 0) or self.piece.gap > 0 or not self.main
        behind = self.taken_from.get(name, self.takes[name]) < self.piece.end
        return new and behind and name not in self.lagging

    def without(self, name: str, cause: Cause = Cause.FAILING) -> RoutedPart:
        """The same slice with a type left behind."""
        return replace(self, lagging={**self.lagging, name: cause})

    def deferred(self) -> dict[str, Deferred]:
        """The records that are left to types that lag."""
        return {
            name: Deferred(share.counts.read, share.first, share.size_bytes, self.lagging.get(name, Cause.ROTATION))
            for name, share in self.shares.items()
            if name != UNROUTED and name not in self.written and share.counts.read and share.first is not None
        }

    def taken(self) -> dict[str, Taken]:
        """What a catch-up did; also a type without any record in the slice moves with it."""
        end = self.piece.end
        return {
            name: Taken(
                end,
                self.shares.get(name, Share()).counts.read,
                max(0, min(self.piece.read_from, end) - start),
                self.watermark_ms,
            )
            for name, start in self.takes.items()
            if name not in self.lagging
        }


@dataclass(frozen=True, slots=True)
class TypesLanded:
    """What became of the commits to the logs of types."""

    moved: frozenset[Partition] = frozenset()
    """Partitions of which a type has moved meanwhile: they are planned again."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Types that could not commit, with the reason: they lag from now on."""
    renames: tuple[Rename, ...] = ()
    """Plain files that are to get their final names."""
    landed: Mapping[str, tuple[AcceptedPart, ...]] = field(default_factory=dict)
    """The parts that the logs of types took."""


class TypeCommits:
    """Lands the shares of a batch in the logs of their types."""

    def __init__(self, logs: ExportLogs, markers: DayMarkers) -> None:
        self._logs = logs
        self._markers = markers
        self._job = logs.job.name

    def land(self, batch_id: str, parts: Sequence[RoutedPart]) -> TypesLanded:
        """Commit every type that has records in the batch, types side by side."""
        by_type: dict[str, list[RoutedPart]] = {}
        for part in parts:
            for name in part.takes:
                if part.concerns(name):
                    by_type.setdefault(name, []).append(part)
        if len(by_type) < 2:
            results = [self._land_type(name, batch_id, own) for name, own in by_type.items()]
        else:
            with ThreadPoolExecutor(COMMITS_AT_ONCE) as pool:
                results = list(pool.map(lambda name: self._land_type(name, batch_id, by_type[name]), sorted(by_type)))
        return TypesLanded(
            frozenset(partition for result in results for partition in result.moved),
            {name: reason for result in results for name, reason in result.failed.items()},
            tuple(rename for result in results for rename in result.renames),
            {name: accepted for result in results for name, accepted in result.landed.items()},
        )

    def _land_type(self, name: str, batch_id: str, parts: Sequence[RoutedPart]) -> TypesLanded:
        partitions = frozenset(part.partition for part in parts)
        try:
            log = self._logs.find_type_log(name)
            if log is None:
                # Its columns are not known yet: what is bad of it is listed by the job log.
                return TypesLanded()
            outcome, renames = self._commit(name, log, batch_id, parts)
        except SchemaMovedError:
            return TypesLanded(moved=partitions)
        except StagedFileGoneError:
            raise
        except PenstockError as error:
            return TypesLanded(failed={name: error.primary})
        self._logs.environment.reach("type_committed")
        moved = partitions - {part.partition for part in outcome.accepted}
        return TypesLanded(moved, renames=renames, landed={name: outcome.accepted})

    def _commit(
        self, name: str, log: Table, batch_id: str, parts: Sequence[RoutedPart]
    ) -> tuple[Outcome, tuple[Rename, ...]]:
        """One commit to the log of a type: accepted only while the log has no record of the slice (RULES E1)."""
        days = {day for part in parts for day in part.shares.get(name, Share()).days}
        renames: dict[Partition, list[Rename]] = {}

        def revise() -> Proposal:
            known = log.known_state([part.partition for part in parts])
            slices = [self._slice(name, part, known.of(part.partition).position, renames) for part in parts]
            numbers = {day_key(self._job, day): self.late_ms(name, day) for day in days}
            extra = {flow_key(self._job): self._logs.settings_of(name), **numbers}
            return Proposal(self._job, batch_id, tuple(slices), extra)

        def prepare() -> None:
            self._markers.hide(name, days)
            if self._logs.is_plain:
                staged = [file for part in parts for file in part.shares.get(name, Share()).files]
                check_staged(self._logs.storage, staged)

        outcome = log.commit_revised(revise, self._logs.columns_of(name), prepare)
        if not self._logs.is_plain:
            return outcome, ()
        landed = [part.partition for part in outcome.accepted]
        return outcome, tuple(rename for partition in landed for rename in renames[partition])

    def _slice(
        self, name: str, part: RoutedPart, position: int | None, renames: dict[Partition, list[Rename]]
    ) -> SlicePart:
        """The slice as a type sees it, from its last commit on: offsets without a record of the type are holes.

        A log beyond what the files begin with would hold their rows twice: it refuses a slice that starts below it.
        """
        share = part.shares.get(name, Share())
        piece, start = part.piece, part.taken_from.get(name, part.takes[name])
        own_start = position if position is not None and position <= start else start
        own = Slice(part.partition, own_start, piece.end, own_start)
        there = share.sums.get(THERE, 0)
        counts = replace(share.counts, read=share.counts.read - there, skipped=share.counts.skipped - there)
        own_renames = renames[part.partition] = [self._rename(name, part, file) for file in share.files]
        files = tuple(
            committed_file(self._logs, name, file, rename.target)
            for file, rename in zip(share.files, own_renames, strict=True)
        )
        numbers = Numbers(latest={FILES_END: piece.end}) if files else Numbers()
        return SlicePart(own, 0, counts, files, share.quarantine_files, numbers=numbers, begins=position is None)

    def _rename(self, name: str, part: RoutedPart, file: StagedFile) -> Rename:
        incarnation = self._logs.known_state().incarnations.get(part.partition.topic, 1)
        final = final_name(self._logs.space, part.partition, incarnation, file.last_offset or 0)
        return Rename(name, file.path, f"{day_folder(name, str(file.partition_values['day']))}/{final}")

    def late_ms(self, name: str, day: Day) -> int:
        """The watermark, if the day is complete and these rows are late; else what the log has."""
        state = self._logs.known_state()
        if self._markers.is_complete(state, name, day):
            return state.watermark_of(name, self._markers.now_ms()) or 0
        return self._logs.days_of(name).get(day, 0)


def committed_file(logs: ExportLogs, name: str, file: StagedFile, target: str) -> StagedFile:
    """A staged file as the log of its type names it: a plain one by its final path, with its staged name beside it."""
    if not logs.is_plain:
        return structs.replace(file, path=file.path.removeprefix(f"{name}/"))
    values = {**file.partition_values, STAGED: file.path.rsplit("/", 1)[-1]}
    return structs.replace(file, path=target, partition_values=values)


class JobCommits:
    """Commits to the job log."""

    def __init__(self, logs: ExportLogs) -> None:
        self._logs = logs
        self._job = logs.job.name

    def land(self, batch_id: str, parts: Sequence[RoutedPart], outcomes: Mapping[str, bool]) -> Outcome:
        """Move positions, totals and lagging types, each partition for itself; `outcomes` are writes of types."""
        refused: tuple[Refusal, ...] = ()

        def revise() -> Proposal:
            nonlocal refused
            state = self._logs.known_state()
            refused = self.refusals(parts)
            stale = {refusal.partition for refusal in refused}
            made = {part.partition: self._part(part, state) for part in parts if part.partition not in stale}
            numbers = {key: number for _, of_part in made.values() for key, number in of_part.items()}
            types = {name: state.types[name].after(done) for name, done in outcomes.items() if name in state.types}
            extra = {**numbers, **{outcomes_key(self._job, name): bits for name, bits in types.items()}}
            rows = sum(part.counted.written for part in parts if part.partition in made)
            return Proposal(self._job, batch_id, tuple(part for part, _ in made.values()), extra, rows=rows)

        return replace(self._logs.job_log.commit_revised(revise), refused=refused)

    def refusals(self, parts: Sequence[RoutedPart]) -> tuple[Refusal, ...]:
        """The slices that the job log, as it is loaded, does not take: another process moved on, or holds a token."""
        state = self._logs.known_state()
        self._refuse_unknown_types(parts, state)
        return split(parts, lambda part: _refusal(part, state.of(part.partition))).refused

    def handshake(self, proposal: Proposal) -> Outcome:
        """Start and fence partitions; a recreated topic takes with it what types had still to read of its former id."""
        parts = tuple(part for part in proposal.parts if isinstance(part, StartPart | FencePart))

        def revise() -> Proposal:
            state = self._logs.known_state()
            mark = state.present_watermark()
            entering = Numbers() if mark is None else Numbers(peaks={EVENT_MS: mark})
            numbers: dict[str, int] = {}
            for part in parts:
                if isinstance(part, StartPart):
                    numbers |= self._recreated(part.partition, state)
            starts = tuple(replace(part, numbers=entering) if isinstance(part, StartPart) else part for part in parts)
            return replace(proposal, parts=starts, extra=numbers)

        return self._logs.job_log.commit_revised(revise)

    def raise_event_times(self, idle: Mapping[Partition, int]) -> None:
        """Let the event times of idle partitions follow the clock, without rows; they never fall."""
        batch_id = new_batch_id()

        def revise() -> Proposal:
            state = self._logs.known_state()
            parts = (
                FencePart(partition, state.of(partition).token, numbers=Numbers(peaks={EVENT_MS: event_ms}))
                for partition, event_ms in idle.items()
            )
            return Proposal(self._job, batch_id, tuple(parts))

        self._logs.job_log.commit_revised(revise)

    def _part(self, part: RoutedPart, state: ExportState) -> tuple[SlicePart | FencePart, dict[str, int]]:
        """A slice as the job log takes it, with the numbers of types that lag after it."""
        here = state.of(part.partition)
        if part.main:
            left = part.deferred()
            read = sum(share.counts.read for share in part.shares.values())
            counts = replace(part.unrouted.counts, read=read)
            lags = deferred_lags(here, left, int(self._logs.environment.now() * 1000))
            made: SlicePart | FencePart = SlicePart(
                part.piece,
                part.token,
                counts,
                quarantine_files=part.unrouted.quarantine_files,
                mark=part.mark,
                numbers=Numbers() if part.watermark_ms is None else Numbers(peaks={EVENT_MS: part.watermark_ms}),
                deferred=sum(deferred.count for deferred in left.values()),
            )
        else:
            lags, totals = caught_up(here, part.taken())
            made = FencePart(part.partition, part.token, totals)
        numbers = [lag_numbers(self._job, part.partition, name, lag) for name, lag in lags.items()]
        return made, {key: number for of_type in numbers for key, number in of_type.items()}

    def _recreated(self, partition: Partition, state: ExportState) -> dict[str, int]:
        """The numbers of a partition's topic when it starts under a new id."""
        job, topic = self._job, partition.topic
        before, now = state.fingerprints.get(topic), topic_fingerprint(partition.topic_id)
        if before is None or before == now:
            return {} if before else {incarnation_key(job, topic): 1}
        numbers = {incarnation_key(job, topic): state.incarnations.get(topic, 1) + 1}
        for (topic_id, number), here in state.partitions.items():
            if topic_fingerprint(topic_id) != before or not here.lags:
                continue
            old = Partition(topic, topic_id, number)
            gone = sum(lag.deferred for lag in here.lags.values())
            numbers[field_key(job, old, "deferred")] = here.totals.deferred - gone
            numbers[field_key(job, old, "vanished")] = here.totals.vanished + gone
            for name, lag in here.lags.items():
                numbers |= lag_numbers(job, old, name, replace(lag, deferred=0))
        return numbers

    def _refuse_unknown_types(self, parts: Sequence[RoutedPart], state: ExportState) -> None:
        """A slice written by a process that does not know a type would hide that type's records for ever."""
        for part in parts:
            unknown = sorted(state.types.keys() - part.takes.keys() - part.lagging.keys()) if part.main else []
            if unknown:
                raise UserError(
                    f"the table has types that this process does not know: {', '.join(unknown)}",
                    detail="another process added them with a newer job file",
                    hint="start this process again with that job file",
                )


def _refusal(part: RoutedPart, here: JobPartition) -> str | None:
    """A slice begins at the position; a catch-up begins at that of each type, and ends where the others are."""
    if part.token < here.token:
        return f"token {part.token} is older than the table's {here.token}"
    if part.main:
        if part.piece.start == here.position:
            return None
        return f"the slice starts at {part.piece.start}, the table's position is {here.position}"
    if part.piece.end > (here.position or 0):
        return f"the catch-up ends at {part.piece.end}, beyond the table's position {here.position}"
    for name, start in part.takes.items():
        lag = here.lags.get(name)
        if lag is None or lag.position != start:
            now = "does not lag" if lag is None else f"is at {lag.position}"
            return f"the catch-up of {name} starts at {start}, the type {now}"
    return None
