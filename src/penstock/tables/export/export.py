"""The table of an export job: many types from one log, and no type waits for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from penstock.environment import new_batch_id
from penstock.errors import PenstockError, TransientError
from penstock.flow.route.fanout_flow import RoutedSlice
from penstock.flow.write.manifest import Counts, EpochMarks
from penstock.flow.write.report import Share
from penstock.lake.proposal import FencePart, Outcome, Proposal, StartPart
from penstock.lake.state import DeltaState, Numbers
from penstock.logs.log import Batch, Bounds, Partition, Piece, Slice
from penstock.plan import records_per_batch_max
from penstock.quarantine.table import Quarantine
from penstock.staging.reports import Gathered
from penstock.tables.export.catch_up import CatchUpBatch, idle_event_times, is_rotation_due, next_catch_up
from penstock.tables.export.commits import RoutedPart, land_job, land_types, refusals
from penstock.tables.export.finishing import Finishing, claim_names
from penstock.tables.export.logs import ExportLogs
from penstock.tables.export.markers import DayMarkers
from penstock.tables.export.monitoring import (
    Outcomes,
    RecordsVanished,
    TypeCannotBeWritten,
    TypeWrittenAgain,
    measure,
)
from penstock.tables.export.state import EVENT_MS, MILLIS_PER_SECOND, ExportState, Lag
from penstock.tables.kind import Chore, Landed, View, output

RETRY_SECONDS = 10.0
"""How long a type that could not be written is not tried again."""


class TypeLaggingError(TransientError):
    """A bounded run has done everything else, and a type still cannot be written."""


class Failure(NamedTuple):
    """Why a type could not be written, and when it is tried again. A cache: losing it costs one more try."""

    reason: str
    retry_at: float


@dataclass(frozen=True, slots=True)
class WrittenShares:
    """A batch of all types, ready for its commits."""

    gathered: Gathered
    slices: Mapping[Partition, RoutedSlice]
    staged_at: float

    @property
    def marks(self) -> EpochMarks:
        return self.gathered.marks

    @property
    def seconds(self) -> Mapping[str, float]:
        return self.gathered.seconds


class ExportTable:
    """The logs of an export, its files and its days, without the log that it reads."""

    def __init__(self, logs: ExportLogs) -> None:
        self.logs = logs
        self.job = logs.job
        self.environment = logs.environment
        self.markers = DayMarkers(logs)
        self.finishing = Finishing(logs, self.markers)

    def finish_renames(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Rename staged files of earlier commits; returns the types that cannot be finished, with the reason."""
        failed = self.finishing.finish(self.finishing.pending(names))
        unreadable = self.logs.unreadable.items()
        return {name: reason for name, reason in unreadable if names is None or name in names} | failed

    def put_markers(self, names: Iterable[str]) -> None:
        self.logs.state()
        self.markers.put(names, lambda name: {rename.day for rename in self.finishing.pending([name])})


class Export(ExportTable):
    """The types of an export, each of which may wait or fail alone."""

    divisible = True

    def __init__(self, logs: ExportLogs, quarantine: Quarantine) -> None:
        super().__init__(logs)
        self.spec = logs.export
        self.quarantine = quarantine
        self.failing: dict[str, Failure] = {}
        self._idle_since: dict[Partition, float] = {}
        self._tokens: Mapping[Partition, int] = {}
        """The partitions of the last round."""
        self._is_finished = False
        """Whether all commits up to now are finished, as far as this process knows."""
        self._outcomes: Outcomes = Counter()

    def state(self, partitions: Iterable[Partition]) -> DeltaState:
        return self.logs.job_log.state(partitions)

    def commit(self, proposal: Proposal) -> Outcome:
        """Start and fence partitions; new ones enter at the present watermark."""
        fences = [part for part in proposal.parts if not isinstance(part, StartPart)]

        def revise() -> Proposal:
            mark = self.logs.cached_state().present_watermark()
            entering = Numbers() if mark is None else Numbers(peaks={EVENT_MS: mark})
            entered = (replace(part, numbers=entering) for part in proposal.parts if isinstance(part, StartPart))
            return replace(proposal, parts=(*entered, *fences))

        return self.logs.job_log.commit_revised(revise)

    def shown_position(self, partition: Partition) -> int:
        return self.logs.cached_state().of(partition).position_of() or 0

    def lags(self, partitions: Iterable[Partition]) -> bool:
        state = self.logs.state()
        return bool(self.failing) or any(state.of(partition).lags for partition in partitions)

    def close(self) -> None:
        """There is nothing open between two commits."""

    def record_bytes(self) -> float | None:
        return None

    def own(self, tokens: Mapping[Partition, int]) -> None:
        """Reserve names and topics below the root; another process may have had a partition since it was ours."""
        new = {partition for partition, token in tokens.items() if self._tokens.get(partition) != token}
        if new:
            claim_names(self.logs, new)
            self._is_finished = False
        self._tokens = dict(tokens)

    def finish_pending(self, partitions: Iterable[Partition]) -> None:
        """Finish pending work of interrupted commits, of former owners and of this process (RULES Q1)."""
        if self._is_finished:
            return
        types = self.logs.type_logs(refresh=True)
        self._fail(self.finish_renames())
        self.quarantine.append_missing(self.logs.job_log, partitions)
        for name, log in types.items():
            self.quarantine.append_missing(log, partitions, name)
        self.logs.state()
        self.markers.read()
        self._put_own_markers()
        self._is_finished = True

    # chores

    def chores(self, view: View) -> Sequence[Chore]:
        """First the quick work for idle partitions and complete days, then a catch-up of lagging types."""
        state = self.logs.state()
        bounds = {partition: view.bounds[partition] for partition in view.tokens}
        ends = {partition: held.end for partition, held in bounds.items()}
        rules = measure(state, view.tokens, self.job.alerts, self._outcomes)
        marks = {
            name: mark / MILLIS_PER_SECOND
            for name in self.spec.types
            if (mark := self.markers.watermark_of(name)) is not None
        }
        measured = {**rules.measured, "type_watermark_timestamp_seconds": marks}
        self.environment.listener.event(replace(rules, measured=measured))
        self._retry_failing(state, view)
        self._fail(self._lost_records(state, bounds))
        paused = self._paused(view.now)

        def is_due(name: str, lag: Lag) -> bool:
            spec = self.spec.types.get(name)
            if spec is None or name in paused:
                return False
            # A failed type is tried as soon as its pause is over.
            return view.flush_now or name in self.failing or is_rotation_due(spec.rotation, lag, view.now)

        idle_seconds = self.spec.days.idle_seconds
        self.raise_event_times(idle_event_times(state, ends, view.now, idle_seconds, self._idle_since))
        batch = next_catch_up(state, bounds, is_due, records_per_batch_max(self.job.flush, view.record_bytes))
        if batch is None and view.idle:
            if view.flush_now and self.failing:
                reasons = ", ".join(f"{name} ({failure.reason})" for name, failure in sorted(self.failing.items()))
                raise TypeLaggingError(f"types cannot be written: {reasons}", hint="the other types are up to date")
            self._put_own_markers()
        return [] if batch is None else [batch]

    def perform(self, chore: Chore) -> None:
        """Every chore of an export is a batch."""

    def raise_event_times(self, idle: Mapping[Partition, int]) -> None:
        """Let the event times of idle partitions follow the clock, without rows; they never fall."""
        state = self.logs.cached_state()
        parts = [
            FencePart(partition, state.of(partition).token, numbers=Numbers(peaks={EVENT_MS: event_ms}))
            for partition, event_ms in idle.items()
        ]
        if parts:
            self.commit(Proposal(self.job.name, new_batch_id(), tuple(parts)))

    def _lost_records(self, state: ExportState, bounds: Mapping[Partition, Bounds]) -> dict[str, str]:
        """The types of which the log lost deferred records: they stop, unless `on.gap` allows gaps (I7)."""
        if self.job.on.gap != "fail":
            return {}
        return {
            name: f"{partition} lost offsets {lag.position} to {held.first - 1} before they were written: "
            "restore the log, or set `on.gap: record`"
            for partition, held in bounds.items()
            for name, lag in state.of(partition).lags.items()
            if lag.position < held.first
        }

    def _put_own_markers(self) -> None:
        self.put_markers([name for name in self.spec.types if name not in self.failing])

    # types that fail

    def _paused(self, now: float) -> frozenset[str]:
        """Types that are not tried now: they failed a moment ago, or their logs cannot be read."""
        failed = {name for name, failure in self.failing.items() if now < failure.retry_at}
        return frozenset(failed | self.logs.unreadable.keys())

    def _fail(self, reasons: Mapping[str, str]) -> None:
        """Pause types that failed."""
        for name, reason in reasons.items():
            self.finishing.writable.discard(name)
            before = self.failing.get(name)
            self.failing[name] = Failure(reason, self.environment.now() + RETRY_SECONDS)
            if before is None or before.reason != reason:
                self.environment.listener.event(TypeCannotBeWritten(type=name, reason=reason))

    def _retry_failing(self, state: ExportState, view: View) -> None:
        """Finish the renames of types whose pause is over; at its end, a bounded run tries all once more.

        A type that succeeds and does not lag has recovered.
        """
        lagging = {name for partition in view.tokens for name in state.of(partition).lags}
        is_end = view.flush_now and view.idle
        for name in [name for name, failure in sorted(self.failing.items()) if is_end or failure.retry_at <= view.now]:
            try:
                self.logs.reopen(name)
                reason = self.finishing.probe(name) or self.finish_renames([name]).get(name)
            except PenstockError as error:
                reason = error.reason
            if reason is not None:
                self._fail({name: reason})
            elif name not in lagging:
                del self.failing[name]
                self.environment.listener.event(TypeWrittenAgain(type=name))

    # write

    def routed(self, batch: Batch, pieces: Sequence[Piece]) -> dict[Partition, RoutedSlice]:
        """Which types take part in each slice of a batch, which its tasks read in these pieces.

        Each begins at its offset in the job log. Those that are ahead skip what they have.
        """
        main = not isinstance(batch, CatchUpBatch)
        begins = batch.takes if isinstance(batch, CatchUpBatch) else self._begins(batch)
        tasks = Counter((part.topic, part.partition) for part in pieces)
        routed = {}
        for piece in batch.slices:
            partition, counts = piece.partition, begins[piece.partition]
            task_count = tasks[partition.topic, partition.number]
            takes = {name: self.logs.taken_from(name, partition, start) for name, start in counts.items()}
            after = self.logs.files_ends(counts, partition)
            routed[partition] = RoutedSlice(
                partition.topic_id, piece.start, piece.end, task_count, takes, counts, main, after=after
            )
        return routed

    def _begins(self, batch: Batch) -> Mapping[Partition, Mapping[str, int]]:
        """The types of each new slice with their offsets: all but those that lag, fail or are not due."""
        state, paused, types = self.logs.state(), self._paused(self.environment.now()), self.spec.types.items()
        ready = [name for name, spec in types if name not in paused and (batch.flush or not spec.rotation)]
        return {
            piece.partition: {name: piece.start for name in ready if name not in state.of(piece.partition).lags}
            for piece in batch.slices
        }

    # commit

    def land(self, batch: Batch, tokens: Mapping[Partition, int], staged: WrittenShares) -> Landed:
        """Commit the types, rename their plain files, then commit the job."""
        self._is_finished = False
        parts = [self._part(piece, tokens[piece.partition], staged) for piece in batch.slices]
        # Refuses a process that lost its claim before types take its files.
        self.logs.job_log.refresh()
        refused = refusals(self.logs, parts)
        parts = [part for part in parts if part.partition not in {refusal.partition for refusal in refused}]
        if not parts:
            return Landed(Outcome(None, (), refused))
        failed = {name: share.failed for part in parts for name, share in part.written.items() if share.failed}
        # A type that cannot put its files into place must not show their offsets as written.
        names = {name for part in parts for name, share in part.written.items() if share.files} - {*failed}
        failed |= {name: reason for name in sorted(names) if (reason := self.finishing.probe(name)) is not None}
        self.environment.at_step("checked")
        landed = land_types(self.markers, batch.id, [part.without(failed) for part in parts])
        failed |= landed.failed
        parts = [part.without(failed) for part in parts]
        failed |= self.finishing.finish(
            [
                rename
                for name, slices in landed.landed.items()
                for rename in self.finishing.renames_of(name, [file for piece in slices for file in piece.files])
            ]
        )
        self._fail(failed)
        self._outcomes.update((name, False) for name in failed)
        written = landed.landed.keys() - failed.keys()
        self._outcomes.update((name, True) for name in written)
        outcome = land_job(self.logs, batch, parts, landed.moved)
        self.environment.at_step("committed")
        self.quarantine.append(outcome.accepted, landed.landed)
        outcome = replace(outcome, refused=(*refused, *outcome.refused))
        if outcome.version is None:
            return Landed(outcome)
        self.environment.at_step("quarantined")
        self._is_finished = True
        self._put_own_markers()
        if vanished := sum(part.totals.vanished for part in outcome.accepted if isinstance(part, FencePart)):
            # They were deferred for a type, and the log has lost them since (I7).
            self.environment.listener.event(RecordsVanished(records=vanished))
        accepted = {part.partition for part in outcome.accepted}
        parts = [part for part in parts if part.partition in accepted]
        files = [file for part in parts for share in part.written.values() for file in share.files]
        counts = sum((part.counted for part in parts), Counts())
        sizes = tuple(file.size_bytes for file in files)
        outputs = {
            name: output(self.logs.columns_of(name) or pa.schema([]), of_type)
            for name in sorted(written)
            if (of_type := [file for part in parts if name in part.written for file in part.written[name].files])
        }
        return Landed(outcome, counts, sizes, sum(sizes), outputs, isinstance(batch, CatchUpBatch))

    def _part(self, piece: Slice, token: int, staged: WrittenShares) -> RoutedPart:
        routed, shares = staged.slices[piece.partition], staged.gathered.of(piece.partition)
        written, deferred, unrouted = dict.fromkeys(routed.takes, Share()), {}, Share()
        for name, share in shares.items():
            if name and name not in written:
                deferred[name] = share
            elif name and (self.logs.columns_of(name) is not None or name in self.logs.unreadable):
                written[name] = share
            elif routed.main:
                # A type whose columns are not known yet has no log: the job log lists its bad records.
                unrouted += share
            elif name:
                written[name] = share.as_failed("its columns are not known: no record of it could be decoded yet")
        times = [share.event_ms_max for share in shares.values() if share.event_ms_max is not None]
        # A clock that runs ahead must not close days: nothing is later than now.
        watermark_ms = min(max(times), self.markers.now_ms()) if times else None
        mark = staged.gathered.mark_of(piece.partition)
        return RoutedPart(piece, token, routed, written, deferred, unrouted, watermark_ms, mark)
