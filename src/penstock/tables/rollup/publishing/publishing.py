"""Closed windows out to a topic, once each: which rows are due, and up to where each bucket has been published.

The truth is the position in the topic's own transactions (RULES U1). What the table of windows keeps beside it, the
close up to which each bucket is published, follows it and may lag: it shows how far publishing is, and proves later
that positions were lost. No close waits for publishing: a position names a row by its key, not by its number, so rows
that a later close replaces move none of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.environment import Environment
from penstock.errors import FencedError, PenstockError, TransientError, UserError
from penstock.events import Retrying
from penstock.job.spec import JobSpec
from penstock.lake.delta.keys import fingerprint
from penstock.lake.delta.provenance import Provenance
from penstock.lake.delta.table import Change, Table
from penstock.logs.log import Log
from penstock.publish.formats.encoders import ENCODERS
from penstock.publish.output import RECORDS_PER_TRANSACTION, Output, PublishBucket, PublishPosition
from penstock.publish.spec import PublishSpec
from penstock.tables.kind import View
from penstock.tables.rollup.closing.standing import closed_key
from penstock.tables.rollup.events import PublisherFenced, PublishPositionLost, WindowsPublished
from penstock.tables.rollup.publishing.rows import Page, Pages, next_row, position_between
from penstock.tables.rollup.spec import RollupSpec

ROWS_PER_TURN_MAX = 100_000
"""What is published before new records get their turn."""
LOOK_SECONDS = 1.0
"""How often the table is asked for new closes, while nothing waits."""
FENCED_SECONDS = 30.0
"""How long a bucket is left to the producer that took it: one that has lost its claim will have learned so by then."""

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
"""The pause after a failure, at first and at most: an attempt to reach a cluster that is away holds up batches."""

OpenOutput = Callable[[PublishBucket], Output]


@dataclass(frozen=True, slots=True, eq=False)
class Publish:
    """The chore: the next rows of the buckets of this process. No two are the same work."""

    name = "publish"
    batch = None


@dataclass(slots=True)
class _Lane:
    """A bucket that this process publishes, under the claim of its partition."""

    bucket: PublishBucket
    token: int
    output: Output
    position: PublishPosition | None = None
    """None: not open."""
    fenced_at: float | None = None
    """When another producer took it."""
    failures: int = 0
    """In a row."""
    in_topic: int = 0
    """The close of the position as the topic has it: closes without rows of the bucket move only the other."""


@dataclass(slots=True)
class _Turn:
    """What one turn has done."""

    rows: int = 0
    failed: dict[int, PenstockError] = field(default_factory=dict)
    """By bucket, what does not go away by itself."""
    transient: TransientError | None = None
    """Ends the turn: a cluster that is away would let every other bucket wait for its own time-out."""

    @property
    def over(self) -> bool:
        return self.rows >= ROWS_PER_TURN_MAX or self.transient is not None


class Publishing:
    """Publishes the closed windows of a job, bucket by bucket; each bucket belongs to a partition of the log."""

    def __init__(
        self,
        job: JobSpec[RollupSpec],
        spec: PublishSpec,
        windows: Table,
        log: Log,
        environment: Environment,
        open_output: OpenOutput,
    ) -> None:
        self._job = job
        self._spec = spec
        self._windows = windows
        self._log = log
        self._environment = environment
        self._open_output = open_output
        self._life = str(fingerprint(str(windows.handle.metadata().id)))
        self._lanes: dict[int, _Lane] = {}
        self._pages = Pages(windows, spec.buckets)
        self._look_at = 0.0
        self._pause_seconds = 0.0
        """At most, after the last failure."""
        self._retry_at = 0.0
        self._last_work = False
        """Whether a bounded run waits for nothing else: then its own retries end it."""

    def chores(self, view: View) -> Sequence[Publish]:
        self._follow_claims(view)
        self._look(view)
        self._last_work = view.flush_now and view.idle
        waits = view.now < self._retry_at and not self._last_work
        return [Publish()] if not waits and self._due() else []

    def lags(self) -> bool:
        """Whether rows of our buckets wait, by what the table says now."""
        if self._lanes:
            self._windows.refresh()
        return self._due()

    def _due(self) -> bool:
        closed = self._closed()
        return any(self._published(lane.bucket.number) < closed for lane in self._usable())

    def perform(self) -> None:
        """Publish what is due, up to a bound; a bucket that fails does not keep the others waiting for long."""
        turn = _Turn()
        try:
            while not turn.over and (lanes := self._behind(turn)):
                first = min((self._start(lane) for lane in lanes), key=next_row)
                page = self._pages.turn_to(first, self._closed(), self._lanes)
                for lane in lanes:
                    if not turn.over:
                        self._advance(lane, page, turn)
        finally:
            self._note_published()
        if turn.rows:
            self._environment.listener.event(WindowsPublished(rows=turn.rows, topic=self._spec.topic))
        for failure in turn.failed.values():
            raise failure
        self._back_off(turn.transient)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.output.close()
        self._lanes.clear()

    def _look(self, view: View) -> None:
        """See the closes of whichever process leads."""
        if self._lanes and (view.flush_now or view.now >= self._look_at):
            self._windows.refresh()
            self._look_at = view.now + LOOK_SECONDS

    def _usable(self) -> list[_Lane]:
        """The lanes but those that were fenced just now.

        A process that does not know yet that it lost its claim may open a bucket after its owner did. It gives it up
        once it knows, and nobody else would have it if the owner did not come back.
        """
        now = self._environment.now()
        return [
            each for each in self._lanes.values() if each.fenced_at is None or now - each.fenced_at >= FENCED_SECONDS
        ]

    def _behind(self, turn: _Turn) -> list[_Lane]:
        """The lanes with rows to publish; those that failed last time are tried once the others have none."""
        closed = self._closed()
        lanes = [
            lane
            for lane in self._usable()
            if lane.bucket.number not in turn.failed and self._start(lane).close <= closed
        ]
        least = min((lane.failures for lane in lanes), default=0)
        return [lane for lane in lanes if lane.failures == least]

    def _start(self, lane: _Lane) -> PublishPosition:
        """Where a lane goes on, or may go on at the earliest if it is not open."""
        return lane.position or PublishPosition(self._published(lane.bucket.number) + 1)

    def _advance(self, lane: _Lane, page: Page, turn: _Turn) -> None:
        """Publish rows of one bucket, up to the end of the page or as many as the turn has left."""
        try:
            rest = self._pages.rows(lane.bucket.number, self._opened(lane))
            while rest.num_rows and not turn.over:
                part, rest = rest.slice(0, RECORDS_PER_TRANSACTION), rest.slice(RECORDS_PER_TRANSACTION)
                position = position_between(part, rest) if rest.num_rows else page.after
                lane.output.publish(ENCODERS[self._spec.format](part), position)
                turn.rows += part.num_rows
                lane.position, lane.in_topic = position, position.close
            if not rest.num_rows and next_row(self._start(lane)) < next_row(page.after):
                lane.position = page.after
            lane.failures = 0
        except FencedError as error:
            self._fence(lane, error)
        except PenstockError as error:
            # What became of the last transaction is known once the output is opened again.
            lane.position = None
            lane.failures += 1
            if isinstance(error, TransientError):
                turn.transient = error
            else:
                turn.failed[lane.bucket.number] = error

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

    def _opened(self, lane: _Lane) -> PublishPosition:
        """Where to go on: a bucket that had no rows has no position in the topic, only what the table says of it."""
        if lane.position is None:
            found = lane.output.open()
            # Read after the output was opened: nobody else moves the bucket any more.
            self._windows.refresh()
            lane.position, lane.fenced_at = self._resumed(lane, found), None
        return lane.position

    def _resumed(self, lane: _Lane, found: PublishPosition | None) -> PublishPosition:
        """Where to go on. A close without rows of the bucket moves only the number in the table, not the topic."""
        lane.in_topic = 0 if found is None else found.close
        noted = self._windows.transaction(in_topic_key(self._job.name, lane.bucket.number)) or 0
        done = PublishPosition(self._published(lane.bucket.number) + 1)
        if lane.in_topic < noted:
            if self._spec.lost_positions == "fail":
                raise self._lost(lane, found, noted)
            lane.output.publish([], done)
            lane.in_topic = done.close
            self._environment.listener.event(PublishPositionLost(bucket=lane.bucket.number, close=done.close))
            return done
        return done if found is None or found.close < done.close else found

    def _lost(self, lane: _Lane, found: PublishPosition | None, noted: int) -> UserError:
        number = lane.bucket.number
        there = "knows nothing" if found is None else f"goes on with close {found.close}"
        return UserError(
            f"the position of {lane.bucket} is gone from topic {self._spec.positions_topic}",
            detail=f"by {self._windows.spec.path} it goes on with close {noted}, the topic {there}",
            hint="restore the positions topic, or set publish.bootstrap and publish.positions_topic back; if it is "
            f"lost for good, set publish.lost_positions to continue: rows of close {self._published(number) + 1} may "
            "then be published twice",
        )

    def _fence(self, lane: _Lane, error: FencedError) -> None:
        """Where no other process is expected, a second one is the user's to stop."""
        lane.output.close()
        lane.fenced_at, lane.position = self._environment.now(), None
        if self._job.claims is None:
            raise error
        self._environment.listener.event(PublisherFenced(bucket=lane.bucket.number, reason=error.primary))

    def _follow_claims(self, view: View) -> None:
        """Keep the buckets whose partitions are ours, each under its present token."""
        owned = dict(self._owned(view))
        for number, lane in list(self._lanes.items()):
            if owned.get(number) != lane.token:
                lane.output.close()
                del self._lanes[number]
        for number, token in owned.items():
            if number not in self._lanes:
                bucket = PublishBucket(self._job.name, self._life, number, self._spec.buckets)
                self._lanes[number] = _Lane(bucket, token, self._open_output(bucket))

    def _owned(self, view: View) -> Iterator[tuple[int, int]]:
        partitions, claimed = self._log.partitions(), view.tokens
        for number in range(self._spec.buckets if partitions else 0):
            partition = partitions[number % len(partitions)]
            if partition in claimed:
                yield number, claimed[partition]

    def _closed(self) -> int:
        return self._windows.transaction(closed_key(self._job.name)) or 0

    def _published(self, number: int) -> int:
        return self._windows.transaction(self._key(number)) or 0

    def _note_published(self) -> None:
        """Tell the other processes in the table what our buckets have in the topic."""

        def decide() -> Change | None:
            done: dict[str, int] = {}
            for number, lane in self._lanes.items():
                if lane.position is not None and lane.position.close - 1 > self._published(number):
                    done[self._key(number)] = lane.position.close - 1
                key = in_topic_key(self._job.name, number)
                if lane.position is not None and lane.in_topic > (self._windows.transaction(key) or 0):
                    done[key] = lane.in_topic
            return Change([], done, Provenance(kind="publish", job=self._job.name).metadata) if done else None

        self._windows.swap(decide)

    def _key(self, number: int) -> str:
        return published_key(self._job.name, number)


def published_key(job: str, bucket: int) -> str:
    """In the table of windows: the last close whose rows of a bucket are all in the topic; it may lag."""
    return f"{job}#published/{bucket}"


def in_topic_key(job: str, bucket: int) -> str:
    """In the table of windows: the close that the bucket's position in the topic is at, or was a little before."""
    return f"{job}#in_topic/{bucket}"


def buckets_key(job: str) -> str:
    """In the table of windows: how many buckets its rows are published in, as long as it lives."""
    return f"{job}#publish_buckets"


def keep_buckets(job: JobSpec[RollupSpec], spec: PublishSpec, windows: Table) -> None:
    """Rows would change their buckets, and with them their positions: the number stays as it is."""
    key = buckets_key(job.name)

    def decide() -> Change | None:
        if windows.transaction(key) is not None:
            return None
        return Change([], {key: spec.buckets}, Provenance(kind="publish", job=job.name).metadata)

    windows.swap(decide)
    before = windows.transaction(key)
    if before != spec.buckets:
        raise UserError(
            f"job {job.name} publishes in {before} buckets, its file says {spec.buckets}",
            detail="positions are kept per bucket, and rows would change theirs",
            hint=f"set publish.buckets to {before}: it stays as it is for the life of the table",
        )
