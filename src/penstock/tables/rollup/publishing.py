"""Publishes closed windows to a topic, each once: which rows are due, and up to where each bucket is published.

The position in the topic's own transactions decides (RULES U1); it advances with every close, also one without rows of
the bucket. The table of windows keeps the last close that each bucket has published. That number may lag: it shows
progress, and reveals a lost position. No close waits for publishing: a position names a row by its key, not by its
number, so a later close can replace rows without moving the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.environment import Environment
from penstock.errors import FencedError, PenstockError, TransientError, UserError
from penstock.events import Retrying
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, DeltaLog
from penstock.logs.log import Log
from penstock.publish.formats import ENCODERS
from penstock.publish.kafka import KafkaOutput
from penstock.publish.output import (
    RECORDS_PER_TRANSACTION,
    PublishBucket,
    PublishOutput,
    PublishPosition,
    encode_position,
)
from penstock.publish.spec import PublishSpec
from penstock.tables.kind import View
from penstock.tables.rollup.events import PublisherFenced, WindowsPublished
from penstock.tables.rollup.numbers import CLOSED, PUBLISH_BUCKETS, PUBLISHED, keep_numbers, number_key, number_of
from penstock.tables.rollup.pages import Page, position_after, read_page, rows_after, sort_key
from penstock.tables.rollup.spec import RollupSpec

ROWS_PER_TURN_MAX = 100_000
"""Rows that are published before the next batch may run."""
CHECK_SECONDS = 1.0
"""The pause between checks of the table for new closes, while no rows wait."""
FENCED_SECONDS = 30.0
"""How long a fenced bucket is not opened. A producer that has lost its claim knows that by then."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
"""The first and the longest pause after a failure: an attempt to reach an unavailable cluster delays batches."""

OpenOutput = Callable[[JobSpec[RollupSpec], PublishSpec, PublishBucket, Environment], PublishOutput]
OUTPUTS: dict[str, OpenOutput] = {
    "kafka": lambda job, spec, bucket, environment: KafkaOutput(spec, job.log, bucket, environment.at_step)
}
"""Creates the output of a bucket; tests replace it."""


@dataclass(frozen=True, slots=True, eq=False)
class Publish:
    """The chore that publishes the next rows of this process's buckets. No two are equal."""

    name = "publish"
    batch = None


@dataclass(slots=True)
class _Bucket:
    """A bucket that this process publishes, while it holds the claim of a partition."""

    bucket: PublishBucket
    token: int
    output: PublishOutput
    position: PublishPosition | None = None
    """None: not open."""
    fenced_at: float | None = None
    """When another producer fenced it."""
    failures: int = 0
    """Consecutive failures."""


def check_publishing(job: JobSpec[RollupSpec], environment: Environment) -> None:
    """Raise `UserError` if the job publishes to a topic that does not exist."""
    spec = job.table.publish
    if spec is not None:
        OUTPUTS["kafka"](job, spec, PublishBucket(job.name, "", 0, spec.buckets), environment).check()


def open_publishing(job: JobSpec[RollupSpec], windows: DeltaLog, log: Log) -> Publishing | None:
    """The publisher of a job; None if it does not publish."""
    spec = job.table.publish
    if spec is None:
        return None
    key = number_key(job.name, PUBLISH_BUCKETS)
    before = keep_numbers(windows, key, {key: spec.buckets})[key]
    if before != spec.buckets:
        raise UserError(
            f"job {job.name} publishes in {before} buckets, its file states {spec.buckets}",
            detail="positions are kept per bucket, and rows would change theirs",
            hint=f"set publish.buckets to {before}: it cannot change as long as the table exists",
        )
    return Publishing(job, spec, windows, log, OUTPUTS["kafka"])


class Publishing:
    """Publishes the closed windows of a job by bucket; each bucket belongs to a partition of the log."""

    def __init__(
        self, job: JobSpec[RollupSpec], spec: PublishSpec, windows: DeltaLog, log: Log, open_output: OpenOutput
    ) -> None:
        self._job = job
        self._spec = spec
        self._windows = windows
        self._log = log
        self._environment = windows.environment
        self._open_output = open_output
        self._lanes: dict[int, _Bucket] = {}
        self._page: Page | None = None
        self._check_at = 0.0
        self._pause_seconds = 0.0
        """At most, after the last failure."""
        self._retry_at = 0.0
        self._last_work = False
        """Whether a bounded run has no other work: then a failure ends it."""

    def chores(self, view: View) -> Sequence[Publish]:
        self._follow_claims(view)
        if self._lanes and (view.flush_now or view.now >= self._check_at):
            # Closes may come from another process.
            self._windows.refresh()
            self._check_at = view.now + CHECK_SECONDS
        self._last_work = view.flush_now and view.idle
        waits = view.now < self._retry_at and not self._last_work
        return [Publish()] if not waits and self._due() else []

    def lags(self) -> bool:
        """Whether the newest version of the table has unpublished rows of our buckets."""
        if self._lanes:
            self._windows.refresh()
        return self._due()

    def perform(self) -> None:
        """Publish due rows, up to a bound. The first failure ends the turn.

        With an unavailable cluster every other bucket would wait for its own time-out.
        """
        published, failure = 0, None
        try:
            for rows in self._transactions():
                published += rows
                if published >= ROWS_PER_TURN_MAX:
                    break
        except TransientError as error:
            failure = error
        finally:
            self._note_published()
            if published:
                self._environment.listener.event(WindowsPublished(rows=published, topic=self._spec.topic))
        self._back_off(failure)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.output.close()
        self._lanes.clear()

    def _due(self) -> bool:
        closed = number_of(self._windows, CLOSED)
        return any(self._published(lane) < closed for lane in self._usable())

    def _usable(self) -> list[_Bucket]:
        """The lanes, without those that were fenced recently.

        A process that does not know yet that it lost its claim may open a bucket after its owner did. It closes the
        bucket once it knows, so the owner must try again.
        """
        now = self._environment.now()
        lanes = self._lanes.values()
        return [lane for lane in lanes if lane.fenced_at is None or now - lane.fenced_at >= FENCED_SECONDS]

    def _transactions(self) -> Iterator[int]:
        """Publish all pages; yields the number of rows after each transaction."""
        while lanes := self._behind():
            page = self._page_of(min(map(self._start, lanes), key=sort_key))
            for lane in lanes:
                yield from self._advance(lane, page)

    def _behind(self) -> list[_Bucket]:
        """The lanes with rows to publish; those that failed last time are tried after the others."""
        closed = number_of(self._windows, CLOSED)
        lanes = [lane for lane in self._usable() if self._start(lane).close <= closed]
        least = min((lane.failures for lane in lanes), default=0)
        return [lane for lane in lanes if lane.failures == least]

    def _start(self, lane: _Bucket) -> PublishPosition:
        """The position of a lane; if it is not open, the earliest that it can have."""
        return lane.position or PublishPosition(self._published(lane) + 1)

    def _page_of(self, position: PublishPosition) -> Page:
        """The page with the rows after a position; the one in memory, if it has them."""
        page = self._page
        if page is None or not page.holds(position, self._lanes):
            # Free the old page before the new one is read.
            page = self._page = None
            closed = number_of(self._windows, CLOSED)
            page = self._page = read_page(self._windows, position, closed, list(self._lanes), self._spec.buckets)
        return page

    def _advance(self, lane: _Bucket, page: Page) -> Iterator[int]:
        """Publish the rows of one bucket up to the end of the page; yields their number after each transaction."""
        try:
            position = self._opened(lane)
            rows = rows_after(page.rows[lane.bucket.number], position)
            while sort_key(position) < sort_key(page.after):
                part, rows = rows.slice(0, RECORDS_PER_TRANSACTION), rows.slice(RECORDS_PER_TRANSACTION)
                position = position_after(part) if rows.num_rows else page.after
                lane.output.publish(ENCODERS[self._spec.format](part) if part.num_rows else [], position)
                lane.position, lane.failures = position, 0
                yield part.num_rows
        except FencedError as error:
            self._fence(lane, error)
        except PenstockError:
            # The next `open` shows whether the last transaction was committed.
            lane.position = None
            lane.failures += 1
            raise

    def _back_off(self, failure: TransientError | None) -> None:
        """Wait longer after each failure, while batches continue; raise it if a bounded run has no other work."""
        if failure is None:
            self._pause_seconds, self._retry_at = 0.0, 0.0
            return
        self._pause_seconds = min(RETRY_SECONDS_MAX, max(RETRY_SECONDS, 2 * self._pause_seconds))
        pause = self._environment.rng.uniform(self._pause_seconds / 2, self._pause_seconds)
        self._retry_at = self._environment.now() + pause
        if self._last_work:
            raise failure
        self._environment.listener.event(
            Retrying(reason=failure.primary, detail=failure.detail, pause_seconds=round(pause, 2))
        )

    def _opened(self, lane: _Bucket) -> PublishPosition:
        """The position to continue from. `UserError` if the topic has lost a position that the table knows of."""
        if lane.position is not None:
            return lane.position
        committed = lane.output.open()
        # Read after the output was opened: from then on no other process moves the bucket.
        self._windows.refresh()
        expected = PublishPosition(self._published(lane) + 1)
        position = committed or PublishPosition(1)
        if position.close < expected.close:
            state = "has none" if committed is None else f"continues with close {committed.close}"
            record = encode_position(lane.bucket, expected).decode()
            raise UserError(
                f"the position of {lane.bucket} is missing in topic {self._spec.positions_topic}",
                detail=f"by {self._windows.spec.path} it continues with close {expected.close}, the topic {state}",
                hint="restore the topic, or set publish.bootstrap and publish.positions_topic back; if it cannot be "
                f"restored, produce {record} with the key {lane.bucket.key} to its partition {lane.bucket.number}: "
                f"rows of close {expected.close} may then be published twice",
            )
        lane.position, lane.fenced_at = position, None
        return position

    def _fence(self, lane: _Bucket, error: FencedError) -> None:
        """Leave the bucket to the other producer; without claims there must not be another one, and the job stops."""
        lane.output.close()
        lane.fenced_at, lane.position = self._environment.now(), None
        if self._job.claims is None:
            raise error
        self._environment.listener.event(PublisherFenced(bucket=lane.bucket.number, reason=error.primary))

    def _follow_claims(self, view: View) -> None:
        """Keep the buckets whose partitions are ours, each with its present token."""
        partitions, owned = self._log.partitions(), dict[int, int]()
        for bucket_number in range(self._spec.buckets if partitions else 0):
            token = view.tokens.get(partitions[bucket_number % len(partitions)])
            if token is not None:
                owned[bucket_number] = token
        for bucket_number, lane in list(self._lanes.items()):
            if owned.get(bucket_number) != lane.token:
                lane.output.close()
                del self._lanes[bucket_number]
        for bucket_number, token in owned.items():
            if bucket_number not in self._lanes:
                table = str(fingerprint(self._windows.id))
                bucket = PublishBucket(self._job.name, table, bucket_number, self._spec.buckets)
                output = self._open_output(self._job, self._spec, bucket, self._environment)
                self._lanes[bucket_number] = _Bucket(bucket, token, output)

    def _published(self, lane: _Bucket) -> int:
        return number_of(self._windows, PUBLISHED, lane.bucket.number)

    def _note_published(self) -> None:
        """Store in the table which closes of our buckets are published."""

        def decide() -> Change | None:
            published = {
                number_key(self._job.name, PUBLISHED, lane.bucket.number): lane.position.close - 1
                for lane in self._lanes.values()
                if lane.position is not None and lane.position.close - 1 > self._published(lane)
            }
            return Change([], published, Provenance(kind="publish", job=self._job.name).metadata) if published else None

        self._windows.swap(decide)
