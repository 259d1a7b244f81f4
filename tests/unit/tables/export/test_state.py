"""The state of the job log of an export, and how slices and catch-ups change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.write.manifest import Counts
from penstock.flow.write.report import Share
from penstock.lake.delta.keys import field_key, position_key, topic_fingerprint, topic_key
from penstock.lake.state import TOTAL_NAMES, Totals
from penstock.logs.log import Partition, Slice
from penstock.tables.export.state import (
    EVENT_MS,
    ExportState,
    JobPartition,
    Lag,
    caught_up,
    deferred_lags,
    lag_numbers,
    parse_state,
    routing_key,
    type_key,
)

JOB = "shop.v2"
ZERO = Partition("events", "topic-A", 0)
ONE = Partition("events", "topic-A", 1)
FORMER = Partition("events", "topic-0", 0)
KEY = (ZERO.topic_id, ZERO.number)


def state_of(partitions: Mapping[Partition, JobPartition]) -> ExportState:
    """The topic `events` as it is now, and partitions of it or of what it was before."""
    places = {(partition.topic_id, partition.number): counted for partition, counted in partitions.items()}
    return ExportState(1, places, {"events": topic_fingerprint("topic-A")})


# the numbers of the job log


def test_the_state_is_read_back_from_the_numbers_of_the_log() -> None:
    lag = Lag(7, deferred=3, since_ms=11, watermark_ms=1_000)
    totals = Totals(*range(1, len(TOTAL_NAMES) + 1))
    numbers = {
        position_key(JOB, ZERO): 20,
        field_key(JOB, ZERO, "origin"): 2,
        field_key(JOB, ZERO, "token"): 4,
        field_key(JOB, ZERO, EVENT_MS): 5_000,
        **{field_key(JOB, ZERO, name): getattr(totals, name) for name in TOTAL_NAMES},
        **lag_numbers(JOB, ZERO, {"order.new": lag}),
        topic_key(JOB, "events"): topic_fingerprint("topic-A"),
        type_key(JOB, "order.new"): 77,
        type_key(JOB, "view"): 0,
        routing_key(JOB): 99,
        f"{JOB}#replay": 5,
        "shopXv2/topic-A/0": 1_000,
    }
    assert parse_state(6, numbers, JOB) == ExportState(
        6,
        {KEY: JobPartition(20, 2, 4, totals, 5_000, {"order.new": lag})},
        {"events": topic_fingerprint("topic-A")},
        {"order.new": 77, "view": 0},
        99,
    )


def test_a_finished_lag_is_removed() -> None:
    over = Lag(9, since_ms=11, watermark_ms=1_000)
    numbers = {position_key(JOB, ZERO): 20, **lag_numbers(JOB, ZERO, {"order": over})}
    assert parse_state(1, numbers, JOB).of(ZERO).lags == {}


@given(
    position=st.integers(0, 2**40),
    deferred=st.integers(1, 2**40),
    watermark_ms=st.none() | st.integers(0, 2**45),
)
def test_every_lag_is_read_back_from_the_log(position: int, deferred: int, watermark_ms: int | None) -> None:
    lag = Lag(position, deferred, watermark_ms=watermark_ms)
    assert parse_state(1, lag_numbers(JOB, ZERO, {"order": lag}), JOB).of(ZERO).lags == {"order": lag}


# types


def test_a_type_without_a_lag_has_the_position_of_its_partition() -> None:
    partition = JobPartition(100, lags={"a": Lag(40, 40, 1), "b": Lag(70, 70, 1)})
    assert [partition.position_of(name) for name in ("a", "b", "c", None)] == [40, 70, 100, 40]
    assert JobPartition().position_of("a") is None


# event times


def test_the_slowest_partition_decides_how_far_a_type_is_complete() -> None:
    state = state_of({ZERO: JobPartition(5, watermark_ms=900), ONE: JobPartition(5, watermark_ms=700)})
    assert state.watermark_of("a") == 700
    assert state.watermark_of("a", now_ms=600) == 600, "a clock was ahead"
    assert state.present_watermark() == 700


def test_a_partition_without_an_event_time_holds_every_type_back() -> None:
    state = state_of({ZERO: JobPartition(5, watermark_ms=900), ONE: JobPartition(5)})
    assert (state.watermark_of("a"), state.present_watermark()) == (None, None)
    assert ExportState().watermark_of("a") is None


def test_a_type_that_lags_keeps_its_own_event_time() -> None:
    lag = Lag(2, 2, 1, watermark_ms=100)
    state = state_of({ZERO: JobPartition(5, watermark_ms=900, lags={"a": lag})})
    assert (state.watermark_of("a"), state.watermark_of("b")) == (100, 900)


def test_fenced_partitions_hold_nothing_back() -> None:
    state = state_of({ONE: JobPartition(token=3), ZERO: JobPartition(5, watermark_ms=900)})
    assert state.watermark_of("a") == 900
    assert state.partition_of(KEY) == ZERO


# slices and catch-ups


def test_a_type_lags_from_the_first_record_that_was_left_to_it() -> None:
    partition = JobPartition(10, 0, watermark_ms=500)
    lags = deferred_lags(partition, {"a": Share(Counts(read=3), 12)}, now_ms=8)
    assert lags == {"a": Lag(12, 3, 8, watermark_ms=500)}
    partition = replace(partition, position=20, watermark_ms=900, lags=lags)
    more = deferred_lags(partition, {"a": Share(Counts(read=2), 21)}, now_ms=9)
    assert more == {"a": Lag(12, 5, 8, watermark_ms=500)}


def test_records_not_found_below_the_position_are_counted_as_vanished() -> None:
    partition = JobPartition(20, 0, lags={"a": Lag(3, deferred=5)})
    lags, totals = caught_up(partition, Slice(ZERO, 3, 10, 7), {"a": 1})
    assert (totals, lags["a"].deferred) == (Totals(deferred=-1), 4)
    lags, totals = caught_up(replace(partition, lags=lags), Slice(ZERO, 10, 20, 10), {"a": 2})
    assert totals == Totals(deferred=-4, vanished=2)
    assert lags["a"].deferred == 0


NAMES = ("a", "b")


@dataclass
class Model:
    """A log with one record for each letter, read in slices; `landed` are records in the logs of types."""

    kinds: str
    partition: JobPartition
    landed: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    lost_below: int = 0

    def of(self, name: str, start: int, end: int) -> list[int]:
        return [offset for offset in range(start, end) if self.kinds[offset] == name]

    def read(self, count: int, behind: frozenset[str]) -> None:
        start = self.partition.position or 0
        end = min(start + count, len(self.kinds))
        deferred: dict[str, Share] = {}
        for name in NAMES:
            offsets = self.of(name, start, end)
            if name not in behind and name not in self.partition.lags:
                self.landed[name] += offsets
            elif offsets:
                deferred[name] = Share(Counts(read=len(offsets)), offsets[0])
        lags = {**self.partition.lags, **deferred_lags(self.partition, deferred, 1)}
        more = Totals(read=end - start, deferred=sum(share.counts.read for share in deferred.values()))
        self.partition = replace(self.partition, position=end, lags=lags, totals=self.partition.totals + more)

    def catch_up(self, name: str, count: int) -> None:
        lag = self.partition.lags.get(name)
        if lag is None:
            return
        end = min(lag.position + count, self.partition.position or 0)
        read_from = min(max(lag.position, self.lost_below), end)
        result = self.of(name, read_from, end)
        self.landed[name] += result
        lags, more = caught_up(self.partition, Slice(ZERO, lag.position, end, read_from), {name: len(result)})
        current = {name: lag for name, lag in {**self.partition.lags, **lags}.items() if lag.deferred}
        self.partition = replace(self.partition, lags=current, totals=self.partition.totals + more)


@given(data=st.data())
def test_every_read_record_is_landed_deferred_or_vanished(data: st.DataObject) -> None:
    """The log may lose records at any time."""
    model = Model(data.draw(st.text("ab", min_size=40, max_size=40)), JobPartition(0, 0))
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            model.read(data.draw(st.integers(1, 8)), data.draw(st.frozensets(st.sampled_from(NAMES))))
        else:
            model.catch_up(data.draw(st.sampled_from(NAMES)), data.draw(st.integers(1, 9)))
        if data.draw(st.integers(0, 9)) == 0:
            model.lost_below = max(model.lost_below, (model.partition.position or 0) - 5)
        partition, totals = model.partition, model.partition.totals
        assert min(totals.read, totals.deferred, totals.vanished) >= 0
        landed = sum(map(len, model.landed.values()))
        assert totals.read == landed + totals.deferred + totals.vanished
        assert totals.deferred == sum(lag.deferred for lag in partition.lags.values())
        for name in NAMES:
            lag, own = partition.lags.get(name), model.landed[name]
            assert len(set(own)) == len(own), "none twice"
            if lag is None and not model.lost_below:
                assert own == model.of(name, 0, partition.position or 0), "none missing"
