"""An export that a test runs step by step: records of one partition, single rounds, a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from penstock.claims import StaticClaims
from penstock.engine.round import RECORD_BYTES_ASSUMED, Rounds, Waiting, open_rounds
from penstock.environment import Environment
from penstock.failpoints import AtStep
from penstock.lake.proposal import Outcome
from penstock.lake.state import DeltaState, Totals
from penstock.logs.log import Batch, Bounds, Partition
from penstock.plan import Wait
from penstock.tables.export.export import WrittenShares
from penstock.tables.kind import SchemaChanged, View
from tests.support.exports import FIRST_DAY, ExportPipe, event
from tests.support.kafka import Produce
from tests.support.pipes import Clock, Recorder

ROUNDS_MAX = 12


def after(count: int) -> str:
    """The rotation of a type that is written once `count` events of it wait."""
    return f"{{events: {count}}}"


def a_month_later() -> Clock:
    """A clock well after the events, independent of the date of the machine."""
    return Clock((FIRST_DAY + timedelta(days=31)).timestamp())


@dataclass(slots=True)
class Story:
    """One export of one topic; the record at offset n of partition 0 has the id n."""

    export: ExportPipe
    topic: str
    produce: Produce
    clock: Clock = field(default_factory=a_month_later)
    sent: int = 0

    def send(self, kinds: str, day: int = 0) -> None:
        """Put one record for each letter, which is its type; all are of one day."""
        events = [event(kind, self.sent + index, day=day) for index, kind in enumerate(kinds)]
        self.produce(self.topic, events, partition=0)
        self.sent += len(events)

    def run_until_idle(self, pipeline: Rounds[WrittenShares]) -> None:
        """Run rounds until no new record waits and nothing is due, each a second later."""
        for _ in range(ROUNDS_MAX):
            self.clock.seconds += 1
            result = pipeline.round()
            if isinstance(result, Waiting) and result.until is None:
                return
        raise AssertionError("there was always something due")

    def read(self, pipeline: Rounds[WrittenShares], kinds: str, day: int = 0) -> None:
        self.send(kinds, day)
        self.run_until_idle(pipeline)

    def run_to_end(self, at_step: AtStep | None = None) -> Recorder:
        return self.export.run_to_end(at_step, clock=self.clock)

    def block(self, name: str) -> None:
        """Make a type impossible to write: a plain file takes the name of its folder."""
        self.export.root.mkdir(exist_ok=True)
        (self.export.root / name).write_text("in the way")

    def unblock(self, name: str) -> None:
        (self.export.root / name).unlink()

    @property
    def totals(self) -> Totals:
        return self.export.state.of(self.partition).totals

    @property
    def partition(self) -> Partition:
        [partition] = [item for item in self.export.state.partitions if (item.topic, item.number) == (self.topic, 0)]
        return partition

    @property
    def global_position(self) -> int | None:
        return self.export.state.global_position(self.partition)

    def position_of(self, name: str) -> int | None:
        return self.export.state.position_of(self.partition, name)

    def written(self) -> list[int]:
        """The offsets of partition 0 in the files of all types, with duplicates."""
        return sorted(offset for (number, offset) in self.export.everywhere().elements() if number == 0)


class Holding(StaticClaims):
    """Holds everything under a token of the test's choice, as one of several processes does."""

    shared = True

    def __init__(self, token: int) -> None:
        self.token = token
        self.lost = False

    def held(self, partitions: Iterable[Partition], table_tokens: Mapping[Partition, int]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.token)

    def keeps(self, partition: Partition, token: int) -> bool:
        return not self.lost


@dataclass(frozen=True, slots=True)
class Staging:
    """A batch that a process has written and not yet committed."""

    pipeline: Rounds[WrittenShares]
    batch: Batch
    tokens: Mapping[Partition, int]
    written: WrittenShares

    def commit(self) -> Outcome:
        return self.pipeline.commit(self.batch, self.tokens, self.written)


@dataclass(slots=True)
class Owner:
    """One process of a shared job."""

    pipeline: Rounds[WrittenShares]
    claims: Holding
    recorder: Recorder

    def stage(self, end: int) -> Staging:
        """Everything up to the commit: claim, fence, plan up to an offset, write."""
        tokens, state, bounds = self._fenced()
        planned = self.pipeline.plan(tokens, state, bounds, True, dict.fromkeys(tokens, end))
        return self._written(planned, tokens)

    def stage_catch_up(self) -> Staging:
        """The same for a catch-up of lagging types, due or not."""
        tokens, _, bounds = self._fenced()
        now = self.pipeline.environment.now()
        [chore] = self.pipeline.table.chores(View(tokens, bounds, now, RECORD_BYTES_ASSUMED, flush_now=True))
        return self._written(chore.batch, tokens)

    def _fenced(self) -> tuple[dict[Partition, int], DeltaState, Mapping[Partition, Bounds]]:
        partitions = self.pipeline.log.partitions()
        tokens = self.pipeline.claim(partitions)
        bounds = self.pipeline.log.bounds(tokens)
        tokens, state = self.pipeline.starter.begin(tokens, partitions, bounds)
        return tokens, state, bounds

    def _written(self, planned: Batch | Wait | None, tokens: Mapping[Partition, int]) -> Staging:
        assert isinstance(planned, Batch)
        self.pipeline.table.own(tokens)
        written = self.pipeline.writer.stage(planned)
        assert not isinstance(written, SchemaChanged)
        return Staging(self.pipeline, planned, tokens, written)


@contextmanager
def owner(story: Story, token: int) -> Iterator[Owner]:
    """A process that took the partitions over under this token."""
    recorder, claims = Recorder(), Holding(token)
    environment = Environment(now=story.clock.now, listener=recorder)
    pipeline: Rounds[WrittenShares] = open_rounds(story.export.job, story.export.spark, environment, claims)
    try:
        yield Owner(pipeline, claims, recorder)
    finally:
        pipeline.close()
