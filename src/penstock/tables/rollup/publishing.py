"""Publishes closed windows to a topic, each once: which rows are due, and up to where each bucket is published.

The truth is the position in the topic's own transactions (RULES U1); it follows every close, also one without rows of
the bucket. The table of windows keeps the last close that each bucket has published. That number may lag: it shows
how far publishing is, and reveals a lost position. No close waits for publishing: a position names a row by its key,
not by its number, so rows that a later close replaces move none of the others.
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
"""Rows that are published before new records get their turn."""
LOOK_SECONDS = 1.0
"""How often the table is asked for new closes, while nothing waits."""
FENCED_SECONDS = 30.0
"""How long a bucket is left to the producer that took it. One that has lost its claim knows that by then."""
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
"""The pause after a failure, at first and at most: an attempt to reach a cluster that is away holds up batches."""

OpenOutput = Callable[[JobSpec[RollupSpec], PublishSpec, PublishBucket, Environment], PublishOutput]
OUTPUTS: dict[str, OpenOutput] = {
    "kafka": lambda job, spec, bucket, environment: KafkaOutput(spec, job.log, bucket, environment.at_step)
}
"""How the output of a bucket is made; tests put another one in its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Publish:
    """The chore: the next rows of the buckets of this process. No two are the same work."""

    name = "publish"
    batch = None


@dataclass(slots=True)
class _Bucket:
    """A bucket that this process publishes, under the claim of its partition."""

    bucket: PublishBucket
    token: int
    output: PublishOutput
    position: PublishPosition | None = None
    """None: not open."""
    fenced_at: float | None = None
    """When another producer took it."""
    failures: int = 0
    """In a row."""


def open_publishing(job: JobSpec[RollupSpec], windows: DeltaLog, log: Log) -> Publishing | None:
    """What publishes the windows of a job, if it asks for that."""
    spec = job.table.publish
    if spec is None:
        return None
    key = number_key(job.name, PUBLISH_BUCKETS)
    before = keep_numbers(windows, key, {key: spec.buckets})[key]
    if before != spec.buckets:
        raise UserError(
            f"job {job.name} publishes in {before} buckets, its file says {spec.buckets}",
            detail="positions are kept per bucket, and rows would change theirs",
            hint=f"set publish.buckets to {before}: it cannot change as long as the table exists",
        )
    return Publishing(job, spec, windows, log, OUTPUTS["kafka"])


class Publishing:
    """Publishes the closed windows of a job, bucket by bucket; each bucket belongs to a partition of the log."""

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
        self._look_at = 0.0
        self._pause_seconds = 0.0
        """At most, after the last failure."""
        self._retry_at = 0.0
        self._last_work = False
        """Whether a bounded run waits for nothing else: then its own retries end it."""

    def chores(self, view: View) -> Sequence[Publish]:
        self._follow_claims(view)
        if self._lanes and (view.flush_now or view.now >= self._look_at):
            # The closes of whichever process leads.
            self._windows.refresh()
            self._look_at = view.now + LOOK_SECONDS
        self._last_work = view.flush_now and view.idle
        waits = view.now < self._retry_at and not self._last_work
        return [Publish()] if not waits and self._due() else []

    def lags(self) -> bool:
        """Whether rows of our buckets wait, by the newest version of the table."""
        if self._lanes:
            self._windows.refresh()
        return self._due()

    def perform(self) -> None:
        """Publish what is due, up to a bound. The first failure ends the turn.

        A cluster that is away would let every other bucket wait for its own time-out.
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
        """The lanes, without those that were fenced a moment ago.

        A process that does not know yet that it lost its claim may open a bucket after its owner did. It closes the
        bucket once it knows, so the owner has to come back.
        """
        now = self._environment.now()
        lanes = self._lanes.values()
        return [lane for lane in lanes if lane.fenced_at is None or now - lane.fenced_at >= FENCED_SECONDS]

    def _transactions(self) -> Iterator[int]:
        """Publish page after page, until no row is left; how many rows, after each transaction."""
        while lanes := self._behind():
            page = self._page_of(min(map(self._start, lanes), key=sort_key))
            for lane in lanes:
                yield from self._advance(lane, page)

    def _behind(self) -> list[_Bucket]:
        """The lanes with rows to publish; those that failed last time are tried once the others have none."""
        closed = number_of(self._windows, CLOSED)
        lanes = [lane for lane in self._usable() if self._start(lane).close <= closed]
        least = min((lane.failures for lane in lanes), default=0)
        return [lane for lane in lanes if lane.failures == least]

    def _start(self, lane: _Bucket) -> PublishPosition:
        """Where a lane goes on, or may go on at the earliest if it is not open."""
        return lane.position or PublishPosition(self._published(lane) + 1)

    def _page_of(self, position: PublishPosition) -> Page:
        """The page with the rows that follow a position; the one in memory, if it has them."""
        page = self._page
        if page is None or not page.holds(position, self._lanes):
            # The old page goes before the new one comes.
            page = self._page = None
            closed = number_of(self._windows, CLOSED)
            page = self._page = read_page(self._windows, position, closed, list(self._lanes), self._spec.buckets)
        return page

    def _advance(self, lane: _Bucket, page: Page) -> Iterator[int]:
        """Publish the rows of one bucket up to the end of the page; how many, after each transaction."""
        try:
            position = self._opened(lane)
            rest = rows_after(page.rows[lane.bucket.number], position)
            while sort_key(position) < sort_key(page.after):
                part, rest = rest.slice(0, RECORDS_PER_TRANSACTION), rest.slice(RECORDS_PER_TRANSACTION)
                position = position_after(part) if rest.num_rows else page.after
                lane.output.publish(ENCODERS[self._spec.format](part) if part.num_rows else [], position)
                lane.position, lane.failures = position, 0
                yield part.num_rows
        except FencedError as error:
            self._fence(lane, error)
        except PenstockError:
            # What became of the last transaction is known once the output is opened again.
            lane.position = None
            lane.failures += 1
            raise

    def _back_off(self, failure: TransientError | None) -> None:
        """Wait longer after each failure, while batches go on; the last work of a bounded run fails with it."""
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
        """Where to go on. `UserError` if the topic has lost a position that the table knows of."""
        if lane.position is not None:
            return lane.position
        committed = lane.output.open()
        # Read after the output was opened: no other process moves the bucket any more.
        self._windows.refresh()
        expected = PublishPosition(self._published(lane) + 1)
        position = committed or PublishPosition(1)
        if position.close < expected.close:
            state = "has none" if committed is None else f"goes on with close {committed.close}"
            record = encode_position(lane.bucket, expected).decode()
            raise UserError(
                f"the position of {lane.bucket} is missing in topic {self._spec.positions_topic}",
                detail=f"by {self._windows.spec.path} it goes on with close {expected.close}, the topic {state}",
                hint="restore the topic, or set publish.bootstrap and publish.positions_topic back; if it is lost for "
                f"good, produce {record} with the key {lane.bucket.key} to its partition {lane.bucket.number}: rows of "
                f"close {expected.close} may then be published twice",
            )
        lane.position, lane.fenced_at = position, None
        return position

    def _fence(self, lane: _Bucket, error: FencedError) -> None:
        """Leave the bucket to the other producer; without claims no other one is expected, and the job stops."""
        lane.output.close()
        lane.fenced_at, lane.position = self._environment.now(), None
        if self._job.claims is None:
            raise error
        self._environment.listener.event(PublisherFenced(bucket=lane.bucket.number, reason=error.primary))

    def _follow_claims(self, view: View) -> None:
        """Keep the buckets whose partitions are ours, each under its present token."""
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
        """Keep in the table what our buckets have in the topic."""

        def decide() -> Change | None:
            published = {
                number_key(self._job.name, PUBLISHED, lane.bucket.number): lane.position.close - 1
                for lane in self._lanes.values()
                if lane.position is not None and lane.position.close - 1 > self._published(lane)
            }
            return Change([], published, Provenance(kind="publish", job=self._job.name).metadata) if published else None

        self._windows.swap(decide)
