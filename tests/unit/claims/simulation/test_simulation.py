"""Claims under hostile schedules: clocks that are wrong or set, sleeping and hanging processes, late and lost records,
crashes, double client ids, seeks, pauses, other lists and intervals, and logs that are cut or gone.

A failure names its seed; `tests.unit.claims.simulation.simulation.simulate(seed)` replays it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from tests.unit.claims.simulation.executions import ConsumerWorkload
from tests.unit.claims.simulation.model_table import ViolationError
from tests.unit.claims.simulation.simulation import simulate
from tests.unit.claims.simulation.workloads import OnceWorkload
from tests.unit.claims.simulation.world import Outcome

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "20"))
"""`make simulate` tries 2,000."""
MANY = 100
CHUNK = min(MANY, SEEDS)
SELDOM = ("outage", "other_list", "grow", "other_heartbeat", "lost log", "too large", "resume", "double", "leave")
DRILLS = ("kill", "cut_off", "hang", "leave", "pause", "clock", "other_heartbeat", "new_topic")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds {first} to {first + CHUNK - 1}")
def test_the_promises_hold_under_random_faults(first: int) -> None:
    outcomes = [simulate(seed) for seed in range(first, first + CHUNK)]
    check_hostile(outcomes)
    if CHUNK >= MANY:
        check_thorough(outcomes)


def check_hostile(outcomes: list[Outcome]) -> None:
    """The promises are worth something only if the schedules tried to break them."""
    counts, ended = total(outcomes)
    assert counts["takeover"] > CHUNK / 2
    assert counts["crash"] > CHUNK / 4
    assert counts["nap"] > CHUNK / 2
    assert sum(outcome.late + outcome.lost for outcome in outcomes) > 5 * CHUNK
    assert sum(item.refused for item in outcomes) > CHUNK
    assert ended["DuplicateClientError"] > CHUNK / 8
    for often in ("interrupt", "hang", "cut_off", "election", "clock", "pause", "seek", "free", "retention"):
        assert counts[often] > 0, often


def total(outcomes: list[Outcome]) -> tuple[Counter[str], Counter[str]]:
    counts, ended = Counter[str](), Counter[str]()
    for outcome in outcomes:
        counts.update(outcome.counts)
        ended.update(outcome.ended)
    return counts, ended


def check_thorough(outcomes: list[Outcome]) -> None:
    """So many schedules reach every workload, every fault and every drill."""
    counts, ended = total(outcomes)
    assert max(outcome.lists for outcome in outcomes) > 1
    for item in (*SELDOM, *(f"drill {drill}" for drill in DRILLS)):
        assert counts[item] > 0, item
    for error in ("ReplacedError", "DifferentHeartbeatError", "LostHistoryError"):
        assert ended[error] > 0, error
    assert sum(outcome.workload.seeks for outcome in outcomes if isinstance(outcome.workload, OnceWorkload)) > 0
    consumers = [outcome.workload for outcome in outcomes if isinstance(outcome.workload, ConsumerWorkload)]
    assert sum(consumer.seeks for consumer in consumers) > 0
    assert sum(consumer.again for consumer in consumers) > 0, "at least once is more than once after a crash"


@pytest.mark.parametrize("workload", ["table", "latest"])
def test_the_same_seed_gives_the_same_records(workload: str) -> None:
    first, second = (replace(simulate(7, workload=workload), workload=None) for _ in range(2))  # type: ignore[arg-type]
    assert first == second


# the checks can fail


def violations(
    count: int, workload: str | None = None, *, unchecked: bool = False, misses_records: bool = False
) -> Iterator[str]:
    for seed in range(count):
        try:
            simulate(seed, workload=workload, unchecked=unchecked, misses_records=misses_records)
        except ViolationError as violation:
            yield str(violation)


def test_without_the_token_check_the_simulation_finds_rows_of_old_owners() -> None:
    result = list(islice(violations(30, "table", unchecked=True), 5))
    assert len(result) == 5
    assert any("after a newer fence" in item for item in result)
    assert all(failure.startswith("seed ") for failure in result)


@pytest.mark.parametrize("workload", ["once", "most"])
def test_the_simulation_finds_messages_that_are_executed_before_they_are_claimed(workload: str) -> None:
    assert any("twice" in violation for violation in violations(20, workload, unchecked=True))


def test_the_simulation_finds_records_that_are_acknowledged_before_execution() -> None:
    assert any("finished is only" in violation for violation in violations(5, "least", unchecked=True))


def test_the_simulation_finds_a_reader_that_misses_records() -> None:
    result = list(violations(5, misses_records=True))
    assert len(result) == 5
    assert all("disagrees" in item for item in result)
