"""Records that break a batch are found by halves, and nothing but proof makes a record one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TransientError, UserError
from penstock.logs.log import Partition, Slice
from penstock.staging.isolate import (
    ALONE_FAILURES_MIN,
    POISON_PER_BATCH_MAX,
    Poison,
    Probe,
    UnhealthyTasksError,
    find_poison,
)

PARTITIONS = [Partition("web", "id", number) for number in range(3)]
Place = tuple[int, int]


def probe_for(breaks: Callable[[set[Place]], bool]) -> Probe:
    """A job on healthy tasks that fails if the records which it sees break it."""

    def probe(slices: Sequence[Slice], poison: Poison) -> str | None:
        records = {
            (piece.partition.number, offset)
            for piece in slices
            for offset in range(piece.read_from, piece.end)
            if (piece.partition, offset) not in poison
        }
        return "boom" if breaks(records) else None

    return probe


def slices_of(*ends: int) -> list[Slice]:
    """Slices from offset 10, of which the log lost the first two."""
    return [Slice(PARTITIONS[number], 10, end, 12) for number, end in enumerate(ends)]


def found_in(slices: list[Slice], probe: Probe) -> set[Place]:
    return {(partition.number, offset) for partition, offset in find_poison(slices, probe)}


def test_a_job_that_runs_again_has_no_poison() -> None:
    assert find_poison(slices_of(20, 30), probe_for(lambda records: False)) == {}
    assert find_poison(slices_of(12, 12), probe_for(lambda records: False)) == {}


@given(
    st.lists(st.integers(12, 60), min_size=1, max_size=3),
    st.sets(st.tuples(st.integers(0, 2), st.integers(12, 59)), max_size=5),
)
def test_every_poisonous_record_is_found_and_no_other(ends: list[int], drawn: set[Place]) -> None:
    poison = {place for place in drawn if place[0] < len(ends) and place[1] < ends[place[0]]}
    assert found_in(slices_of(*ends), probe_for(lambda records: bool(records & poison))) == poison


def test_tasks_that_fail_without_a_record_are_a_cluster_error() -> None:
    asked: list[int] = []

    def broken(slices: Sequence[Slice], poison: Poison) -> str | None:
        asked.append(len(slices))
        return "no such file: python3"

    with pytest.raises(UnhealthyTasksError) as raised:
        find_poison(slices_of(20, 30), broken)
    assert raised.value.detail == "no such file: python3"
    assert isinstance(raised.value, TransientError)
    assert asked == [0], "nothing is searched"


def test_a_cluster_that_fails_during_isolation_is_a_cluster_error() -> None:
    poisoned = probe_for(lambda records: (0, 15) in records)
    healthy = [True]

    def probe(slices: Sequence[Slice], poison: Poison) -> str | None:
        if not slices:
            return None if healthy.pop() else "lost"
        healthy.append(False)
        return poisoned(slices, poison)

    with pytest.raises(UnhealthyTasksError):
        find_poison(slices_of(20), probe)


def test_kafka_that_goes_away_during_the_search_ends_it() -> None:
    def probe(slices: Sequence[Slice], poison: Poison) -> str | None:
        if slices and slices[0].end - slices[0].read_from < 4:
            raise TransientError("Kafka does not answer")
        return "boom" if slices else None

    with pytest.raises(TransientError, match="Kafka does not answer"):
        find_poison(slices_of(20), probe)


@pytest.mark.parametrize("failures", range(1, 4 + ALONE_FAILURES_MIN))
def test_transient_failures_quarantine_no_record(failures: int) -> None:
    """Every job over records fails so many times, whatever it reads, and then never again.

    8 records take 4 failures until one is left alone, which must then fail `ALONE_FAILURES_MIN` times.
    """
    failures_left = [failures]

    def flaky(slices: Sequence[Slice], poison: Poison) -> str | None:
        if not slices or not failures_left[0]:
            return None
        failures_left[0] -= 1
        return "a worker was lost"

    assert find_poison(slices_of(20), flaky) == {}


def test_a_job_that_fails_for_every_record_and_without_them_is_not_searched_for_ever() -> None:
    """Reading itself fails, so that setting a record aside changes nothing: none is proven guilty."""

    def unreadable(slices: Sequence[Slice], poison: Poison) -> str | None:
        return "boom" if slices else None

    assert find_poison(slices_of(20, 30), unreadable) == {}


def test_records_that_break_the_job_only_together_are_not_quarantined() -> None:
    together = {(0, 13), (0, 18)}
    assert find_poison(slices_of(20), probe_for(lambda records: together <= records)) == {}


def test_too_many_poison_records_are_a_user_error() -> None:
    with pytest.raises(UserError) as raised:
        find_poison(slices_of(60), probe_for(bool))
    assert str(POISON_PER_BATCH_MAX) in raised.value.primary
    assert raised.value.detail == "boom"
